"""A tree of names."""


def depth(tree):
    """The number of levels; a tree is a dict of trees."""
    return max(depth(branch) for branch in tree.values()) + 1
