"""Leap years of the Gregorian calendar."""


def is_leap(year):
    """Every fourth year is one, of the centuries only every fourth."""
    return year % 4 == 0 and year % 100 != 0
