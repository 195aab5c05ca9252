import unittest

from versions import newest


class TestVersions(unittest.TestCase):
    def test_digits(self):
        self.assertEqual(newest(['1.2', '1.3']), '1.3')

    def test_numbers(self):
        self.assertEqual(newest(['1.9', '1.10']), '1.10')


if __name__ == "__main__":
    unittest.main()
