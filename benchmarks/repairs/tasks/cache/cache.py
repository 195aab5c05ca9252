"""A cache of bounded size."""


class Cache:
    """Keeps `size` values; the one that was used longest ago goes first."""

    def __init__(self, size):
        self.size = size
        self.values = {}

    def put(self, key, value):
        self.values.pop(key, None)
        self.values[key] = value
        if len(self.values) > self.size:
            del self.values[next(iter(self.values))]

    def get(self, key):
        return self.values.get(key)
