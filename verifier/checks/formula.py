"""The compiled kernel computes the op's formula: exactly, in a field where nothing is rounded."""

from __future__ import annotations

import math
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from verifier.checks import Session, gradient_names
from verifier.checks.memory import unwritten
from verifier.lifting import Lost, ride, riding
from verifier.ops import Op
from verifier.ops import op as _op
from verifier.recipes import Plan
from verifier.runner.observation import Observation
from verifier.specification.derived import Specified, blind_residues, own_residues, specify
from verifier.specification.fingerprint import pattern
from verifier.specification.literals import meant, suspects
from verifier.specification.numbers import Elements, NoMeaningError
from verifier.verdicts import Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping
    from fractions import Fraction

    from verifier.arithmetic import Array
    from verifier.case import Case
    from verifier.subjects import Subject

NAME = "formula"
ORDER = 55
JUDGES_NUMBERS = True
DEMANDS = "in exact arithmetic modulo a prime, every output and gradient equals the op's definition"
WHY = "a wrong formula whose error is smaller than rounding may be: no tolerance and no bound sees it"
CATCHES = (
    "variance_off_by_one_ulp_triton",
    "rescaling_forgotten_triton",
)

SHAPES = ((4, 33), (3, 128), (300, 16), (2, 1000))
"""A tail of one; full blocks; more rows than kernels have locks or programs; a long tail. All checks that
run few shapes have these, so that nothing is compiled for this one alone."""
EPS = (2.0**-17, 0.5)
"""Held exactly by every format, so that no rounding of eps is part of the formula."""
LARGEST_EXPONENT = 4.0
"""Of a softmax's inputs: exp(-8) is a normal number in every format."""
MOMENTUM = 0.25
"""Exact in every format, as eps is."""
SURE_ROWS = 64
"""So many rows do not all have the other root by chance, twice: 2^-128."""
SHOWN = 4

EXPLANATION = (
    "every number was replaced by a random integer modulo a prime and every operation of the compiled code "
    "was done exactly there, where nothing is rounded: the right formula agrees in every digit, in whatever "
    "order it is computed"
)


def plan(subject: Subject, op: Op) -> Plan:
    """Ask for few shapes: values hardly matter, every number is replaced."""
    return Plan(
        gradients=subject.differentiable or not op.differentiable,
        hazards=("ordinary",),
        joint=False,
        shapes=SHAPES,
        eps=EPS,
    )


def skips(subject: Subject, op: Op, dtype: str, backend: str) -> str | None:
    """Apply where compiled code runs on the machine."""
    del subject, dtype
    if backend != "machine":
        return f"the formula is read off compiled code on the machine; {backend} runs no such code"
    if not op.forms:
        return f"{op.name} has no definition of its own to compare with"
    return None


def check(session: Session) -> list[Outcome]:
    """Run the compiled kernel on random field elements and compare every element."""
    if not session.case.elements:
        return _undecided("there are no elements to compare")
    case = _tame(_exactly_held(session.case, session.subject))
    session = replace(session, case=case)
    seed = zlib.crc32(repr((case.op, case.dtype, case.rows, case.columns, case.origin)).encode())
    generator = np.random.default_rng(seed)
    constants = meant(case)
    try:
        arithmetic, residues = _blind(session, constants, generator)
        wanted, without_meaning = _meaningful(specify(case, arithmetic, residues, subject=session.subject))
    except (NoMeaningError, ValueError) as error:
        return _undecided(f"no field has this formula: {error}")
    seen = _run(session, arithmetic.name, constants, residues)
    if misshapen := session.shape_outcomes(seen, demanded(session)) or _of_other_sizes(seen, wanted):
        return misshapen
    differing = _compare(session, seen, wanted)
    if lost := seen.facts["lost"]:
        if cause := unwritten(session) if differing else "":
            return _undecided(cause, doubtful=True)
        return _undecided(f"values left the field on the way ({lost})", doubtful=bool(differing))
    if not differing and without_meaning:
        names = ", ".join(without_meaning)
        return _undecided(f"no field has this formula: {names} mixes logarithms and exponentials")
    if not differing:
        return _passed(seen, wanted)
    if without := seen.facts["without"]:
        if cause := unwritten(session):
            return _undecided(cause, doubtful=True)
        count = f" ({without} of them)"
        return _undecided("computed values came without their element", count, doubtful=True)
    if opaque := _opaque(session, seen, wanted, differing):
        names = ", ".join(opaque[:SHOWN])
        return _undecided(f"no field has every function that the kernel computes ({names})", doubtful=True)
    halves = _halves(session, seen, wanted, differing)
    if whole := {name: unequal for name, unequal in differing.items() if name not in halves}:
        return _judged(session, arithmetic, seen, wanted, whole)
    names = ", ".join(halves)
    return _undecided(f"{names} was computed by exponentials: half of an element is right", doubtful=True)


