import unittest

from cache import Cache


class TestCache(unittest.TestCase):
    def test_bound(self):
        cache = Cache(1)
        cache.put('a', 1)
        cache.put('b', 2)
        self.assertEqual(cache.get('a'), None)

    def test_use(self):
        cache = Cache(2)
        cache.put('a', 1)
        cache.put('b', 2)
        cache.get('a')
        cache.put('c', 3)
        self.assertEqual(cache.get('a'), 1)


if __name__ == "__main__":
    unittest.main()
