import unittest

from slugs import slug


class TestSlugs(unittest.TestCase):
    def test_words(self):
        self.assertEqual(slug('Hello World'), 'hello-world')

    def test_signs(self):
        self.assertEqual(slug('  Rock & Roll! '), 'rock-roll')


if __name__ == "__main__":
    unittest.main()
