"""The compiled kernel computes the op's formula: exactly, in a field where nothing is rounded."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from verifier.cases.plan import Plan
from verifier.checks.memory import unwritten
from verifier.checks.support.session import Session, gradient_names
from verifier.execution.backend import Backend, Power
from verifier.execution.backends import can
from verifier.execution.shadow_run import Lost, execute_with_shadows, shadow_session
from verifier.ops import Op
from verifier.ops.specification.difference_pattern import pattern
from verifier.ops.specification.field_numbers import Elements, FieldOfResidues, NoMeaningError
from verifier.ops.specification.in_a_field import Specified, blind_residues, own_residues, specify
from verifier.ops.specification.literals import meant, suspects
from verifier.ops.specification.steering import EXACT, far_apart, steering
from verifier.records.observation import Observation
from verifier.records.verdict import Measured, Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping
    from fractions import Fraction

    from verifier.arithmetic.formats import Array
    from verifier.machine.arithmetic.numerics import Array as Residues
    from verifier.machine.shadow.slots import Slots
    from verifier.oracle.enclosure import Mask
    from verifier.records.case import Case
    from verifier.records.subject import Subject

NAME = "formula"
ORDER = 55
JUDGES_NUMBERS = True
DEMANDS = (
    "in exact arithmetic modulo a prime, the compiled code computes every output and gradient as the "
    "definition of the op does"
)
WHY = "no tolerance and no bound notices a wrong formula whose error is smaller than rounding errors may be"
CATCHES = (
    "variance_off_by_one_ulp_triton",
    "rescaling_forgotten_triton",
    "sum_never_zero_triton",
)

SHAPES = ((4, 33), (3, 128), (300, 16), (2, 1000))
"""A tail of one; full blocks; more rows than kernels have locks or programs; a long tail. All checks that
run few shapes have these, so that nothing is compiled for this one alone."""
EPS = (2.0**-17, 0.5)
"""Held exactly by every format, so that no rounding of eps is part of the formula."""
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
        share=0.4,
    )


def skips(_subject: Subject, op: Op, _dtype: str, backend: str) -> str | None:
    """Apply where compiled code runs on the machine."""
    if not can(backend, Power.SHADOWS):
        return f"this check reads the formula off compiled code on the machine; {backend} runs no such code"
    if not op.forms:
        return f"{op.name} has no definition of its own to compare with"
    return None


def check(session: Session) -> list[Outcome]:
    """Run the compiled kernel on random field elements and compare every element."""
    if not session.case.elements:
        return _undecided("there are no elements to compare")
    case = steering(session.case, session.subject)
    session = replace(session, case=case)
    constants = meant(case)
    try:
        arithmetic, residues = _blind(session, constants, _generator(case))
        wanted, without_meaning = _meaningful(specify(case, arithmetic, residues, subject=session.subject))
    except (NoMeaningError, ValueError) as error:
        return _undecided(f"this formula cannot be computed in a finite field: {error}")
    seen = _run(session, arithmetic.name, constants, residues)
    if misshapen := session.shape_outcomes(seen, demanded(session)) or _of_other_sizes(seen, wanted):
        return misshapen
    differing = _compare(session, seen, wanted)
    if lost := seen.found_as(Computed).lost:
        if cause := unwritten(session) if differing else "":
            return _undecided(cause, doubtful=True)
        return _undecided(
            f"some values could not be followed in the finite field ({lost})", doubtful=bool(differing)
        )
    if not differing and without_meaning:
        names = ", ".join(without_meaning)
        return _undecided(f"no finite field can compute it: {names} mixes logarithms and exponentials")
    if not differing:
        return _passed(seen, wanted)
    if without := seen.found_as(Computed).without:
        if cause := unwritten(session):
            return _undecided(cause, doubtful=True)
        count = f" ({without} of them)"
        return _undecided(
            "the kernel computed values that could not be followed in the finite field", count, doubtful=True
        )
    if opaque := _opaque(session, seen, wanted, differing):
        names = ", ".join(opaque[:SHOWN])
        return _undecided(f"the kernel computes functions that no finite field has ({names})", doubtful=True)
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
    session: Session, seen: Observation, wanted: Specified, differing: Mapping[str, object]
) -> list[str]:
    """Return what the kernel computed that has no rule, as far as a right kernel may compute it.

    In a softmax only masks vanish, and elements are drawn such that sums have logarithms; a result that is
    an exponent is the same for both signs of a number whose logarithm is taken.
    """
    from verifier.machine.shadow.arithmetics.field_exponential import UNSIGNED, VANISHED

    harmless = set() if session.op.own else {UNSIGNED, VANISHED}
    if any(wanted.results[name].parts == {"exponent"} for name in differing):
        harmless.add(UNSIGNED)
    return [name for name in seen.found_as(Computed).opaque if name not in harmless]


def _passed(seen: Observation, wanted: Specified) -> list[Outcome]:
    compared = {n: e.residues.size for n, e in wanted.results.items() if n in seen.found_as(Computed).shadows}
    if not sum(compared.values()):
        return _undecided("no result could be compared")
    return [Outcome(verdict=Verdict.PASS, decided=sum(compared.values()), evidence=tuple(sorted(compared)))]


def demanded(session: Session) -> tuple[str, ...]:
    """Return the results that the op demands of this subject on this case; no gradient of what is None."""
    the_op, backward = session.op, session.subject.differentiable or not session.op.differentiable
    gradients = gradient_names(session.subject, the_op) if backward else ()
    forward = tuple(name for name in the_op.outputs if not name.startswith("grad_"))
    given = session.case.tensors
    return (*forward, *(n for n in gradients if given.get(n.removeprefix("grad_"), 0) is not None))


def _of_other_sizes(seen: Observation, wanted: Specified) -> list[Outcome]:
    """Fail results of another number of elements than their definition; statistics may have any shape."""
    sizes = {name: value.residues.size for name, value in wanted.results.items()}
    return [
        Outcome(
            verdict=Verdict.FAIL,
            output=name,
            message=f"{name} has {shadows.size} element(s); its definition gives {sizes[name]}",
        )
        for name, shadows in seen.found_as(Computed).shadows.items()
        if name in sizes and shadows.size != sizes[name]
    ]


def _generator(case: Case) -> np.random.Generator:
    """Return what draws elements, the same for the same case."""
    seed = zlib.crc32(repr((case.op, case.dtype, case.rows, case.columns, case.origin)).encode())
    return np.random.default_rng(seed)


def _arithmetic(name: str, constants: Mapping[float, Fraction]) -> FieldOfResidues:
    from verifier.machine.shadow.arithmetics import field, field_exponential

    if name == field.NAME:
        return field.build(constants=constants)
    return field_exponential.build(constants=constants)


def _blind(
    session: Session, constants: Mapping[float, Fraction], generator: np.random.Generator
) -> tuple[FieldOfResidues, dict[str, Residues]]:
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
    return [
        Outcome(verdict=Verdict.UNDECIDED, message=text + count, doubtful=doubtful),
        Outcome(verdict=Verdict.SKIPPED, message=text, measured=Measured(seen=text)),
    ]


def _run(
    session: Session, name: str, constants: Mapping[float, Fraction], residues: Mapping[str, Residues]
) -> Observation:
    backward = bool(session.op.differentiable) and session.subject.differentiable
    return session.execute(
        experiment="verifier.checks.formula:experiment",
        arithmetic=name,
        constants=dict(constants),
        residues=dict(residues),
        gradients=backward,
    )


def _compare(session: Session, seen: Observation, wanted: Specified) -> dict[str, Mask]:
    """Return for each output that differs where it does, in canonical rows."""
    differing = {}
    for name, shadows in seen.found_as(Computed).shadows.items():
        if name not in wanted.results:
            continue
        expected = wanted.results[name]
        unequal = _unequal(_canonical(session, name, shadows, expected), expected)
        if session.op.compared is not None:  # forward_error and gradient judge what is masked out
            unequal = unequal & ~session.op.untouched(session.case)
        if unequal.any():
            differing[name] = unequal
    return differing


def _canonical(session: Session, name: str, shadows: Residues, expected: Elements) -> Residues:
    return session.op.canonical(session.case, name, shadows).reshape(expected.residues.shape)


def _halves(
    session: Session, seen: Observation, wanted: Specified, differing: Mapping[str, object]
) -> list[str]:
    """Return what is right in one of the two residues that its definition has: ex2 and lg2 give one alone."""
    found = []
    for name in differing:
        expected = wanted.results[name]
        if len(expected.parts) < 2:
            continue
        actual = _canonical(session, name, seen.found_as(Computed).shadows[name], expected)
        if any((actual[part] == expected.residues[part]).all() for part in expected.parts):
            found.append(name)
    return found


def _unequal(actual: Residues, expected: Elements) -> Mask:
    if actual.dtype.names is None:
        return np.asarray(actual != expected.residues)
    wanted = expected.residues
    return np.asarray(np.any([actual[part] != wanted[part] for part in sorted(expected.parts)], axis=0))


def _judged(
    session: Session,
    arithmetic: FieldOfResidues,
    seen: Observation,
    wanted: Specified,
    differing: Mapping[str, Mask],
) -> list[Outcome]:
    """Fail what differs, unless it is right on the case's own numbers: then elements were lost."""
    own = own_residues(session.case, arithmetic)
    again = _run(session, arithmetic.name, arithmetic.constants, own)
    wanted_again, _ = _meaningful(specify(session.case, arithmetic, own, subject=session.subject))
    confirmed = _compare(session, again, wanted_again)
    if not confirmed:
        return _undecided(
            "the result equals its definition on the numbers of the case, and on no others", doubtful=True
        )
    if not _differs_far_apart(session, arithmetic):
        return _undecided(
            "the result equals its definition where no two scores of a row are near each other", doubtful=True
        )
    doubts = [_of_signs(session, arithmetic, s, w) for s, w in ((seen, wanted), (again, wanted_again))]
    if any(doubts) and not (all(d == "all" for d in doubts) and session.case.rows >= SURE_ROWS):
        return _undecided(
            "rows equal their definition but for the sign of a root, and a finite field has no signs",
            doubtful=True,
        )
    if rounded := suspects(seen.found_as(Computed).literals, arithmetic.constants, session.case):
        shown = ", ".join(f"{number!r}" for number in rounded[:SHOWN])
        return _undecided(
            f"the kernel uses a constant that may stand for a number that nobody has declared: {shown}",
            doubtful=True,
        )
    outcomes = []
    for name, unequal in differing.items():
        # The words before the colon tell failures apart: a smaller case is one that differs in the same way.
        meant_by = "its specification" if session.op.own else session.op.name
        where = f"{name} differs from {meant_by} in exact arithmetic{_steered(session)}, {pattern(unequal)}"
        text = f"{where}: {int(unequal.sum())} of {unequal.size} element(s) differ"
        outcomes.append(
            Outcome(
                verdict=Verdict.FAIL,
                output=name,
                message=f"{text}; {EXPLANATION}",
                decided=unequal.size,
                wrong=int(unequal.sum()),
                formula=f"formula wrong: {name} is another formula than {meant_by}",
            )
        )
    return outcomes


