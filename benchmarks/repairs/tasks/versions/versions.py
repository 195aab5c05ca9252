"""Versions of programs."""


def newest(versions):
    """The highest of versions like 1.10.2."""
    return max(versions)
