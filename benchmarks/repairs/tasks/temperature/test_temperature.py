import unittest

from temperature import celsius


class TestTemperature(unittest.TestCase):
    def test_ice(self):
        self.assertEqual(celsius(32), 0)

    def test_steam(self):
        self.assertEqual(celsius(212), 100)


if __name__ == "__main__":
    unittest.main()
