"""A price is understood in the ways that people write it, or refused with a reason."""

from __future__ import annotations

from decimal import Decimal

import pytest

from example_project.catalogue.prices import Invalid, parse_price


@pytest.mark.parametrize(
    ("text", "amount", "currency"),
    [
        ("12.99 EUR", "12.99", "EUR"),
        ("12,99 EUR", "12.99", "EUR"),
        ("EUR 12.99", "12.99", "EUR"),
        ("eur12.9", "12.90", "EUR"),
        ("7 USD", "7.00", "USD"),
        ("€9.90", "9.90", "EUR"),
        ("12.50€", "12.50", "EUR"),
        ("£1,299.00", "1299.00", "GBP"),
        ("1.299,00 €", "1299.00", "EUR"),
        ("1\N{NO-BREAK SPACE}299,00 EUR", "1299.00", "EUR"),
        ("CHF 1'299.50", "1299.50", "CHF"),
        ("1,234,567.00 USD", "1234567.00", "USD"),
    ],
)
def test_a_price_is_read(text: str, amount: str, currency: str) -> None:
    assert parse_price(text) == (Decimal(amount), currency)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("12.99", "no currency"),
        ("GBP", "not an amount"),
        ("-4.50 GBP", "not an amount"),
        ("12.5o EUR", "not an amount"),
        ("12. EUR", "not an amount"),
        ("EUR 5 USD 6", "not an amount"),
        ("1234,56.78 EUR", "not an amount"),
        ("0.00 EUR", "above 0"),
        ("99999999999.00 EUR", "at most"),
        ("12.9999 EUR", "more than two decimals"),
        ("1,299 EUR", "two ways"),
        ("1.299 EUR", "two ways"),
        ("", "not an amount"),
    ],
)
def test_a_price_that_cannot_be_trusted_is_refused(text: str, reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        parse_price(text)
