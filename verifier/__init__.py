"""What is demanded of a normalization kernel, and the proof that it is met or not.

Public names are imported on first use, so that `import verifier` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verifier.arithmetic.abstract_number import Form, Terms
    from verifier.arithmetic.trees.tree import (
        Stages,
        any_order,
        either,
        pairwise,
        sequential,
        tile,
        torch_cascade,
        tree,
    )
    from verifier.commands.conformance import conformance_tests
    from verifier.commands.drawn_arguments import call_arguments
    from verifier.records.library import Library
    from verifier.records.subject import Claim, Domain, KnownDefect, Source, Subject, Trees
    from verifier.subjects.cuda_source import source
    from verifier.subjects.declare import subject
    from verifier.subjects.load_file import load

__version__ = "0.1.0"

_HOMES = {
    "Claim": "records.subject",
    "Domain": "records.subject",
    "Form": "arithmetic.abstract_number",
    "KnownDefect": "records.subject",
    "Library": "records.library",
    "Source": "records.subject",
    "Stages": "arithmetic.trees.tree",
    "Subject": "records.subject",
    "Terms": "arithmetic.abstract_number",
    "Trees": "records.subject",
    "any_order": "arithmetic.trees.tree",
    "call_arguments": "commands.drawn_arguments",
    "conformance_tests": "commands.conformance",
    "either": "arithmetic.trees.tree",
    "load": "subjects.load_file",
    "pairwise": "arithmetic.trees.tree",
    "sequential": "arithmetic.trees.tree",
    "source": "subjects.cuda_source",
    "subject": "subjects.declare",
    "tile": "arithmetic.trees.tree",
    "torch_cascade": "arithmetic.trees.tree",
    "tree": "arithmetic.trees.tree",
}

__all__ = [
    "Claim",
    "Domain",
    "Form",
    "KnownDefect",
    "Library",
    "Source",
    "Stages",
    "Subject",
    "Terms",
    "Trees",
    "any_order",
    "call_arguments",
    "conformance_tests",
    "either",
    "load",
    "pairwise",
    "sequential",
    "source",
    "subject",
    "tile",
    "torch_cascade",
    "tree",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'verifier' has no attribute {name!r}")
    return getattr(importlib.import_module(f"verifier.{_HOMES[name]}"), name)
