"""A stack."""


class Stack:
    """What was pushed last is popped first."""

    items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        return self.items.pop()
