"""A kernel writes what is its own, all of it, and computes with nothing that nobody wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from strategies.placement import BITS
from verifier.cases.plan import Plan
from verifier.checks.support.session import Session
from verifier.checks.support.undefined_lanes import UndefinedLanes, compare_fills
from verifier.execution.backend import Backend, Power
from verifier.execution.backends import can
from verifier.execution.call_subject import execute
from verifier.ops import Op
from verifier.records.case import Case
from verifier.records.observation import Deviation, Observation
from verifier.records.subject import Subject
from verifier.records.verdict import Measured, Outcome, Verdict

NAME = "memory"
ORDER = 50
DEMANDS = (
    "the kernel changes neither its inputs nor the memory around its tensors, and its results depend neither"
    " on what fresh memory held before nor, on the backend `machine`, on lanes that the mask of a Triton load"
    " without `other` leaves undefined"
)
WHY = (
    "a kernel stores one element past the end, reads partial sums that nobody set to zero, overwrites an"
    " input, or sums lanes that are zero by luck of the compiler: most runs do not show it"
)
CATCHES = (
    "writes_past_the_end",
    "reads_uninitialised_partials",
    "reads_unwritten_maxima_triton",
    "modifies_input",
    "one_added_to_weight_in_place",
    "sums_undefined_lanes_triton",
)


def plan(subject: Subject, op: Op) -> Plan:
    """Ask for ordinary values, padded and not, at many extents."""
    return Plan(
        gradients=subject.differentiable or not op.differentiable,
        layouts=("contiguous", "padded_rows", "storage_offset"),
        hazards=("ordinary",),
        joint=False,
        max_elements=8192,
        eps=(1e-5,),
        reaching=True,
        parameter_dtypes=True,
    )


ROUNDS = 6
"""Runs of all poisons at most, until what differs has been seen to differ from run to run anyway."""

_FINITE = {"finite": "a finite pattern", "positive": "a positive pattern"}
"""A maximum swallows NaN and large negative numbers, a minimum NaN and large positive ones."""


def check(session: Session) -> list[Outcome]:
    """Run with three poisons in fresh memory, and in undefined lanes; compare bits, red zones and inputs."""
    backward = bool(session.op.differentiable) and session.subject.differentiable
    steady = can(session.backend, Power.REPEATS) or "determinism" in session.subject.guarantees
    seen = session.execute(experiment="verifier.checks.memory:experiment", gradients=backward, steady=steady)
    lanes = UndefinedLanes()
    found = seen.found_as(PoisonedRuns)
    if found.undefined and not (found.proved or found.open):
        lanes = compare_fills(session, seen, found.undefined, gradients=backward)
    proved, open_ = [*seen.damage, *found.proved, *lanes.proved], found.open
    if not proved and not open_ and not any(t is not None and t.numel() for t in seen.outputs.values()):
        return []  # no element was compared
    if proved:
        return [Outcome(verdict=Verdict.FAIL, output=d.about, message=d.text) for d in proved]
    if open_:
        return [
            Outcome(
                verdict=Verdict.UNDECIDED,
                output=d.about,
                message=f"{d.text}; no proof, since determinism is not guaranteed",
                measured=Measured(seen=d.text),
                doubtful=True,
            )
            for d in open_
        ]
    if lanes.untried:
        return [Outcome(verdict=Verdict.UNDECIDED, message=m) for m in lanes.untried]
    return [Outcome(verdict=Verdict.PASS, decided=1)]


def unwritten(session: Session) -> str:
    """Say which results memory that nobody wrote reaches, or nothing; for checks that it leaves undecided.

    Bits of results are compared that differ in what fresh memory held before alone.
    """
    gradients = bool(session.op.differentiable) and session.subject.differentiable
    gradients &= "grad_output" in session.case.given
    runs = [session.execute(gradients=gradients, poison=poison).outputs for poison in ("nan", *_FINITE)]
    names = [name for name in runs[0] if len({_held(outputs.get(name)) for outputs in runs}) > 1]
    if not names:
        return ""
    return f"memory that nobody wrote reaches {', '.join(names)}: see memory, which decides it"


def _held(tensor: torch.Tensor | None) -> tuple[str, bytes]:
    """Return the form and the bits of a result."""
    floating = tensor is not None and tensor.dtype in _BITS
    return _form(tensor), bits(tensor).numpy().tobytes() if floating and tensor is not None else b""


def experiment(
    subject: Subject, case: Case, *, backend: Backend, gradients: bool, steady: bool
) -> Observation:
    """Execute with NaN, finite patterns of both signs and NaN again in fresh memory; runs in the child.

    It is repeated until every difference has been seen between runs of one poison too. What still differs
    after `ROUNDS` is proved if the kernel is deterministic (`steady`), otherwise only where it is NaN. If it
    is deterministic and nothing differs, the second run with NaN has nothing to tell and is left out.
    """
    undefined: tuple[str, ...] = ()
    runs: dict[str, list[Observation]] = {"nan": [], **{name: [] for name in _FINITE}}
    found: list[Difference] = []
    for _ in range(ROUNDS):
        for poison in ("nan", *_FINITE, "nan"):
            if steady and len(runs["nan"]) == 1 and all(runs.values()) and _alike(runs):
                break
            seen = execute(subject, case, backend=backend, gradients=gradients, poison=poison)
            if seen.status != "ok":
                return seen
            runs[poison].append(seen)
            undefined = backend.unfilled()
        names = runs["nan"][0].outputs
        found = [d for name in names if (d := _compare(name, runs)) is not None]
        if all(d.proved for d in found):
            break
    first, everything = runs["nan"][0], [seen for like in runs.values() for seen in like]
    differences = PoisonedRuns(
        proved=tuple(d.deviation for d in found if d.proved or steady),
        open=tuple(d.deviation for d in found if not (d.proved or steady)),
        undefined=undefined,
    )
    damage = tuple(dict.fromkeys(one for seen in everything for one in seen.damage))
    return replace(first, damage=damage, found=differences)


def _alike(runs: Mapping[str, Sequence[Observation]]) -> bool:
    """Whether all runs have the same results: of floating-point formats bit for bit."""
    first, *others = (seen.outputs for like in runs.values() for seen in like)
    return all(
        one.keys() == first.keys() and all(_same(one[name], first[name]) for name in first) for one in others
    )


def _same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if _form(a) != _form(b) or a is None or b is None:
        return _form(a) == _form(b)
    return a.dtype not in _BITS or torch.equal(bits(a), bits(b))


@dataclass(frozen=True, kw_only=True)
class PoisonedRuns:
    """What differs with what fresh memory held before: what is proved to, and what is not.

    undefined: file and line of each load that leaves lanes undefined, whatever memory holds.
    """

    proved: tuple[Deviation, ...]
    open: tuple[Deviation, ...]
    undefined: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What differs with the poison in fresh memory; `proved` if no order of additions explains it."""

    deviation: Deviation
    proved: bool


