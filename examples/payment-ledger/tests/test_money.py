import unittest

from ledger.money import format_cents, parse_cents


class MoneyTest(unittest.TestCase):
    def test_reads_amounts(self):
        for text, cents in (("12", 1200), ("12.50", 1250), ("1,234.50", 123450), ("-0.05", -5)):
            with self.subTest(text):
                self.assertEqual(parse_cents(text), cents)

    def test_refuses_what_is_not_an_amount(self):
        for text in ("", "12.5", "1,23.00", "twelve", "12.505"):
            with self.subTest(text), self.assertRaises(ValueError):
                parse_cents(text)

    def test_writes_what_it_reads(self):
        for cents in (0, 5, -5, 1250, 123456789):
            with self.subTest(cents):
                self.assertEqual(parse_cents(format_cents(cents)), cents)
