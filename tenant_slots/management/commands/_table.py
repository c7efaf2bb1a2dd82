"""Plain aligned text for a terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

GAP = "  "


def table(head: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """Lines of aligned columns, the first two of text to the left, the numbers after them to the right.

    Args:
        width: columns of the terminal; the first column is shortened to fit. None: as wide as it takes.
    """
    cells = [list(map(printable, row)) for row in (head, *rows)]
    if width is not None:
        _shorten_first(cells, width)
    widths = [max(map(_columns, column)) for column in zip(*cells, strict=True)]
    return [_line(row, widths) for row in cells]


def printable(text: str) -> str:
    """The text with control, bidi and other invisible characters as escapes: a tenant's identifier may hold any."""
    return "".join(mark if mark.isprintable() else mark.encode("unicode_escape").decode() for mark in text)


def shortened(text: str, width: int) -> str:
    if _columns(text) <= width:
        return text
    while text and _columns(text) >= width:
        text = text[:-1]
    return f"{text}…"


def _shorten_first(cells: list[list[str]], width: int) -> None:
    others = sum(len(GAP) + max(map(_columns, column)) for column in list(zip(*cells, strict=True))[1:])
    for row in cells:
        row[0] = shortened(row[0], max(8, width - others))


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    padding = [" " * (width - _columns(cell)) for cell, width in zip(row, widths, strict=True)]
    texts = [cell + pad for cell, pad in zip(row[:2], padding[:2], strict=True)]
    numbers = [pad + cell for cell, pad in zip(row[2:], padding[2:], strict=True)]
    return GAP.join([*texts, *numbers]).rstrip()


def _columns(text: str) -> int:
    """How many columns a terminal uses: two for a wide character, none for a combining one."""
    return sum(
        0 if unicodedata.combining(mark) else 2 if unicodedata.east_asian_width(mark) in "WF" else 1 for mark in text
    )
