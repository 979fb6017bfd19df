"""Places where subjects run, one file each.

A module of this folder adds a backend when it defines `BACKEND`, an object that is a
`verifier.execution.backend.Backend`; that Protocol is the contract, and a class that inherits from it writes
only what differs from torch on the CPU.
Being in the folder is the registration. A backend's packages are imported inside its methods.
"""

from __future__ import annotations

from functools import cache

from strategies.registry import registry
from verifier.execution.backend import Backend, Power
from verifier.records.subject import Subject


@cache
def backends() -> dict[str, Backend]:
    """Return all backends by name, in order of preference."""
    known: list[Backend] = [module.BACKEND for module in registry(__name__, "BACKEND").values()]
    return {place.name: place for place in sorted(known, key=lambda place: place.preference)}


def backend(name: str) -> Backend:
    """Return the backend of that name.

    Raises:
        ValueError: there is none.

    """
    known = backends()
    if name not in known:
        raise ValueError(f"no backend {name!r}; there are: {', '.join(known)}")
    return known[name]


def default_backend(subject: Subject) -> tuple[str | None, str]:
    """Return the first available backend that runs the subject's language, or None and why there is none."""
    reasons = []
    for name, place in backends().items():
        if subject.language not in place.languages:
            continue
        missing = place.unavailable()
        if missing is None:
            return name, ""
        reasons.append(f"{name}: {missing}")
    return None, "; ".join(reasons) or f"no backend runs subjects in {subject.language}"


def can(name: str, power: Power) -> bool:
    """Return whether the backend of that name has a power."""
    return power in backend(name).powers
