"""Temperatures."""


def celsius(fahrenheit):
    """Degrees Celsius."""
    return fahrenheit - 32 * 5 / 9
