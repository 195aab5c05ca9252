import unittest

from chunks import chunks


class TestChunks(unittest.TestCase):
    def test_even(self):
        self.assertEqual(chunks([1, 2, 3, 4], 2), [[1, 2], [3, 4]])

    def test_rest(self):
        self.assertEqual(chunks([1, 2, 3], 2), [[1, 2], [3]])
        self.assertEqual(chunks([1], 2), [[1]])


if __name__ == "__main__":
    unittest.main()