def _steered(session: Session) -> str:
    """Say which scalars are others than those of the case that a finding shows."""
    scalars, signature = session.case.scalars, session.subject.signature
    shown = ", ".join(f"{n}={scalars[n]:g}" for n in EXACT if n in scalars and n in signature)
    return f" at {shown}" if shown else ""


def _differs_far_apart(session: Session, arithmetic: FieldOfResidues) -> bool:
    """Say whether results differ as well where numbers are compared of which no kernel rounds two to one.

    Of two that it did round to one it may find either to be the largest, and another one in each lane.
    """
    case = far_apart(session.case)
    if case is None:
        return True
    session = replace(session, case=case)
    try:
        residues = blind_residues(case, arithmetic, _generator(case), session.subject)
    except ValueError:
        return False
    wanted, _ = _meaningful(specify(case, arithmetic, residues, subject=session.subject))
    return bool(_compare(session, _run(session, arithmetic.name, arithmetic.constants, residues), wanted))


def _of_signs(session: Session, arithmetic: FieldOfResidues, seen: Observation, wanted: Specified) -> str:
    """Say whether "some" rows of a result, or "all" of one, are the negatives of what they should be.

    Nothing is said of a result in which anything else is wrong, nor of sums over rows.
    """
    said = ""
    for name, shadows in seen.found_as(Computed).shadows.items():
        if name not in wanted.results or session.op.sums_rows(name):
            continue
        expected = wanted.results[name]
        actual = _canonical(session, name, shadows, expected)
        rows = (session.case.rows, -1)
        opposite = Elements(arithmetic, _opposite(expected.residues, arithmetic.moduli()), expected.parts)
        same = ~_unequal(actual, expected).reshape(rows).any(axis=1)
        turned = ~_unequal(actual, opposite).reshape(rows).any(axis=1) & ~same
        if not (same | turned).all():
            continue
        if turned.any():
            said = "all" if turned.all() and said != "some" else "some"
    return said


