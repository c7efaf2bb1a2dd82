"""A feed is read whatever its encoding and delimiter, and every refused row names its line and the reason."""

from __future__ import annotations

import pytest

from example_project.catalogue import feeds
from example_project.catalogue.feeds import UnreadableFeed, parse

HEADER = "id,title,link,availability,price"
ROW = "A1,Lamp,https://shop.example/a1,in stock,12.00 EUR"


def feed(*lines: str, end: str = "\n") -> bytes:
    return end.join((HEADER, *lines)).encode()


def refused(content: bytes) -> list[tuple[int, str]]:
    return [(refusal.line, refusal.reason) for refusal in parse(content).refusals]


SHIPPED = {
    "bicycle_parts.csv": ("latin-1", "semicolon", 230, [11, 35, 54, 72, 103, 142]),
    "books.csv": ("utf-8", "tab", 200, [62, 121]),
    "coffee.csv": ("utf-8-sig", "comma", 220, [49, 88, 114, 151, 152]),
    "garden_tools.csv": ("utf-8", "comma", 230, [17, 49, 73, 93, 138, 186, 230, 255]),
    "lamps.csv": ("utf-8", "comma", 210, [48, 177]),
    "outdoor.csv": ("utf-8", "comma", 240, []),
}


def test_every_shipped_feed_is_listed_here() -> None:
    assert {path.name for path in feeds.SHIPPED.glob("*")} == set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_feed_is_read(name: str) -> None:
    parsed = parse((feeds.SHIPPED / name).read_bytes())
    lines = [refusal.line for refusal in parsed.refusals]
    assert (parsed.encoding, parsed.delimiter, parsed.rows, lines) == SHIPPED[name]


@pytest.mark.parametrize(
    ("name", "line", "words", "reason"),
    [
        ("bicycle_parts.csv", 11, "auf Anfrage", "not an amount"),
        ("garden_tools.csv", 138, "GT-1013", "already on line 20"),
        ("garden_tools.csv", 186, "soon", "availability 'soon'"),
        ("garden_tools.csv", 255, "www.fernhill", "not a web address"),
        ("lamps.csv", 48, 'Halden 12"', "not doubled"),
        ("coffee.csv", 49, "12.5o", "not an amount"),
    ],
)
def test_a_refusal_names_the_line_that_an_editor_shows(name: str, line: int, words: str, reason: str) -> None:
    content = (feeds.SHIPPED / name).read_bytes()
    assert words in content.decode("latin-1").split("\n")[line - 1]
    assert reason in dict(refused(content))[line]


def test_letters_beyond_ascii_arrive_in_every_encoding() -> None:
    text = f"{HEADER}\nA1,Größe für Ñandú,https://shop.example/a1,in stock,12.00 EUR"
    for encoding in ("utf-8", "utf-8-sig", "latin-1", "utf-16"):
        assert [item.title for item in parse(text.encode(encoding)).items] == ["Größe für Ñandú"], encoding


def test_a_line_is_counted_where_its_row_begins() -> None:
    content = feed('B1,"Lamp\n\nwith ""shade""",https://shop.example/a1,in stock,1.00 EUR', "", ",no id,,,", ROW)
    assert refused(content) == [(6, "id and link and availability and price are missing")]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_every_line_ending_is_one_line(end: str) -> None:
    assert refused(feed(ROW, "B1,short", end=end)) == [(3, "the row has 2 fields, the header has 5")]


def test_a_quote_that_never_ends_costs_the_rest_and_says_so() -> None:
    content = feed(ROW, 'B1,"Lamp,https://shop.example/b1,in stock,12.00 EUR', ROW.replace("A1", "C1"))
    assert refused(content) == [(3, "a quoted field begins here and never ends")]


def test_a_semicolon_inside_text_does_not_make_a_delimiter() -> None:
    content = feed("A1,Lamp; small; red,https://shop.example/a1,in stock,12.00 EUR")
    assert [item.title for item in parse(content).items] == ["Lamp; small; red"]


@pytest.mark.parametrize(
    ("gtin", "reason"),
    [("4006381333931", ""), ("4006381333932", "check digit"), ("40123", "8, 12, 13 or 14"), ("x", "8, 12, 13 or 14")],
)
def test_a_gtin_is_checked(gtin: str, reason: str) -> None:
    content = f"{HEADER},gtin\n{ROW},{gtin}".encode()
    reasons = [text for _, text in refused(content)]
    assert bool(reasons) is bool(reason)
    assert all(reason in text for text in reasons)


@pytest.mark.parametrize(
    "row",
    [
        ROW.replace("Lamp", "L" * 301),
        ROW.replace("https://shop.example/a1", "javascript:alert(1)"),
        ROW.replace("https://shop.example/a1", "http://[broken"),
        ROW.replace("in stock", "perhaps"),
    ],
)
def test_a_row_that_no_column_could_hold_is_refused(row: str) -> None:
    assert [line for line, _ in refused(feed(row))] == [2]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"\n \n", "empty"),
        (b"PK\x03\x04\0\0\0", "not text"),
        (b"name,amount\nLamp,3\n", "no column id and no column title"),
        (f"{HEADER},price\n{ROW},1 EUR".encode(), "price more than once"),
        (b"\xff\xfeodd", "utf-16"),
        (b"\xef\xbb\xbf", "empty"),
    ],
)
def test_a_file_that_is_not_a_feed_is_refused_as_a_whole(content: bytes, reason: str) -> None:
    with pytest.raises(UnreadableFeed, match=reason):
        parse(content)
