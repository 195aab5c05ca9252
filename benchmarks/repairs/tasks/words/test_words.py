import unittest

from words import count


class TestWords(unittest.TestCase):
    def test_spaces(self):
        self.assertEqual(count('a  b a'), {'a': 2, 'b': 1})

    def test_signs(self):
        self.assertEqual(count('Yes, yes!'), {'yes': 2})


if __name__ == "__main__":
    unittest.main()
