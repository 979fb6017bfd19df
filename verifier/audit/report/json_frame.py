"""What every report has as JSON data, whatever it found: nothing heavy is imported for it."""

from __future__ import annotations

from collections.abc import Sequence

PARTS = (
    "subjects",
    "libraries",
    "unreached",
    "lines",
    "findings",
    "reach",
    "unusable",
    "errors",
    "unmet",
    "certificates",
)
"""Lists of a report, in their order."""


def frame(
    *,
    seed: int,
    budget: str,
    status: int,
    seconds: float = 0.0,
    interrupted: bool = False,
    packages: Sequence[str] = (),
    **parts: Sequence[object],
) -> dict[str, object]:
    """Return the document of a report; parts: those of its lists that are not empty.

    packages: what the results depend on besides what every one does.
    """
    return {
        "schema": 1,
        "versions": versions(*packages),
        "seed": seed,
        "budget": budget,
        "seconds": round(seconds, 3),
        "status": status,
        "interrupted": interrupted,
        **{name: parts.get(name, []) for name in PARTS},
    }


def versions(*packages: str) -> dict[str, object]:
    """Return the versions that a result depends on; packages: others besides the usual ones."""
    import platform
    from importlib import metadata

    names = ("norm-verifier", "torch", "triton", "numpy", "hypothesis", "mpmath", "python-flint")
    found: dict[str, object] = {"python": platform.python_version()}
    for name in (*names, *packages):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found
