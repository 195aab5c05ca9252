import unittest
from datetime import date

from ledger.terms import due_date


class TermsTest(unittest.TestCase):
    def test_net_days_cross_the_end_of_the_month(self):
        self.assertEqual(due_date(date(2025, 1, 31), "net 30"), date(2025, 3, 2))

    def test_end_of_month_knows_leap_years_and_december(self):
        self.assertEqual(due_date(date(2024, 2, 10), "End of month"), date(2024, 2, 29))
        self.assertEqual(due_date(date(2024, 12, 31), "end of month"), date(2024, 12, 31))

    def test_on_receipt_is_the_same_day(self):
        self.assertEqual(due_date(date(2025, 5, 1), "on receipt"), date(2025, 5, 1))

    def test_unknown_terms_are_refused(self):
        with self.assertRaises(ValueError):
            due_date(date(2025, 5, 1), "whenever")