def _meaningful(wanted: Specified) -> tuple[Specified, list[str]]:
    """Return the results of which a residue means something, and the names of the others."""
    kept = {name: value for name, value in wanted.results.items() if value.parts}
    return replace(wanted, results=kept), sorted({*wanted.results} - {*kept})


def _opaque(
    session: Session, seen: Observation, wanted: Specified, differing: Mapping[str, Any]
) -> list[str]:
    """Return what the kernel computed that has no rule, as far as a right kernel may compute it.

    In a softmax only masks vanish, and elements are drawn such that sums have logarithms; a result that is
    an exponent is the same for both signs of a number whose logarithm is taken.
    """
    from verifier.machine.arithmetics.field_exponential import UNSIGNED, VANISHED

    harmless = set() if session.op.own else {UNSIGNED, VANISHED}
    if any(wanted.results[name].parts == {"exponent"} for name in differing):
        harmless.add(UNSIGNED)
    return [name for name in seen.facts["opaque"] if name not in harmless]


def _passed(seen: Observation, wanted: Specified) -> list[Outcome]:
    compared = {n: e.slots.size for n, e in wanted.results.items() if n in seen.facts["slots"]}
    if not sum(compared.values()):
        return _undecided("no result could be compared")
    facts = {"outputs": sorted(compared)}
    return [Outcome(verdict=Verdict.PASS, decided=sum(compared.values()), facts=facts)]


def demanded(session: Session) -> tuple[str, ...]:
    """Return the results that the op demands of this subject on this case; no gradient of what is None."""
    the_op, backward = session.op, session.subject.differentiable or not session.op.differentiable
    gradients = gradient_names(session.subject, the_op) if backward else ()
    forward = tuple(name for name in the_op.outputs if not name.startswith("grad_"))
    given = session.case.tensors
    return (*forward, *(n for n in gradients if given.get(n.removeprefix("grad_"), 0) is not None))


def _of_other_sizes(seen: Observation, wanted: Specified) -> list[Outcome]:
    """Fail results of another number of elements than their definition; statistics may have any shape."""
    sizes = {name: value.slots.size for name, value in wanted.results.items()}
    return [
        Outcome(
            verdict=Verdict.FAIL,
            output=name,
            message=f"{name} has {slots.size} element(s); its definition gives {sizes[name]}",
        )
        for name, slots in seen.facts["slots"].items()
        if name in sizes and slots.size != sizes[name]
    ]


def _exactly_held(case: Case, subject: Subject) -> Case:
    """Return the case with a momentum that every format holds, where the subject is told the momentum."""
    if "momentum" not in case.scalars or "momentum" not in subject.signature:
        return case
    return replace(case, scalars={**case.scalars, "momentum": MOMENTUM})


def _tame(case: Case) -> Case:
    """Return a softmax of small numbers: the floats steer, and where exponentials vanish so do elements.

    No exponential of a difference of these, nor one divided by their sum, vanishes in any format: those that
    do are of the finite numbers with which a kernel masks.
    """
    if _op(case.op).needs_variance or case.largest <= LARGEST_EXPONENT:
        return case
    scale = 2.0 ** -math.ceil(math.log2(case.largest / LARGEST_EXPONENT))
    return replace(case, tensors={**case.tensors, "input": case.given["input"] * scale})


def _arithmetic(name: str, constants: Mapping[float, Fraction]) -> Any:
    from verifier.machine.arithmetics import make

    return make(name, constants=constants)