def _opposite(shadows: Residues, moduli: int | Mapping[str, int]) -> Residues:
    """Negate field elements."""
    if isinstance(moduli, int):
        return (np.uint64(moduli) - shadows) % np.uint64(moduli)
    result = np.empty_like(shadows)
    for part, modulus in moduli.items():
        result[part] = (np.uint64(modulus) - shadows[part]) % np.uint64(modulus)
    return result


def experiment(
    subject: Subject,
    case: Case,
    *,
    backend: Backend,
    arithmetic: str,
    constants: dict[float, Fraction],
    residues: dict[str, Residues],
    gradients: bool,
) -> Observation:
    """Run the subject with these field elements as shadows of its floats; runs in the child."""
    field = _arithmetic(arithmetic, constants)
    with shadow_session(field) as opened:
        assert opened.slots is not None
        watch = _Lost(opened.slots, case, opened.machine.poison)
        watch.plain = np.append(watch.plain, list(constants))
        seen, shadows = execute_with_shadows(
            subject, case, backend=backend, opened=opened, given=residues, gradients=gradients
        )
        if seen.status != "ok":
            return seen
        computed = Computed(
            shadows=shadows,
            lost=watch.words(),
            without=watch.values,
            literals=tuple(sorted(watch.literals)),
            opaque=tuple(sorted(field.opaque)),
        )
        return replace(seen, found=computed)


