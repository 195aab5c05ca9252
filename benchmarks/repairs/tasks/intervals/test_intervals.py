import unittest

from intervals import merge


class TestIntervals(unittest.TestCase):
    def test_apart(self):
        self.assertEqual(merge([(3, 4), (1, 2)]), [(1, 2), (3, 4)])

    def test_joined(self):
        self.assertEqual(merge([(1, 2), (2, 3)]), [(1, 3)])
        self.assertEqual(merge([(1, 9), (2, 3)]), [(1, 9)])


if __name__ == "__main__":
    unittest.main()
