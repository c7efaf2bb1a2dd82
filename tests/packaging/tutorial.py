"""The tutorial as its reader meets it: what to type, what to write into files, and what a terminal then shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TUTORIAL = Path(__file__).parent.parent.parent / "docs" / "tutorial.md"

FENCE = re.compile(r"(?P<before>[^\n]+)\n\n```(?P<language>\w+)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"(?P<how>Create|at the end of) `(?P<path>[\w/.]+)`")


@dataclass(frozen=True)
class File:
    """What the reader writes: a new file, or the end of one."""

    path: str
    text: str
    is_new: bool


@dataclass(frozen=True)
class Command:
    """What the reader types after ``$``, and the lines that the text shows below; none if it shows nothing."""

    line: str
    shown: tuple[str, ...]


def steps(text: str) -> Iterator[File | Command]:
    """What each fence asks for, in order. A fence that says neither is a ``ValueError``: nothing is left out."""
    fences = list(FENCE.finditer(text))
    if len(fences) != text.count("\n```") // 2:
        raise ValueError("a fence has no paragraph before it, or no language")
    for fence in fences:
        file = FILE.search(fence["before"])
        if fence["language"] == "console":
            yield from _commands(fence["code"])
        elif file:
            yield File(file["path"], fence["code"], is_new=file["how"] == "Create")
        else:
            raise ValueError(f"nothing says what to do with:\n{fence['code']}")


def _commands(code: str) -> Iterator[Command]:
    head, *typed = re.split(r"^\$ ", code, flags=re.MULTILINE)
    if head:
        raise ValueError(f"nobody has typed what shows {head}")
    for one in typed:
        line, *shown = one.splitlines()
        yield Command(line, tuple(shown))


def differences(shown: tuple[str, ...], output: str) -> list[str]:
    """Of a terminal from the text. Spaces do not count, nor which number it is, only whether it is zero."""
    expected, found = [_shape(line) for line in shown], [_shape(line) for line in output.splitlines()]
    return [] if expected == found else [*(f"- {line}" for line in expected), *(f"+ {line}" for line in found)]


def _shape(line: str) -> str:
    numbers = re.sub(r"\d+", lambda number: "N" if int(number[0]) else "0", line)
    return " ".join(numbers.split())
