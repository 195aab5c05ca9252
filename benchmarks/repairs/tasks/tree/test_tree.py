import unittest

from tree import depth


class TestTree(unittest.TestCase):
    def test_leaf(self):
        self.assertEqual(depth({}), 1)

    def test_levels(self):
        self.assertEqual(depth({'a': {'b': {}}, 'c': {}}), 3)


if __name__ == "__main__":
    unittest.main()