def _blind(
    session: Session, constants: Mapping[float, Fraction], generator: np.random.Generator
) -> tuple[Any, dict[str, Array]]:
    """Draw field elements; the field with exponentials is taken where the formula needs one."""
    arithmetic = _arithmetic("field", constants)
    try:
        residues = blind_residues(session.case, arithmetic, generator, session.subject)
    except NoMeaningError:
        arithmetic = _arithmetic("field_exponential", constants)
        residues = blind_residues(session.case, arithmetic, generator, session.subject)
    return arithmetic, residues


def _undecided(reason: str, count: str = "", *, doubtful: bool = False) -> list[Outcome]:
    """Decide nothing; `doubtful`: results differ, so that no other case makes the line a pass."""
    text = f"formula not decided: {reason}"
    facts = {"doubtful": True} if doubtful else {}
    return [
        Outcome(verdict=Verdict.UNDECIDED, message=text + count, facts=facts),
        *_noted(Verdict.SKIPPED, text),
    ]


def _noted(verdict: Verdict, text: str) -> list[Outcome]:
    """Return an outcome that is reported and decides nothing."""
    return [Outcome(verdict=verdict, message=text, facts={"measured": text})]


def _run(
    session: Session, name: str, constants: Mapping[float, Fraction], residues: Mapping[str, Array]
) -> Observation:
    backward = bool(session.op.differentiable) and session.subject.differentiable
    return session.execute(
        experiment="verifier.checks.formula:experiment",
        arithmetic=name,
        constants=dict(constants),
        residues=dict(residues),
        gradients=backward,
    )


def _compare(session: Session, seen: Observation, wanted: Specified) -> dict[str, Any]:
    """Return for each output that differs where it does, in canonical rows."""
    differing = {}
    for name, slots in seen.facts["slots"].items():
        if name not in wanted.results:
            continue
        expected = wanted.results[name]
        unequal = _unequal(_canonical(session, name, slots, expected), expected)
        if unequal.any():
            differing[name] = unequal
    return differing


def _canonical(session: Session, name: str, slots: Array, expected: Elements) -> Any:
    return session.op.canonical(session.case, name, slots).reshape(expected.slots.shape)


def _halves(
    session: Session, seen: Observation, wanted: Specified, differing: Mapping[str, Any]
) -> list[str]:
    """Return what is right in one of the two residues that its definition has: ex2 and lg2 give one alone."""
    found = []
    for name in differing:
        expected: Any = wanted.results[name]
        if len(expected.parts) < 2:
            continue
        actual = _canonical(session, name, seen.facts["slots"][name], expected)
        if any((actual[part] == expected.slots[part]).all() for part in expected.parts):
            found.append(name)
    return found


def _unequal(actual: Any, expected: Elements) -> Any:
    if actual.dtype.names is None:
        return actual != expected.slots
    wanted: Any = expected.slots
    return np.any([actual[part] != wanted[part] for part in sorted(expected.parts)], axis=0)


def _judged(
    session: Session,
    arithmetic: Any,
    seen: Observation,
    wanted: Specified,
    differing: Mapping[str, Any],
) -> list[Outcome]:
    """Fail what differs, unless it is right on the case's own numbers: then elements were lost."""
    own = own_residues(session.case, arithmetic)
    again = _run(session, arithmetic.name, arithmetic.constants, own)
    wanted_again, _ = _meaningful(specify(session.case, arithmetic, own, subject=session.subject))
    confirmed = _compare(session, again, wanted_again)
    if not confirmed:
        return _undecided("it equals its definition on the case's own numbers, not on others", doubtful=True)
    doubts = [_of_signs(session, arithmetic, s, w) for s, w in ((seen, wanted), (again, wanted_again))]
    if any(doubts) and not (all(d == "all" for d in doubts) and session.case.rows >= SURE_ROWS):
        return _undecided(
            "rows equal their definition but for the sign of a root, which no field has", doubtful=True
        )
    if rounded := suspects(seen.facts["literals"], arithmetic.constants, session.case):
        shown = ", ".join(f"{number!r}" for number in rounded[:SHOWN])
        return _undecided(
            f"the kernel uses a constant that may round a number the field does not know: {shown}",
            doubtful=True,
        )
    outcomes = []
    for name, unequal in differing.items():
        # The words before the colon tell failures apart: a smaller case is one that differs in the same way.
        meant_by = "its specification" if session.op.own else session.op.name
        where = f"{name} is another formula than {meant_by}, {pattern(unequal)}"
        text = f"{where}: {int(unequal.sum())} of {unequal.size} element(s) differ"
        outcomes.append(
            Outcome(
                verdict=Verdict.FAIL,
                output=name,
                message=f"{text}; {EXPLANATION}",
                decided=unequal.size,
                wrong=int(unequal.sum()),
                facts={"pattern": pattern(unequal)},
            )
        )
    return outcomes


