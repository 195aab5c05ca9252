"""Settling open invoices with the payments that come in."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Settlement:
    """What became of one payment: the part that each invoice got, and the credit that was left over."""

    parts: tuple
    credit_cents: int


def settle(invoices, payment_cents):
    """Apply a payment to the open invoices in the order in which they are due."""
    if payment_cents <= 0:
        raise ValueError("a payment must be more than nothing")
    parts = []
    remaining = payment_cents
    for invoice in sorted(invoices, key=lambda invoice: (invoice.due, invoice.number)):
        if remaining == 0:
            break
        if invoice.outstanding_cents == 0:
            continue
        if remaining >= invoice.outstanding_cents:
            part = invoice.outstanding_cents
            invoice.pay(part)
            remaining -= invoice.outstanding_cents
        else:
            part = remaining
            invoice.pay(part)
            remaining = 0
        parts.append((invoice.number, part))
    return Settlement(tuple(parts), remaining)
