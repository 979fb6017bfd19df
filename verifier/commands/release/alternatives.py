"""What other ways of computing a norm would give on the same rows: the bounds that are proved of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from verifier.bounds.variance import algorithm, algorithms
from verifier.checks.support.row_errors import largest_bound
from verifier.checks.support.truth import Truth
from verifier.ops import op
from verifier.records.subject import Subject

WIDE_SUMS, COMPENSATED, WIDE_STATISTICS = "float32 sums", "compensated mean", "float32 saved statistics"
"""Names of what could be changed of a kernel, beside its variance algorithm."""
COMPENSATED_VARIANCE, COMPENSATED_FORM = "two_pass_corrected_mean", "compensated"
"""The algorithm that corrects its mean, and the form that subtracts both parts of it, where an op has it."""


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """A way of computing the same norm; algorithm: whether it differs in the variance algorithm alone."""

    name: str
    subject: Subject
    algorithm: bool = False


def alternatives(subject: Subject) -> Iterator[Alternative]:
    """Yield the declared way under other variance algorithms, and with one thing made more precise.

    Nothing is yielded of a subject that claims nothing: it has no bound to compare with.
    """
    the_op, claim = op(subject.op), subject.claim
    if the_op.own or not the_op.claimed(claim):
        return
    yield Alternative(
        name=WIDE_SUMS, subject=subject.differing(accumulates="float32", saved_dtype=claim.saved_dtype)
    )
    if the_op.differentiable and subject.differentiable:
        yield Alternative(name=WIDE_STATISTICS, subject=subject.differing(saved_dtype="float32"))
    if claim.variance is None or not the_op.needs_variance:
        return
    centred = algorithm(claim.variance).CENTRED
    if centred:
        form = {"formula": COMPENSATED_FORM} if COMPENSATED_FORM in the_op.forms else {}
        corrected = subject.differing(
            variance=COMPENSATED_VARIANCE, variance_options={"corrects_mean": True}, clamp=True, **form
        )
        yield Alternative(name=COMPENSATED, subject=corrected)
    for name, module in algorithms().items():
        if centred == module.CENTRED:
            other = subject if name == claim.variance else subject.differing(variance=name)
            yield Alternative(name=name, subject=other, algorithm=True)


def bounds_of_alternatives(truth: Truth, formats: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """Return the largest proved bounds by alternative and output, in ulp at the row's scale; NaN: none.

    formats: of the outputs that are asked for, by name.
    """
    found: dict[str, dict[str, float]] = {}
    for one in alternatives(truth.subject):
        setting = truth.setting.with_format(one.subject.accumulation(truth.case.dtype))
        other = truth.claimed_by(one.subject, setting)
        found[one.name] = {
            name: largest_bound(other, other.bounds, name, form) for name, form in formats.items()
        }
    return found
