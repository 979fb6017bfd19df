"""Judges one case of each kind before all others: what is wrong everywhere shows in seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strategies.layouts import Layout
from verifier.audit.news import FirstCases
from verifier.cases.recipe import Recipe
from verifier.records.case import Case
from verifier.records.subject import Subject

if TYPE_CHECKING:
    from verifier.audit.examination import Examination


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of case, in words; fits: whether a case of the check's fixed list is one."""

    check: str
    words: str
    fits: Callable[[Subject, Recipe, Case], bool]


def _any(_subject: Subject, _recipe: Recipe, _case: Case) -> bool:
    return True


def _strided(_subject: Subject, _recipe: Recipe, case: Case) -> bool:
    layout, shape = case.layouts.get("input"), tuple(case.given["input"].shape)
    return layout is not None and layout.strides(shape) != Layout().strides(shape)


def _one_row(_subject: Subject, recipe: Recipe, _case: Case) -> bool:
    return recipe.rows == 1


def _without_weight(subject: Subject, _recipe: Recipe, case: Case) -> bool:
    return "weight" in subject.signature and "weight" not in case.given


def _no_rows(_subject: Subject, recipe: Recipe, _case: Case) -> bool:
    return recipe.rows == 0


KINDS = (
    Kind(check="forward_error", words="ordinary", fits=_any),
    Kind(check="gradient", words="gradient", fits=_any),
    Kind(check="layouts", words="strided input", fits=_strided),
    Kind(check="forward_error", words="one row", fits=_one_row),
    Kind(check="forward_error", words="without weight", fits=_without_weight),
    Kind(check="forward_error", words="no rows", fits=_no_rows),
)
"""Those that most often fail come first. The first case of a fixed list has several short rows."""
CHECKS = frozenset(kind.check for kind in KINDS)


def try_first_cases(examinations: Mapping[str, Examination], tell: Callable[[FirstCases], None]) -> None:
    """Judge a case of each kind by the checks of one subject and dtype, until one is a finding.

    What came of it is told before the finding is shrunk. The examinations keep what was judged: their
    searches meet the same cases in their fixed lists, and count them there.
    """
    judged: FirstCases = ()
    for kind in KINDS:
        examination = examinations.get(kind.check)
        tried = None if examination is None else examination.try_ahead(kind.fits)
        if examination is None or tried is None:
            continue
        judged = (*judged, (kind.words, tried.verdict))
        if tried.failure is not None:
            tell(judged)
            examination.report(tried.failure)
            return
    if judged:
        tell(judged)
