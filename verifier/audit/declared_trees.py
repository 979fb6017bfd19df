"""Holds declared trees against the sums that the compiled code makes, at one small shape.

A sum that is deeper than declared may err by more than its bound; one that is less deep has a smaller bound.
Neither is a finding by itself: results are held against the bound of what is declared.
"""

from __future__ import annotations

from collections.abc import Iterator

from verifier.audit import rules
from verifier.audit.claims_at_cases import own_runner
from verifier.audit.read_claim import COLUMNS, PLACE, ROWS, case_read
from verifier.checks.support.certificate_at_shape import first_certified
from verifier.checks.support.proved_claim import attempts, depths_read
from verifier.execution import Runner
from verifier.ops import op
from verifier.records.certificate import Refusal
from verifier.records.subject import Subject, Trees
from verifier.records.verdict import ReadTree

WORDS = {"statistics": "statistics", "row_gradients": "row gradients", "columns": "columns"}

DEEPER = "deeper than declared, so that the bound it is held to is not proved of it"
SHALLOWER = "less deep than declared, so that its own bound is smaller"
_known: dict[tuple[str, str, str, bool], tuple[ReadTree, ...] | str] = {}
"""What this process has read, by file, subject, dtype and whether with gradients."""


def compiled_trees(
    subject: Subject, runner: Runner, dtype: str, *, gradients: bool
) -> tuple[ReadTree, ...] | str:
    """Return how deep the code makes the sums of which a tree is declared; or why that is not known.

    gradients: of the backward pass, too.
    """
    if not (declares_trees(subject) and op(subject.op).claimed(subject.claim)):
        return ()
    if runner.backend != PLACE or subject.language == "torch":
        return ()
    key = str(subject.path), subject.name, dtype, gradients
    if key not in _known:
        _known[key] = _read(subject, runner, dtype, gradients=gradients)
    return _known[key]


def declares_trees(subject: Subject) -> bool:
    """Return whether any tree is declared."""
    trees = subject.claim.trees
    return any(one.declared for one in (trees.statistics, trees.row_gradients, trees.columns))


def _read(subject: Subject, runner: Runner, dtype: str, *, gradients: bool) -> tuple[ReadTree, ...] | str:
    case = case_read(subject, dtype, gradients=gradients)
    if case is None or rules.outside(subject, case):
        return f"the subject takes no {ROWS} x {COLUMNS}"
    bare = subject.differing(trees=Trees())
    found = first_certified((bare, *attempts(subject)), case, runner=own_runner(runner), gradients=gradients)
    if isinstance(found, Refusal):
        return f"it was not shown that {found.stage} ({found.why})"
    return depths_read(found, subject.claim.trees, case)


def told(read: tuple[ReadTree, ...] | str) -> Iterator[str]:
    """Yield, in words, which declared trees are not those of the code, or that nothing is known of them."""
    if isinstance(read, str):
        yield f"declared trees were not held against the compiled code: {read}"
        return
    for one in read:
        if one.compiled == one.declared:
            continue
        deeper = one.compiled > one.declared
        text = (
            f"the declared tree of {WORDS[one.role]} lets a term of {one.terms} meet {one.declared} "
            f"addition(s), in the compiled code it meets {one.compiled} at {one.rows}x{one.columns}"
        )
        yield f"{text}: {DEEPER if deeper else SHALLOWER}"
