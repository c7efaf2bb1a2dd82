"""Prices as people write them."""

from __future__ import annotations

import re
from decimal import Decimal

SYMBOLS = {"€": "EUR", "$": "USD", "£": "GBP"}

PATTERN = re.compile(r"(?P<before>[A-Z]{3})?\s*(?P<number>[0-9][0-9.,\s']*)\s*(?P<after>[A-Z]{3})?")

HIGHEST = Decimal("9999999999.99")


class Invalid(Exception):
    """A row cannot become a product; the message says why."""


def parse_price(text: str) -> tuple[Decimal, str]:
    """Amount and currency of "12.99 EUR", "EUR 12,99", "1.299,00 €" and the like.

    Raises:
        Invalid: it is not a price, has no currency, is 0 or too high, or can be read in two ways.
    """
    match = PATTERN.fullmatch(_with_code(text))
    if not match:
        raise Invalid(f"price {text!r} is not an amount and a currency")
    currency = match["before"] or match["after"]
    if not currency:
        raise Invalid(f"price {text!r} has no currency")
    amount = Decimal(_plain_number(match["number"], text))
    if not 0 < amount <= HIGHEST:
        raise Invalid(f"price {text!r} must be above 0 and at most {HIGHEST}")
    if amount != round(amount, 2):
        raise Invalid(f"price {text!r} has more than two decimals")
    return round(amount, 2), currency


def _with_code(text: str) -> str:
    for symbol, code in SYMBOLS.items():
        text = text.replace(symbol, f" {code} ")
    return text.strip().upper()


def _plain_number(number: str, text: str) -> str:
    digits = re.sub(r"[\s']", "", number)
    decimal_mark = max(".,", key=digits.rfind)
    whole, mark, fraction = digits.rpartition(decimal_mark)
    if not mark:
        return digits
    thousands = "," if decimal_mark == "." else "."
    if decimal_mark in whole or (thousands not in whole and len(fraction) == 3):
        raise Invalid(f"price {text!r} can be read in two ways; write it as 1299.00 EUR")
    if not fraction or not _grouped(whole, thousands):
        raise Invalid(f"price {text!r} is not an amount and a currency")
    return f"{whole.replace(thousands, '')}.{fraction}"


def _grouped(whole: str, mark: str) -> bool:
    first, *groups = whole.split(mark)
    return bool(first) and all(len(group) == 3 for group in groups) and (not groups or len(first) <= 3)