def _of_signs(session: Session, arithmetic: Any, seen: Observation, wanted: Specified) -> str:
    """Say whether "some" rows of a result, or "all" of one, are the negatives of what they should be.

    Nothing is said of a result in which anything else is wrong, nor of sums over rows.
    """
    said = ""
    for name, slots in seen.facts["slots"].items():
        if name not in wanted.results or name in {"grad_weight", "grad_bias"}:
            continue
        expected = wanted.results[name]
        actual = _canonical(session, name, slots, expected)
        rows = (session.case.rows, -1)
        opposite = Elements(arithmetic, _opposite(expected.slots, arithmetic.moduli()), expected.parts)
        same = ~_unequal(actual, expected).reshape(rows).any(axis=1)
        turned = ~_unequal(actual, opposite).reshape(rows).any(axis=1) & ~same
        if not (same | turned).all():
            continue
        if turned.any():
            said = "all" if turned.all() and said != "some" else "some"
    return said


def _opposite(slots: Array, moduli: Any) -> Array:
    """Negate field elements."""
    if isinstance(moduli, int):
        return (np.uint64(moduli) - slots) % np.uint64(moduli)
    result = np.empty_like(slots)
    for part, modulus in moduli.items():
        result[part] = (np.uint64(modulus) - slots[part]) % np.uint64(modulus)
    return result


def experiment(
    subject: Subject,
    case: Case,
    *,
    place: Any,
    arithmetic: str,
    constants: dict[float, Fraction],
    residues: dict[str, Array],
    gradients: bool,
) -> Observation:
    """Run the subject with these field elements beside its floats; runs in the child."""
    field = _arithmetic(arithmetic, constants)
    with riding(field) as opened:
        assert opened.slots is not None
        watch = _Lost(opened.slots, case, opened.machine.poison)
        watch.plain = np.append(watch.plain, list(constants))
        seen, slots = ride(subject, case, place=place, opened=opened, given=residues, gradients=gradients)
        facts = {**seen.facts, "slots": slots, "lost": watch.words(), "without": watch.values}
        facts |= {"literals": sorted(watch.literals), "opaque": sorted(field.opaque)}
        return replace(seen, facts=facts) if seen.status == "ok" else seen


class _Lost(Lost):
    """Counts computed values without their slot; a single value is an argument of the kernel.

    `literals`: single values that were lifted, the constants and arguments of the kernels.
    """

    def __init__(self, slots: Any, case: Case, poison: int | None) -> None:
        """Watch the reads of one session, and the values that are lifted."""
        super().__init__(slots, case, poison)
        self.literals: set[float] = set()
        self.lift = slots.lift
        slots.lift = self.lifted

    def lifted(self, values: Array, kind: str) -> Array:
        """Lift as the session does, and keep single values."""
        if np.size(values) == 1 and kind in {"f32", "f64"}:
            self.literals.add(float(np.asarray(values).reshape(-1)[0]))
        found: Array = self.lift(values, kind)
        return found

    def lost_of(self, values: Array, kind: str, tags: Array) -> int:
        """Count the values that have no slot and should have one."""
        return 0 if np.size(values) == 1 else super().lost_of(values, kind, tags)

    def words(self) -> str:
        """Say how many elements lost their slot, and where; nothing if none did."""
        counters = self.slots.counters
        broken = [f"bits of floats are changed by {name}" for name in sorted(counters.broken)]
        return "; ".join([*counters.describe(), *broken][:4])
