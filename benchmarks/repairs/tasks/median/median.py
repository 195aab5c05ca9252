"""The median of numbers."""


def median(numbers):
    """The middle number, or the mean of the two in the middle."""
    ordered = sorted(numbers)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle] + ordered[middle + 1]) / 2
