"""Says in words what a subject claims, and what was assumed because it does not say."""

from __future__ import annotations

from verifier.arithmetic.trees.tree import Tree
from verifier.ops import Setting, op
from verifier.records.subject import INPUT, Subject


def tree_text(tree: Tree) -> str:
    """Return a tree in a few words."""
    words = {
        "any_order": "any order",
        "sequential": "sequential",
        "pairwise": "pairwise",
        "lanes": f"{tree.lanes} lanes",
        "chunks": f"{tree.lanes} chunks",
        "custom": "declared depth",
    }
    return words[tree.kind]


def _option_text(value: object) -> str:
    return tree_text(value) if isinstance(value, Tree) else str(value)


def declaration_text(subject: Subject, dtype: str, setting: Setting) -> str:
    """Return the declaration on one line, with what is assumed marked so."""
    claim = subject.claim
    if op(subject.op).own:
        return "the subject's own specification, no algorithm"
    claimed = op(subject.op).claimed(claim)
    form = op(subject.op).form(claim, dtype).name if claimed else "none declared"
    parts = {
        "variance": claim.variance or "none declared",
        **{name: _option_text(value) for name, value in claim.variance_options.items()},
        "accumulates": subject.accumulation(dtype),
        "formula": form,
        "tree": tree_text(setting.trees.statistics),
        "columns tree": tree_text(setting.trees.columns),
        "mean_contraction": claim.mean_contraction,
        "divide_by_n": claim.divide_by_n,
        "saved_dtype": claim.saved_dtype or subject.accumulation(dtype),
    }
    if claim.fully_masked is not None:
        parts["fully_masked"] = claim.fully_masked
    if subject.parameter_dtypes != (INPUT,):
        parts["parameters"] = " or ".join(subject.parameter_dtypes)
    if subject.residual_dtypes != (INPUT,):
        parts["residual"] = " or ".join(subject.residual_dtypes)
    unclaimed = frozenset() if claimed else frozenset({"formula"})
    marks = {"tree": "trees", "columns tree": "trees"}
    read = {"variance", "formula"} if claim.read else set()
    texts = [
        f"{name} {value}"
        + (f" ({claim.read})" if name in read else "")
        + (" (assumed)" if marks.get(name, name) in claim.assumed - unclaimed - read else "")
        for name, value in parts.items()
    ]
    return ", ".join(texts)
