"""Lists in pieces."""


def chunks(items, size):
    """Pieces of `size` items, of which the last may be shorter."""
    return [items[start : start + size] for start in range(0, len(items) - 1, size)]
