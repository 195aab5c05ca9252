"""Numbers within bounds."""


def clamp(value, low, high):
    """The number nearest to `value` that is neither below `low` nor above `high`."""
    return min(low, max(value, high))
