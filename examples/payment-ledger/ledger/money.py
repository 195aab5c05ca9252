"""Amounts of money as whole cents; text only at the edges."""

import re

_AMOUNT = re.compile(r"(-?)(\d{1,3}(?:,\d{3})*|\d+)(?:\.(\d{2}))?")


def parse_cents(text):
    """Read an amount such as "12", "12.50" or "1,234.50" as cents."""
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not an amount: {text!r}")
    sign, units, fraction = match.groups()
    cents = int(units.replace(",", "")) * 100 + int(fraction or 0)
    return -cents if sign else cents


def format_cents(cents):
    """Write cents as an amount such as "1,234.50"."""
    sign = "-" if cents < 0 else ""
    units, fraction = divmod(abs(cents), 100)
    return f"{sign}{units:,}.{fraction:02d}"
