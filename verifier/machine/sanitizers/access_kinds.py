"""Kinds of accesses as those who look for races take them."""


def kind_in_races(kind: str, *, ordered_alone: bool) -> str:
    """Return "read", "write" or "atomic" for what a monitor is told.

    Two strong accesses are no data race, as two atomics are none. ordered_alone: whether they are to be
    ordered all the same, since what is read depends on which comes first.
    """
    strength, _, plain = kind.rpartition(" ")
    return "atomic" if strength == "strong" and not ordered_alone else plain
