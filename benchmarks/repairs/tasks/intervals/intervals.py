"""Intervals of numbers."""


def merge(intervals):
    """Those that overlap or touch are one, in order."""
    merged = []
    for low, high in sorted(intervals):
        if merged and low < merged[-1][1]:
            merged[-1] = (merged[-1][0], high)
        else:
            merged.append((low, high))
    return merged
