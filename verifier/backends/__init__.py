"""Places where subjects run, one file each.

A module of this folder is a backend when it defines `NAME` and

- `SUMMARY`: one line on what runs there,
- `LANGUAGES`: the languages of subjects it can run,
- `unavailable() -> str | None`: why it cannot be used here and how to get it, or None,
- `refuses(subject, dtype) -> str | None`: why it does not run this subject with this dtype,
- `setting(subject, dtype) -> Setting`: the arithmetic and trees in force there,
- `environment() -> dict[str, str]`: environment variables of its child process,

and, called in the child: `prepare(**options)`, `device() -> str`, `begin()`, `finish()`,
`launches() -> int` (kernel launches since `begin`), `launched(subject) -> int | None` (those that the process
has seen, None where kernels may run unseen) and `facts(error=None) -> dict`; a place that can
run otherwise in some respect offers `varied(**changes)`, a context manager, one that has the code of
what it launched `compiled(host) -> Compiled | None`, from which the bounds take what is not declared, and one
that sees launches fail `failed() -> Exception | None`, the first since `begin`; one that plays a device says
in `lacks(error) -> str | None` which failures are its own limits.
Being in the folder is the registration. A backend's packages are imported inside its functions.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import Any

from verifier.subjects import Subject

ORDER = ("cuda", "machine", "interpreter", "eager")
"""Preference where several backends can run a subject."""


@cache
def backends() -> dict[str, Any]:
    """Return all backends by name, in order of preference."""
    found = (importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__))
    named = {module.NAME: module for module in found if hasattr(module, "NAME")}
    return dict(sorted(named.items(), key=lambda item: (*_rank(item[0]), item[0])))


def _rank(name: str) -> tuple[int]:
    return (ORDER.index(name) if name in ORDER else len(ORDER),)


def backend(name: str) -> Any:
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
        if subject.language not in place.LANGUAGES:
            continue
        missing = place.unavailable()
        if missing is None:
            return name, ""
        reasons.append(f"{name}: {missing}")
    return None, "; ".join(reasons) or f"no backend runs subjects in {subject.language}"
