"""What the demo shows: a live table at a terminal, lines now and then elsewhere, and the summary."""

from __future__ import annotations

import time
from collections import Counter
from types import TracebackType

from django.db.models import Count
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from example_project.demo import shops
from example_project.demo.figures import Figures
from tenant_slots.models import State

SECONDS_BETWEEN_LINES = 5.0

WIDTH_ELSEWHERE = 100
"""Columns of a file or a pipe, which have no width of their own."""

STATES = (State.WAITING, State.QUEUED, State.RUNNING, State.FINISHED)

Counts = dict[str, Counter[str]]


def counts_by_shop() -> Counts:
    """How many jobs each shop has in each state now."""
    counts: Counts = {slug: Counter() for slug in shops.SLUGS}
    rows = shops.jobs().values_list("tenant_queue__tenant", "state").annotate(count=Count("pk"))
    for slug, state, count in rows:
        counts[slug][state] = count
    return counts


class Screen:
    """Follows one phase; use as a context manager around it."""

    def __init__(self, console: Console, title: str, *, limited: bool) -> None:
        self.console = console
        self.title = title
        self.limited = limited
        self.began = self.last_line = time.monotonic()
        self.live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def __enter__(self) -> Screen:
        if self.live:
            self.live.start()
        else:
            self.console.print(self.title)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self.live.stop()

    def show(self, counts: Counts) -> None:
        if self.live:
            self.live.update(Group(Text(self.title, style="bold"), self._table(counts)), refresh=True)
        elif time.monotonic() - self.last_line >= SECONDS_BETWEEN_LINES:
            self.last_line = time.monotonic()
            self.console.print(self._line(counts))

    def _line(self, counts: Counts) -> str:
        total: Counter[str] = sum(counts.values(), Counter())
        parts = [f"{total[state]} {State(state).label}" for state in STATES]
        return f"  {time.monotonic() - self.began:4.0f} s: {', '.join(parts)}"

    def _table(self, counts: Counts) -> Table:
        table = Table(caption=f"{time.monotonic() - self.began:.0f} s", caption_justify="left")
        table.add_column("shop")
        table.add_column("max_job", justify="right")
        for state in STATES:
            table.add_column(str(State(state).label), justify="right")
        for shop in shops.SHOPS:
            limit = str(shop.max_job) if self.limited else "off"
            table.add_row(shop.name, limit, *(str(counts[shop.slug][state]) for state in STATES))
        return table


def console_for(console_file_is_terminal: bool) -> Console:
    return Console() if console_file_is_terminal else Console(width=WIDTH_ELSEWHERE)


TOGETHER = "small, together"


HEADINGS = (
    "jobs",
    "max_job",
    "over-\nlap",
    "wait\np50",
    "wait\np95",
    "off:\njobs",
    "over-\nlap",
    "wait\np50",
    "wait\np95",
)
"""Of the summary, broken so that it fits into 80 columns."""


def summary(limited: dict[str, Figures], unlimited: dict[str, Figures]) -> Table:
    """Both phases side by side; the keys are the slugs and `TOGETHER`."""
    table = Table(
        title="With limits, and the same load without: the fair order alone; waits in seconds",
        title_justify="left",
        box=box.SIMPLE,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("shop", no_wrap=True)
    for heading in HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for shop in shops.SHOPS:
        table.add_row(shop.name, *_cells(limited[shop.slug], str(shop.max_job)), *_cells(unlimited[shop.slug]))
    table.add_section()
    table.add_row(TOGETHER, *_cells(limited[TOGETHER], ""), *_cells(unlimited[TOGETHER]))
    return table


def _cells(figures: Figures, *limit: str) -> list[str]:
    return [str(figures.jobs), *limit, str(figures.overlap), f"{figures.p50:.2f}", f"{figures.p95:.2f}"]
