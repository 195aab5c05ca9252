import unittest

from money import split


class TestMoney(unittest.TestCase):
    def test_even(self):
        self.assertEqual(split(90, 3), [30, 30, 30])

    def test_rest(self):
        self.assertEqual(split(100, 3), [34, 33, 33])


if __name__ == "__main__":
    unittest.main()
