import unittest

from durations import text


class TestDurations(unittest.TestCase):
    def test_long(self):
        self.assertEqual(text(45296), '12:34:56')

    def test_zeros(self):
        self.assertEqual(text(3723), '1:02:03')


if __name__ == "__main__":
    unittest.main()
