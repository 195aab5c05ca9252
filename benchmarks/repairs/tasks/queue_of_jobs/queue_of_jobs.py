"""Jobs by priority."""

import heapq


class Jobs:
    """The lowest number goes first; those of one number go in the order in which they came."""

    def __init__(self):
        self._heap = []

    def add(self, priority, job):
        heapq.heappush(self._heap, (priority, job))

    def take(self):
        return heapq.heappop(self._heap)[1]
