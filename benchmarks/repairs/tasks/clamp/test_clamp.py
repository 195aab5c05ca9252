import unittest

from clamp import clamp


class TestClamp(unittest.TestCase):
    def test_inside(self):
        self.assertEqual(clamp(5, 0, 9), 5)

    def test_outside(self):
        self.assertEqual(clamp(-1, 0, 9), 0)
        self.assertEqual(clamp(12, 0, 9), 9)


if __name__ == "__main__":
    unittest.main()
