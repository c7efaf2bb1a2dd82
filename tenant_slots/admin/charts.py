"""Charts as SVG coordinates. The colours are the style sheet's; there is no script and no inline style."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from django.utils.formats import number_format

HEIGHT = 24
"""Of a row's little chart, in its own units; its width is a unit a point."""


ROUND = (1, 2, 4, 5, 8, 10)
"""Tops of an axis, times a power of ten: whole when they are halved, from 2 on, but for one."""

SECONDS = "s"
"""The unit whose axis turns to minutes and hours."""

LONG_TIMES = (60, 120, 300, 600, 1200, 1800, 3600, *(3600 * hours for hours in (2, 4, 6, 12, 24, 48, 96, 168)))
"""Tops of such an axis; what is below has those of other numbers."""

TIMES = 4
"""Parts that the axis of time is divided into."""


def line(values: Sequence[float], highest: float, height: int = HEIGHT) -> str:
    """The ``points`` of a polyline."""
    heights = {value: _y(value, highest, height) for value in set(values)}
    return " ".join([f"{x},{heights[value]}" for x, value in enumerate(values)])


def steps(values: Sequence[float], highest: float, height: int = HEIGHT) -> str:
    """The same, level between two points and upright at a change, with no point that a straight line does not need."""
    heights = {value: _y(value, highest, height) for value in set(values)}
    points: list[str] = []
    for x, value in enumerate(values):
        if x and value != values[x - 1]:
            points += [f"{x},{heights[values[x - 1]]}", f"{x},{heights[value]}"]
        elif x in (0, len(values) - 1):
            points.append(f"{x},{heights[value]}")
    return " ".join(points)


@dataclass(frozen=True)
class Series:
    """One line of a chart. Where a value is None nothing is known, and the line has a gap."""

    name: str
    css: str
    values: Sequence[float | None]
    stepped: bool = False

    def pieces(self) -> Iterator[tuple[int, list[float]]]:
        """What lies between the gaps, each with its place."""
        known = [(x, value) for x, value in enumerate(self.values) if value is not None]
        for _, some in groupby(enumerate(known), key=lambda pair: pair[1][0] - pair[0]):
            piece = [point for _, point in some]
            yield piece[0][0], [value for _, value in piece]


@dataclass(frozen=True)
class Mark:
    """Something that happened at one of the moments."""

    x: int
    title: str


@dataclass(frozen=True)
class Chart:
    """Lines over the same moments, with their axes, and the table that says the same."""

    title: str
    moments: Sequence[str]
    series: Sequence[Series]
    unit: str = ""
    height: int = 100
    marks: Sequence[Mark] = ()
    ticks: Sequence[str] = ()
    """The moments as the axis of time has them, if shorter."""

    @property
    def width(self) -> int:
        return max(1, len(self.moments) - 1)

    @property
    def middle(self) -> int:
        return self.height // 2

    @property
    def highest(self) -> float:
        known = [value for series in self.series for value in series.values if value is not None]
        return max(1 if not self.unit else 0.1, *known, 0)

    @property
    def top_label(self) -> str:
        return f"{figure(self.highest)} {self.unit}".strip()

    @property
    def top(self) -> float:
        """Of the axis: the next number that is easily read."""
        magnitude: float = 10 ** math.floor(math.log10(self.highest))
        top = next(step * magnitude for step in ROUND if step * magnitude > self.highest * 0.999)
        if self.unit == SECONDS and top > LONG_TIMES[0]:
            return next((time for time in LONG_TIMES if time >= self.highest), self.highest)
        return top

    @property
    def axis(self) -> list[str]:
        """What stands beside the top, the middle and the bottom; nothing for half a job."""
        middle = self._label(self.top / 2) if self.unit or self.top % 2 == 0 else ""
        return [self._label(self.top), middle, "0"]

    @property
    def times(self) -> list[str]:
        """Some of the moments, from the first to the last, evenly spread."""
        moments = self.ticks or self.moments
        return [moments[round(part * (len(moments) - 1) / TIMES)] for part in range(TIMES + 1)]

    def lines(self) -> list[tuple[str, str]]:
        """Style class and points of each piece of a line. A piece of one point is a dot."""
        return [
            (f"{series.css} slots-dot" if len(values) == 1 else series.css, self._points(series, x, values))
            for series in self.series
            for x, values in series.pieces()
        ]

    def _points(self, series: Series, x: int, values: Sequence[float]) -> str:
        return _at(x, (steps if series.stepped else line)(values, self.top, self.height))

    def table(self) -> list[tuple[str, list[str]]]:
        """Moment and values, the latest first."""
        columns = [series.values for series in self.series]
        rows = [(moment, [figure(column[x]) for column in columns]) for x, moment in enumerate(self.moments)]
        return rows[::-1]

    def _label(self, value: float) -> str:
        if self.unit != SECONDS or self.top <= LONG_TIMES[0]:
            return f"{figure(value)} {self.unit}".strip()
        return f"{figure(value / 60)} min" if self.top <= 3600 else f"{figure(value / 3600)} h"


def figure(value: float | None) -> str:
    """In the viewer's language: two digits of what is below ten, and whole numbers above. Nobody reads more."""
    if value is None:
        return ""
    return number_format(f"{value:.0f}" if value >= 10 else f"{value:.2g}")


def _y(value: float, highest: float, height: int) -> str:
    return f"{height - value / highest * height:.1f}".removesuffix(".0")


def _at(x: int, points: str) -> str:
    """The same further to the right."""
    pairs = [point.split(",") for point in points.split()]
    moved = [f"{int(left) + x},{y}" for left, y in pairs]
    return " ".join(moved if len(moved) > 1 else moved * 2)
