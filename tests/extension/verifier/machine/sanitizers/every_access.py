"""Counts the accesses of a launch."""

SANITIZES = frozenset({"every_access"})
COUNTS = []


class Counting:
    def __init__(self):
        COUNTS.append(0)

    def access(self, *described):
        COUNTS[-1] += 1

    def barrier(self, wave, lanes):
        pass

    def ordering(self, wave, site, lanes, words):
        pass


def monitor(machine, *, replicated):
    return Counting()
