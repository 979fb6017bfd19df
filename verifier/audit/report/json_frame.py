"""What every report has as JSON data, whatever it found: nothing heavy is imported for it."""

from __future__ import annotations

from collections.abc import Sequence

PARTS = ("subjects", "unreached", "lines", "findings", "reach", "unusable", "errors", "unmet", "certificates")
"""Lists of a report, in their order."""


def frame(
    *,
    seed: int,
    budget: str,
    status: int,
    seconds: float = 0.0,
    interrupted: bool = False,
    **parts: Sequence[object],
) -> dict[str, object]:
    """Return the document of a report; parts: those of its lists that are not empty."""
    return {
        "schema": 1,
        "versions": versions(),
        "seed": seed,
        "budget": budget,
        "seconds": round(seconds, 3),
        "status": status,
        "interrupted": interrupted,
        **{name: parts.get(name, []) for name in PARTS},
    }


def versions() -> dict[str, object]:
    """Return the versions that a result depends on."""
    import platform
    from importlib import metadata

    names = ("norm-verifier", "torch", "triton", "numpy", "hypothesis", "mpmath", "python-flint")
    found: dict[str, object] = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found
