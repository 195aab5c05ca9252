"""Titles as parts of addresses."""

import re


def slug(title):
    """Lower case, words joined by one hyphen, none at the ends."""
    return re.sub("[^a-z0-9]", "-", title.lower())
