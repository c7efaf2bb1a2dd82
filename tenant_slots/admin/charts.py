"""Charts as SVG coordinates. The colours are the style sheet's; there is no script and no inline style."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HEIGHT = 24
"""Of a row's little chart, in its own units; its width is a unit a point."""


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
    """One line of a chart."""

    name: str
    css: str
    values: Sequence[float | None]
    stepped: bool = False

    def shown(self) -> list[float]:
        return [value or 0 for value in self.values]


@dataclass(frozen=True)
class Chart:
    """Lines over the same moments, and the table that says the same."""

    title: str
    moments: Sequence[str]
    series: Sequence[Series]
    unit: str = ""
    height: int = 100

    @property
    def width(self) -> int:
        return max(1, len(self.moments) - 1)

    @property
    def highest(self) -> float:
        return max(1 if not self.unit else 0.1, *(value for series in self.series for value in series.shown()))

    @property
    def top_label(self) -> str:
        return f"{figure(self.highest)} {self.unit}".strip()

    def lines(self) -> list[tuple[str, str]]:
        """Style class and points of each line."""
        return [
            (series.css, (steps if series.stepped else line)(series.shown(), self.highest, self.height))
            for series in self.series
        ]

    def table(self) -> list[tuple[str, list[str]]]:
        """Moment and values, the latest first."""
        columns = [series.values for series in self.series]
        rows = [(moment, [figure(column[x]) for column in columns]) for x, moment in enumerate(self.moments)]
        return rows[::-1]


def figure(value: float | None) -> str:
    """Two digits of what is below ten, and whole numbers above: nobody reads more."""
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _y(value: float, highest: float, height: int) -> str:
    return f"{height - value / highest * height:.1f}".removesuffix(".0")
