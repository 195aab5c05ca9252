import unittest

from paths import join


class TestPaths(unittest.TestCase):
    def test_slashes(self):
        self.assertEqual(join('a/', '/b'), 'a/b')

    def test_root(self):
        self.assertEqual(join('/a', '', 'b'), '/a/b')


if __name__ == "__main__":
    unittest.main()
