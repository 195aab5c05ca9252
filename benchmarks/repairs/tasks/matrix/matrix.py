"""Matrices as lists of rows."""


def transpose(rows):
    """Rows become columns."""
    return [[row[index] for row in rows] for index in range(len(rows))]
