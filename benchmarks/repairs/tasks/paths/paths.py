"""Paths of addresses."""


def join(*parts):
    """One slash between the parts, none lost at the beginning."""
    return "/".join(part.strip("/") for part in parts)
