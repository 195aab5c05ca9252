"""An invoice and the payments made on it."""

from dataclasses import dataclass
from datetime import date

from ledger.terms import due_date


@dataclass
class Invoice:
    number: str
    issued: date
    terms: str
    total_cents: int
    paid_cents: int = 0

    @property
    def due(self):
        return due_date(self.issued, self.terms)

    @property
    def outstanding_cents(self):
        return self.total_cents - self.paid_cents

    def is_overdue(self, today):
        return self.outstanding_cents > 0 and today > self.due

    def pay(self, cents):
        if not 0 < cents <= self.outstanding_cents:
            raise ValueError(f"invoice {self.number}: cannot take a payment of {cents} cents")
        self.paid_cents += cents
