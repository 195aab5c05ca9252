"""Payment terms: when is an invoice due?"""

import re
from datetime import date, timedelta

_NET = re.compile(r"net (\d{1,3})")


def due_date(issued, terms):
    """The last day to pay an invoice issued on `issued` under `terms`."""
    terms = terms.strip().lower()
    if terms == "on receipt":
        return issued
    if terms == "end of month":
        return _end_of_month(issued)
    match = _NET.fullmatch(terms)
    if match is None:
        raise ValueError(f"unknown payment terms: {terms!r}")
    return issued + timedelta(days=int(match.group(1)))


def _end_of_month(day):
    first_of_next = date(day.year + day.month // 12, day.month % 12 + 1, 1)
    return first_of_next - timedelta(days=1)
