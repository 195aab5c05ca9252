"""Words of a text."""


def count(text):
    """How often each word occurs, case and signs apart."""
    counts = {}
    for word in text.split(" "):
        counts[word] = counts.get(word, 0) + 1
    return counts
