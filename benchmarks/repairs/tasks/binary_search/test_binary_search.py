import unittest

from binary_search import find


class TestBinarySearch(unittest.TestCase):
    def test_missing(self):
        self.assertEqual(find([1, 3], 2), -1)
        self.assertEqual(find([], 1), -1)

    def test_each(self):
        self.assertEqual([find([1, 3, 5], n) for n in (1, 3, 5)], [0, 1, 2])


if __name__ == "__main__":
    unittest.main()
