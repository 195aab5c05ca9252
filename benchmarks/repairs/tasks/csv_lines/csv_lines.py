"""Lines of comma-separated values."""


def line(values):
    """Values with a comma, a quote or a line's end are quoted, and quotes in them doubled."""
    return ",".join(f'"{value}"' if "," in value else value for value in values)
