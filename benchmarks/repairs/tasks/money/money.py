"""Amounts in cents."""


def split(cents, people):
    """Equal shares; the first ones have a cent more where it does not divide."""
    return [cents // people] * people