@dataclass(frozen=True, kw_only=True)
class Computed:
    """What a run in a field computed: the elements of each result.

    lost: where elements were lost, in words; without: how many computed values came without one. literals:
    single numbers that the code holds or is handed. opaque: what it computed that no field has.
    """

    shadows: Mapping[str, Array]
    lost: str
    without: int
    literals: tuple[float, ...]
    opaque: tuple[str, ...]


class _Lost(Lost):
    """Counts computed values without their shadow; a single value is an argument of the kernel.

    `literals`: single values that were lifted, the constants and arguments of the kernels.
    """

    def __init__(self, slots: Slots, case: Case, poison: int | None) -> None:
        """Listen to the slots of one session."""
        super().__init__(slots, case, poison)
        self.literals: set[float] = set()

    def lifted(self, values: Array, kind: str) -> None:
        """Keep single values."""
        if np.size(values) == 1 and kind in {"f32", "f64"}:
            self.literals.add(float(np.asarray(values).reshape(-1)[0]))

    def lost_of(self, values: Array, kind: str, tags: Array) -> int:
        """Count the values that have no shadow and should have one."""
        return 0 if np.size(values) == 1 else super().lost_of(values, kind, tags)

    def words(self) -> str:
        """Say how many elements lost their shadow, and where; nothing if none did."""
        counters = self.counters
        broken = [f"bits of floats are changed by {name}" for name in sorted(counters.broken)]
        return "; ".join([*counters.describe(), *broken][:4])
