"""What a row of a feed must be to become a product."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal
from urllib.parse import urlsplit

from example_project.catalogue.prices import Invalid, parse_price

REQUIRED = ("id", "title", "link", "availability", "price")
OPTIONAL = ("description", "image_link", "brand", "gtin", "condition", "product_type")
KNOWN = frozenset(REQUIRED + OPTIONAL)

LONGEST = {
    "id": 100,
    "title": 300,
    "description": 10_000,
    "link": 1000,
    "image_link": 1000,
    "brand": 100,
    "condition": 20,
    "product_type": 300,
}
AVAILABILITIES = ("in_stock", "out_of_stock", "preorder", "backorder")
GTIN_LENGTHS = (8, 12, 13, 14)

__all__ = ["KNOWN", "REQUIRED", "Invalid", "Item", "validated"]


@dataclass(frozen=True)
class Item:
    """One product as a feed describes it."""

    feed_id: str
    title: str
    description: str
    link: str
    image_link: str
    availability: str
    price: Decimal
    currency: str
    brand: str
    gtin: str
    condition: str
    product_type: str

    @property
    def digest(self) -> str:
        """Changes when anything that the partner is sent does."""
        return hashlib.sha256(json.dumps(asdict(self), default=str).encode()).hexdigest()


def validated(row: Mapping[str, str]) -> Item:
    """The item of a row, whose keys are names of ``KNOWN``.

    Raises:
        Invalid: the message is the reason that the shop reads.
    """
    _require_present(row)
    _require_storable(row)
    price, currency = parse_price(row["price"])
    return Item(
        feed_id=row["id"],
        title=row["title"],
        description=row.get("description", ""),
        link=_web_address(row, "link"),
        image_link=_web_address(row, "image_link"),
        availability=_availability(row["availability"]),
        price=price,
        currency=currency,
        brand=row.get("brand", ""),
        gtin=_gtin(row.get("gtin", "")),
        condition=row.get("condition", "").lower(),
        product_type=row.get("product_type", ""),
    )


def _require_present(row: Mapping[str, str]) -> None:
    missing = [name for name in REQUIRED if not row[name]]
    if missing:
        raise Invalid(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")


def _require_storable(row: Mapping[str, str]) -> None:
    for name, value in row.items():
        if "\0" in value:
            raise Invalid(f"{name} holds a NUL character")
        if len(value) > LONGEST.get(name, 100):
            raise Invalid(f"{name} has {len(value)} characters, at most {LONGEST.get(name, 100)} fit")


def _web_address(row: Mapping[str, str], name: str) -> str:
    address = row.get(name, "")
    if not address:
        return ""
    try:
        parts = urlsplit(address)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.netloc or " " in address:
        raise Invalid(f"{name} {address[:60]!r} is not a web address")
    return address


def _availability(value: str) -> str:
    availability = value.lower().replace(" ", "_").replace("-", "_")
    if availability not in AVAILABILITIES:
        raise Invalid(f"availability {value!r} is none of {', '.join(AVAILABILITIES)}")
    return availability


def _gtin(value: str) -> str:
    gtin = value.replace(" ", "").replace("-", "")
    if not gtin:
        return ""
    if not (gtin.isascii() and gtin.isdigit()) or len(gtin) not in GTIN_LENGTHS:
        raise Invalid(f"gtin {value!r} is not a number of 8, 12, 13 or 14 digits")
    if not _check_digit_is_right(gtin):
        raise Invalid(f"gtin {value!r} has a wrong check digit")
    return gtin


def _check_digit_is_right(gtin: str) -> bool:
    weighted = (int(digit) * (3 if place % 2 else 1) for place, digit in enumerate(reversed(gtin)))
    return sum(weighted) % 10 == 0
