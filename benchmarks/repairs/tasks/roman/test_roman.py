import unittest

from roman import parse


class TestRoman(unittest.TestCase):
    def test_sums(self):
        self.assertEqual(parse('MDCLXVI'), 1666)

    def test_differences(self):
        self.assertEqual(parse('MCMXCIV'), 1994)


if __name__ == "__main__":
    unittest.main()