def _compare(name: str, runs: Mapping[str, Sequence[Observation]]) -> Difference | None:
    """Compare a result under NaN with each finite poison; a proof goes before other differences."""
    results = {poison: [seen.outputs.get(name) for seen in like] for poison, like in runs.items()}
    if len({_form(t) for like in results.values() for t in like}) > 1:
        shown = [(results["nan"][0], "NaN in fresh memory")]
        shown += [(results[poison][0], words) for poison, words in _FINITE.items()]
        shown += [(results["nan"][-1], "NaN again")]
        seen = ", ".join(f"{_form(tensor)} with {words}" for tensor, words in shown)
        text = f"{name}: shape or dtype differs from run to run: {seen}"
        return Difference(deviation=Deviation(name, text), proved=True)
    kept = {poison: [t for t in like if t is not None] for poison, like in results.items()}
    if not kept["nan"] or kept["nan"][0].dtype not in _BITS:
        return None  # none, or no number of a floating-point format; forward_error says so
    pairs = (_differing(name, kept["nan"], kept[poison], words) for poison, words in _FINITE.items())
    found = sorted((d for d in pairs if d is not None), key=lambda d: not d.proved)
    return found[0] if found else None


def _differing(
    name: str, given: list[torch.Tensor], plain: list[torch.Tensor], words: str
) -> Difference | None:
    """Compare a result under two poisons; elements that differ under one of them tell nothing."""
    a, b = given[0], plain[0]
    differs = bits(a) != bits(b)
    for first, again in ((a, given), (b, plain)):
        for t in again[1:]:
            differs &= bits(t) == bits(first)
    became_nan = torch.stack([torch.isnan(t) for t in given]).any(0) & ~torch.isnan(b)
    proved = bool(became_nan.any())
    if proved:
        differs = became_nan
    if not bool(differs.any()):
        return None
    count, first_at = int(differs.sum()), int(differs.flatten().nonzero()[0])
    shown = next((t for t in given if bool(torch.isnan(t.flatten()[first_at]))), a)
    values = [t.flatten()[first_at].item() for t in (shown, b)]
    message = (
        f"{name}: {count} of {a.numel()} elements depend on what fresh memory held before "
        f"(unwritten output or uninitialised buffer), first at flat index {first_at}: "
        f"{values[0]} with NaN there, {values[1]} with {words}"
    )
    return Difference(deviation=Deviation(name, message), proved=proved)


def _form(tensor: torch.Tensor | None) -> str:
    return "None" if tensor is None else f"{tuple(tensor.shape)} {tensor.dtype}"


_BITS = {getattr(torch, name): kind for name, kind in BITS.items()}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bit patterns of a tensor."""
    return tensor.contiguous().view(_BITS[tensor.dtype])
