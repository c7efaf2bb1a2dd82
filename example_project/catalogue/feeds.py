"""Product feeds: from the bytes of a CSV file to valid items, and to the rows that are refused and why."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from example_project.catalogue.validation import KNOWN, REQUIRED, Invalid, Item, validated

SHIPPED = Path(__file__).resolve().parent.parent / "feeds"
"""The directory of the feeds that come with this project."""

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab"}

BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


class UnreadableFeed(Exception):
    """The file as a whole cannot be a feed; the message says why."""


@dataclass(frozen=True)
class Refusal:
    """A row that was left out."""

    line: int
    """The line of the file, from 1, where the row begins; a quoted field may span lines."""
    reason: str


@dataclass
class ParsedFeed:
    encoding: str
    delimiter: str
    items: list[Item] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return len(self.items) + len(self.refusals)


Row = tuple[int, list[str] | Invalid]


def parse(content: bytes) -> ParsedFeed:
    """Read a whole feed. One bad row never stops the others.

    Raises:
        UnreadableFeed: it is empty, no text, or lacks a column that every product needs.
    """
    text, encoding = decode(content)
    if not text.strip(" ,;\t\r\n"):
        raise UnreadableFeed("the file is empty")
    delimiter = find_delimiter(text)
    rows = _rows(text, delimiter)
    columns = _columns(rows)
    feed = ParsedFeed(encoding, DELIMITERS[delimiter])
    first_lines: dict[str, int] = {}
    for line, fields in rows:
        try:
            item = validated(_named(columns, fields))
            _require_first(item, line, first_lines)
        except Invalid as error:
            feed.refusals.append(Refusal(line, str(error)))
        else:
            feed.items.append(item)
    return feed


def decode(content: bytes) -> tuple[str, str]:
    """The text and the encoding that it was in: what a byte order mark says, else UTF-8, else Latin-1.

    Raises:
        UnreadableFeed: it is no text.
    """
    encoding = next((name for mark, name in BYTE_ORDER_MARKS.items() if content.startswith(mark)), "")
    if not encoding and b"\0" in content:
        raise UnreadableFeed("the file is not text; export it as CSV")
    try:
        return content.decode(encoding or "utf-8"), encoding or "utf-8"
    except UnicodeDecodeError as error:
        if encoding:
            raise UnreadableFeed(f"the file says that it is {encoding}, but is not: {error.reason}") from error
        return content.decode("latin-1"), "latin-1"


def find_delimiter(text: str) -> str:
    """The delimiter under which the header has the most columns that we know."""
    header = text.lstrip().partition("\n")[0]
    return max(DELIMITERS, key=lambda delimiter: sum(_name(title) in KNOWN for title in header.split(delimiter)))


def _rows(text: str, delimiter: str) -> Iterator[Row]:
    """Every row that is not blank, with the line where it begins."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield line, Invalid(_in_plain_words(error))
            continue
        if any(value.strip() for value in fields):
            yield line, fields


def _in_plain_words(error: csv.Error) -> str:
    text = str(error)
    if "unexpected end of data" in text or "field larger" in text:
        return "a quoted field begins here and never ends"
    if "expected after" in text:
        return "a quote inside a quoted field is not doubled"
    return text


def _columns(rows: Iterator[Row]) -> list[str]:
    _, header = next(rows)
    if isinstance(header, Invalid):
        raise UnreadableFeed(f"the header cannot be read: {header}")
    columns = [_name(title) for title in header]
    missing = [name for name in REQUIRED if name not in columns]
    if missing:
        raise UnreadableFeed(f"the header has no column {' and no column '.join(missing)}")
    twice = sorted({name for name in columns if name in KNOWN and columns.count(name) > 1})
    if twice:
        raise UnreadableFeed(f"the header has {' and '.join(twice)} more than once")
    return columns


def _name(title: str) -> str:
    """A column's name however it is spelled: "Image Link" and "g:image_link" are ``image_link``."""
    return title.strip().strip('"').lower().removeprefix("g:").replace(" ", "_")


def _named(columns: list[str], fields: list[str] | Invalid) -> dict[str, str]:
    if isinstance(fields, Invalid):
        raise fields
    if len(fields) != len(columns):
        raise Invalid(f"the row has {len(fields)} fields, the header has {len(columns)}")
    return {name: value.strip() for name, value in zip(columns, fields, strict=True) if name in KNOWN}


def _require_first(item: Item, line: int, first_lines: dict[str, int]) -> None:
    """An upsert of many rows cannot hold one key twice, and which row is right only the shop knows."""
    first = first_lines.setdefault(item.feed_id, line)
    if first != line:
        raise Invalid(f"id {item.feed_id!r} is already on line {first}")
