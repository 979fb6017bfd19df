"""What is demanded of a normalization kernel, and the proof that it is met or not.

Public names are imported on first use, so that `import verifier` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verifier.conformance import conformance_tests
    from verifier.cuda_source import source
    from verifier.loading import load
    from verifier.numbers import Form, Terms
    from verifier.subjects import Claim, Domain, KnownDefect, Subject, Trees, subject
    from verifier.trees import any_order, pairwise, sequential, tile, tree

__version__ = "0.1.0"

_HOMES = {
    "Claim": "subjects",
    "Domain": "subjects",
    "Form": "numbers",
    "KnownDefect": "subjects",
    "Subject": "subjects",
    "Terms": "numbers",
    "Trees": "subjects",
    "any_order": "trees",
    "conformance_tests": "conformance",
    "load": "loading",
    "pairwise": "trees",
    "sequential": "trees",
    "source": "cuda_source",
    "subject": "subjects",
    "tile": "trees",
    "tree": "trees",
}

__all__ = [
    "Claim",
    "Domain",
    "Form",
    "KnownDefect",
    "Subject",
    "Terms",
    "Trees",
    "any_order",
    "conformance_tests",
    "load",
    "pairwise",
    "sequential",
    "source",
    "subject",
    "tile",
    "tree",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'verifier' has no attribute {name!r}")
    return getattr(importlib.import_module(f"verifier.{_HOMES[name]}"), name)
