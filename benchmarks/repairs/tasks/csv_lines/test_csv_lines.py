import unittest

from csv_lines import line


class TestCsvLines(unittest.TestCase):
    def test_commas(self):
        self.assertEqual(line(['a', 'b,c']), 'a,"b,c"')

    def test_quotes(self):
        self.assertEqual(line(['say "x"']), '"say ""x"""')


if __name__ == "__main__":
    unittest.main()
