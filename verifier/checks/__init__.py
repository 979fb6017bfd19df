"""Checks, one file each: one demand on a subject.

A module of this folder is a check when it defines `NAME` and all else that `support.check.Check` names, but
for what is optional there. Being in the folder is the registration.
"""

from __future__ import annotations

from functools import cache

from strategies.registry import registry
from verifier.checks.support.check import Check, completed
from verifier.execution.preloaded import preload


@cache
def checks() -> dict[str, Check]:
    """Return all checks by name, in the order in which they are run: their `ORDER`, then their name."""
    modules = registry(__name__, "NAME")
    preload(module.__name__ for module in modules.values())  # their experiments run in children
    named = {name: completed(module) for name, module in modules.items()}
    return dict(sorted(named.items(), key=lambda item: item[1].ORDER))


def check(name: str) -> Check:
    """Return the check of that name.

    Raises:
        ValueError: there is none.

    """
    known = checks()
    if name not in known:
        raise ValueError(f"no check {name!r}; there are: {', '.join(known)}")
    return known[name]
