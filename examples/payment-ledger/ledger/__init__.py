"""Invoices, payment terms, and the settlement of one by the other."""
