"""Durations as text."""


def text(seconds):
    """Hours, minutes and seconds: 1:02:03."""
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes}:{seconds}"
