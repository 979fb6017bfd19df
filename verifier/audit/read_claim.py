"""What a kernel computes whose declaration does not say: read from its compiled code, and proved there.

At one small shape the code is recorded, and the algorithms and forms are tried until one is proved to be what
was recorded. What was read of one shape is no claim about the others: there results may pass by its bounds,
and none is wrong by them alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from strategies.values import Values
from verifier.bounds.variance import algorithms
from verifier.bounds.variance.options import option_rules
from verifier.cases.recipe import Recipe, build, recorded_recipe
from verifier.checks.support.certificate_at_shape import first_certified
from verifier.execution import Runner
from verifier.execution.backends import backend
from verifier.ops import Op, op
from verifier.records.case import Case
from verifier.records.certificate import Certificate, Refusal
from verifier.records.subject import Subject

PLACE = "machine"
"""The backend that records."""
ROWS, COLUMNS = 2, 128
RECORDED = "the compiled code is recorded"
COMMONEST = ("two_pass", "rms", "welford", "textbook")
"""Algorithms that most kernels have, tried before the others."""
OPTIONS: Mapping[str, tuple[Mapping[str, object], ...]] = {
    "merge": (
        {"per_lane_means": True},
        {"merge": "weighted"},
        {"merge": "pooled"},
    ),
    "corrects_mean": ({"corrects_mean": True},),
}
"""What else may be claimed of algorithms that have the option of this name."""
SOFTMAX = "softmax"


@dataclass(frozen=True, kw_only=True)
class ReadClaim:
    """A subject with the claim that its code was proved to be at a shape, and the proof.

    depth: of its deepest sum there, in additions. backward: whether the backward pass was read, too.
    """

    subject: Subject
    certificate: Certificate
    depth: int
    backward: bool

    @property
    def algorithm(self) -> str:
        """What was read, in a word: the variance algorithm, or the form where bounds rest on none."""
        claim = self.subject.claim
        return claim.variance or str(claim.formula)

    @property
    def text(self) -> str:
        """Say what was read, and for which shape."""
        limits = [proof.within for proof in self.certificate.proofs if proof.within is not None]
        small = f" and no element exceeds 2^{min(limits)} in magnitude" if limits else ""
        return (
            f"{self.algorithm} was read from the compiled code at {ROWS}x{COLUMNS}, for all inputs of that "
            f"shape with which every value computed is finite{small}; no term of its sums meets more than "
            f"{self.depth} additions there (any order: up to {COLUMNS - 1})"
        )


def is_silent(subject: Subject) -> bool:
    """Return whether a declaration names nothing that bounds could rest on."""
    the_op = op(subject.op)
    return not the_op.own and not the_op.claimed(subject.claim)


def silent(subject: Subject) -> Subject:
    """Return a subject with nothing for bounds to rest on, as its declaration was."""
    formula = subject.claim.formula if op(subject.op).needs_variance else None
    return subject.differing(variance=None, formula=formula, read="")


def claims_of(subject: Subject, names: tuple[str, ...] | None = None) -> list[Subject]:
    """Return the subject with each claim that its code may have, the likeliest first.

    names: variance algorithms (None: all that the op may have). A form that the declaration names is kept. Of
    one that is not the first, only common algorithms without options are tried: a claim takes 0.1 to 0.5 s.
    """
    the_op = op(subject.op)
    declared = subject.claim.formula
    every: tuple[object, ...] = tuple(the_op.forms) if declared is None else (declared,)
    if not the_op.needs_variance:
        variance = SOFTMAX if SOFTMAX in the_op.name else None
        return [subject.differing(variance=variance, formula=form) for form in every]
    chosen = _by_likelihood(the_op) if names is None else names
    none: Mapping[str, object] = {}
    common = [(name, none, every[0]) for name in chosen]
    further = [(name, none, form) for form in every[1:] for name in chosen if name in COMMONEST]
    options = [(name, one, form) for name in chosen for one in _options(name) for form in _forms(every, one)]
    return [
        subject.differing(
            variance=name,
            variance_options=chosen_options,
            formula=form,
            mean_contraction="mixed",
            divide_by_n="either",
        )
        for name, chosen_options, form in (*common, *further, *options)
    ]


def _options(name: str) -> Iterator[Mapping[str, object]]:
    for option, values in OPTIONS.items():
        if option in option_rules(name):
            yield from values


def _forms(every: tuple[object, ...], options: Mapping[str, object]) -> tuple[object, ...]:
    """Return the forms to try beside options: of a corrected mean all, since one is made for it."""
    return every if "corrects_mean" in options else every[:1]


def _by_likelihood(the_op: Op) -> tuple[str, ...]:
    """Return the algorithms that compute a mean, or those that compute none, the common ones first."""
    known = [name for name, found in algorithms().items() if the_op.needs_mean == found.CENTRED]
    ranks = {name: rank for rank, name in enumerate(COMMONEST)}
    return tuple(sorted(known, key=lambda name: (ranks.get(name, len(ranks)), name)))


def case_read(subject: Subject, dtype: str, *, gradients: bool) -> Case | None:
    """Return the case at which code is read where none is given; None: the subject takes no such case.

    A mask that may be left out is: it would be data that decides, of which no expression is recorded.
    """
    the_op = op(subject.op)
    unmasked = recorded_recipe(the_op, subject, ROWS, COLUMNS, Values()).further
    recipe = Recipe(rows=ROWS, columns=COLUMNS, weight=Values(seed=1), bias=Values(seed=2), further=unmasked)
    return build(the_op, subject, dtype, recipe, gradients=gradients)


def read_claim(
    subject: Subject,
    runner: Runner,
    dtype: str,
    *,
    names: tuple[str, ...] | None = None,
    case: Case | None = None,
    gradients: bool = True,
) -> ReadClaim | Refusal:
    """Return what the code is proved to be, or why nothing was.

    subject: with all else that is claimed. names: algorithms to try (None: all that the op may have). case:
    at which it is read (None: one of 2 x 128). gradients: read the backward pass, too, where it can be.

    The algorithm is found in the forward pass, and the form then in both.
    """
    if runner.backend != PLACE:
        return Refusal(stage=RECORDED, why=f"{runner.backend} records nothing")
    the_op = op(subject.op)
    case = case or case_read(subject, dtype, gradients=subject.differentiable)
    if case is None:
        return Refusal(stage=RECORDED, why=f"the subject takes no {ROWS} x {COLUMNS}")
    found = first_certified(claims_of(subject, names), case, runner=runner)
    if isinstance(found, Refusal):
        return found
    backward = gradients and subject.differentiable and bool(the_op.differentiable)
    if backward:
        open_form = subject.claim.formula is None
        claims = _in_each_form(found.subject) if open_form else [found.subject]
        both = first_certified(claims, case, runner=runner, gradients=True)
        backward = not isinstance(both, Refusal)
        found = found if isinstance(both, Refusal) else both
    depths = [one.depth for proof in found.certificate.proofs for one in proof.sums]
    return ReadClaim(
        subject=found.subject,
        certificate=found.certificate,
        depth=max(depths, default=0),
        backward=backward,
    )


def _in_each_form(claimed: Subject) -> list[Subject]:
    """Return a claim in each form of its op, its own first."""
    forms = (claimed.claim.formula, *op(claimed.op).forms)
    options = claimed.claim.variance_options
    return [
        claimed.differing(variance=claimed.claim.variance, variance_options=options, formula=form)
        for form in dict.fromkeys(forms)
    ]


def claimed_at(subject: Subject, case: Case, runner: Runner, *, gradients: bool) -> Subject:
    """Return the subject with its claim at a case: its own, or what its code is proved to be there.

    Where neither is, it is the same subject, which claims nothing.
    """
    if not is_silent(subject):
        return subject
    found = read_claim(subject, runner, case.dtype, case=case, gradients=gradients)
    return subject if isinstance(found, Refusal) else found.subject


_read: dict[tuple[str, str, str], ReadClaim | Refusal] = {}
"""What this process has read, by file, subject and dtype."""


def with_read_claim(subject: Subject, runner: Runner, dtype: str) -> Subject:
    """Return the subject with what was read of its code as its claim, where its declaration names nothing.

    Where nothing could be read, it is the same subject.
    """
    if runner.backend != PLACE or not is_silent(subject) or backend(PLACE).refuses(subject, dtype):
        return subject
    key = _key(subject, dtype)
    if key not in _read:
        # A process tells once what it has run of the sources: that of the audit is to tell it to its lines.
        with Runner(runner.backend, options=runner.options) as own:
            _read[key] = read_claim(subject, own, dtype)
    found = _read[key]
    if isinstance(found, Refusal):
        return subject
    return found.subject.differing(read=f"read at {ROWS}x{COLUMNS}")


def why_unread(subject: Subject, dtype: str) -> str:
    """Say why nothing was read of a declaration that names nothing; "" where nothing was asked for."""
    found = _read.get(_key(subject, dtype)) if is_silent(subject) else None
    return f"it was not shown that {found.stage} ({found.why})" if isinstance(found, Refusal) else ""


def _key(subject: Subject, dtype: str) -> tuple[str, str, str]:
    return str(subject.path), subject.name, dtype
