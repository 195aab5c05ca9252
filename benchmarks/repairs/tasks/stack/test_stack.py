import unittest

from stack import Stack


class TestStack(unittest.TestCase):
    def test_order(self):
        stack = Stack()
        stack.push(1)
        stack.push(2)
        self.assertEqual(stack.pop(), 2)

    def test_apart(self):
        Stack().push(1)
        self.assertRaises(IndexError, lambda: Stack().pop())


if __name__ == "__main__":
    unittest.main()
