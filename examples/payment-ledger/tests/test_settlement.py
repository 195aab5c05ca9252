import unittest
from datetime import date

from ledger.invoice import Invoice
from ledger.settlement import settle


class SettlementTest(unittest.TestCase):
    def setUp(self):
        self.march = Invoice("2025-017", date(2025, 3, 3), "net 30", 40_000)
        self.april = Invoice("2025-024", date(2025, 4, 1), "net 14", 25_000)

    def test_part_payment_goes_to_the_invoice_due_first(self):
        settlement = settle([self.april, self.march], 15_000)
        self.assertEqual(settlement.parts, (("2025-017", 15_000),))
        self.assertEqual(settlement.credit_cents, 0)
        self.assertEqual(self.march.outstanding_cents, 25_000)

    def test_one_payment_over_several_invoices(self):
        settlement = settle([self.march, self.april], 50_000)
        self.assertEqual(settlement.parts, (("2025-017", 40_000), ("2025-024", 10_000)))
        self.assertEqual(settlement.credit_cents, 0)
        self.assertTrue(self.april.is_overdue(date(2025, 5, 1)))

    def test_paid_invoices_take_nothing(self):
        self.march.pay(40_000)
        settlement = settle([self.march, self.april], 25_000)
        self.assertEqual(settlement.parts, (("2025-024", 25_000),))

    def test_a_payment_must_be_positive(self):
        with self.assertRaises(ValueError):
            settle([self.march], 0)
