"""Results do not depend on the modes of torch that a call is made in."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from verifier.cases.plan import Plan
from verifier.checks.running_bound import bounded
from verifier.checks.support.attempts import (
    FEW_SHAPES,
    Attempts,
    Shown,
    few_cases,
    kept,
    outcomes_by_demand,
    tried_in_turn,
    ways_of_op,
)
from verifier.checks.support.bits import Results
from verifier.checks.support.output_verdict import judge
from verifier.checks.support.session import Session, gradient_names
from verifier.execution.backend import Backend, Power
from verifier.execution.backends import backend, can
from verifier.execution.call_subject import backward, forward, lay_out, mutated, named_results
from verifier.execution.poisoned_memory import fresh_memory
from verifier.execution.ways_of_calling import Backward, CallingWay
from verifier.machine.culprit import is_own
from verifier.ops import Op
from verifier.ops.specification.axes import LINEAR_WEIGHT
from verifier.records.case import Case
from verifier.records.observation import Observation
from verifier.records.subject import INPUT, PARAMETERS, Subject
from verifier.records.verdict import Outcome, Verdict

NAME = "modes"
ORDER = 126
DEMANDS = (
    "the kernel does not crash under torch.no_grad, inference_mode, autocast, another default dtype and "
    "deterministic algorithms, nor on a device of 1, 2, 108 or 148 multiprocessors where the wrapper reads "
    "their number and the backend can vary it; its results, also where new memory "
    "holds NaN, have the bits of the plain call, or stay within their bounds; so do the plain call's at "
    "shapes of many rows or of other kernels, where no defect is declared"
)
WHY = "models are trained under autocast and served in inference mode, and most tests run in neither"
CATCHES = (
    "version_read_in_inference_mode",
    "bias_forgotten_without_grad",
    "means_by_products_under_autocast",
    "weight_rounded_under_autocast",
    "sums_in_default_dtype",
    "columns_lost_in_deterministic_mode",
    "partials_of_132_processors_triton",
    "rows_lost_by_one_processor_triton",
    "unwritten_bias_without_grad_triton",
    "bias_forgotten_in_long_rows_without_grad_triton",
    "eps_larger_in_many_rows_under_autocast_triton",
    "eps_raised_under_autocast_to_float16",
    "rows_lost_by_small_devices_triton",
)

MOST_REACHING = 2
"""Shapes that reach other kernels of the subject, most first: each may be wrong in a mode alone."""

AUTOCAST = "under torch.autocast"
AUTOCAST_TO_HALF = "under torch.autocast to float16"
"""As it is on a GPU where nothing is said; the other casts to bfloat16."""
SINGLE = "under torch.autocast in float32"
"""The same with numbers of float32, which torch casts down for products of matrices and nothing else."""
INFERENCE = "under torch.inference_mode"
DETERMINISTIC = "under torch.use_deterministic_algorithms"
PROCESSORS: Mapping[str, int] = {
    "with 1 multiprocessor": 1,
    **{f"with {number} multiprocessors": number for number in (2, 108, 148)},
}
"""Of other devices: the least there can be, an A100 and a B200; the plain call has the 132 of an H100."""
GPU = "cuda"
"""As torch names the type of device that subjects think they run on, whatever the backend."""
MANY_ROWS = (max(PROCESSORS.values()) + 1, 5)
"""Rows and columns of the case in which each multiprocessor has a row, as far as launches go by them."""


def plan(subject: Subject, op: Op) -> Plan:
    """Ask for a few ordinary cases, and for shapes that launch other kernels: each in every mode."""
    few = few_cases(op, gradients=subject.differentiable or not op.differentiable)
    shapes = FEW_SHAPES if subject.language == "torch" else (MANY_ROWS, *FEW_SHAPES)
    return replace(few, shapes=shapes, reaching=True, most_reaching=MOST_REACHING)


def must_be_tried(subject: Subject) -> list[str]:
    """Return every mode, and autocast in float32 where the subject takes it."""
    return [*MODES, *([SINGLE] if "float32" in subject.dtypes else []), *ways_of_op(subject)]


def check(session: Session) -> list[Outcome]:
    """Call the subject in every mode; under autocast also with numbers of float32."""
    outcomes = _outcomes(session, tuple(MODES))
    if session.case.dtype == "float32":
        return [replace(o, tried=(*o.tried, SINGLE)) if AUTOCAST in o.tried else o for o in outcomes]
    if "float32" in session.subject.dtypes and not _known_in_single(single := _in_single(session)):
        outcomes += _outcomes(single, (SINGLE,))
    return outcomes


def _outcomes(session: Session, names: tuple[str, ...]) -> list[Outcome]:
    gradients = bool(session.op.differentiable) and session.subject.differentiable
    vary = can(session.backend, Power.VARIES) and SINGLE not in names  # once for each case
    seen = session.execute(
        experiment=f"{__name__}:experiment",
        gradients=gradients,
        names=names,
        processors=tuple(PROCESSORS) if vary else (),
    )
    again = vary and session.op.own and can(session.backend, Power.SHADOWS)
    outcomes = [] if SINGLE in names else _wrong_plainly(session, seen, gradients=gradients)
    for demand, judged in outcomes_by_demand(session, seen, same_code=False):
        for outcome in judged:
            if again and demand in PROCESSORS:
                outcomes += _on_that_device(session, demand, outcome, gradients=gradients)
            else:
                outcomes.append(outcome)
    return outcomes


def _wrong_plainly(session: Session, seen: Observation, *, gradients: bool) -> list[Outcome]:
    """Return what is wrong in the plain call already, at a shape that no other check need have.

    All modes may have its bits. Where a defect is known, it is told by the check that it is declared for.
    """
    if session.op.own or session.subject.known_defects:
        return []
    if (session.case.rows, session.case.columns) in FEW_SHAPES:
        return []
    names = (*session.op.outputs, *(gradient_names(session.subject, session.op) if gradients else ()))
    judged = judge(session.truth, seen, tuple(dict.fromkeys(names)))
    wrong = (outcome for outcome in judged if outcome.verdict is Verdict.FAIL)
    return [replace(outcome, message=f"{outcome.message}, in the plain call") for outcome in wrong]


def _on_that_device(session: Session, name: str, outcome: Outcome, *, gradients: bool) -> list[Outcome]:
    """Judge what no theorem bounds by the roundings of the code as a device of another size runs it."""
    if outcome.verdict is not Verdict.UNDECIDED or not outcome.doubtful:
        return [outcome]
    found = bounded(session, gradients=gradients, forced=None, processors=PROCESSORS[name])
    judged = [o for o in found if o.output == outcome.output]
    if not any(o.verdict in {Verdict.PASS, Verdict.FAIL} for o in judged):
        return [outcome]
    told = [replace(o, message=f"{o.message}, {name}" if o.message else "") for o in judged]
    return [replace(told[0], tried=outcome.tried), *told[1:]]


def _in_single(session: Session) -> Session:
    """Return the session of the same case in float32."""
    case = session.case
    numbers = {n: t.to(torch.float32) for n, t in case.given.items() if t.is_floating_point()}
    single = replace(case, dtype="float32", tensors={**case.tensors, **numbers})
    setting = backend(session.backend).setting(session.subject, "float32")
    return replace(session, case=single, setting=setting)


def _known_in_single(session: Session) -> bool:
    """Return whether the case in float32 is one of a known defect, which the search leaves out as well."""
    return any(
        defect.concerns(NAME)
        and defect.observable(session.backend, "float32")
        and (defect.where is None or defect.where(session.case))
        for defect in session.subject.known_defects
    )


# -- the modes -----------------------------------------------------------------------------------------


@contextmanager
def _autocast(to: torch.dtype = torch.bfloat16) -> Iterator[None]:
    """Cast on every device: the machine's tensors are the CPU's to torch, and a GPU's to the subject."""
    before = torch.is_autocast_enabled(GPU), torch.get_autocast_dtype(GPU)
    torch.set_autocast_enabled(GPU, True)
    torch.set_autocast_dtype(GPU, to)
    try:
        with torch.autocast("cpu", dtype=to), _set_together():
            yield
    finally:
        torch.set_autocast_enabled(GPU, before[0])
        torch.set_autocast_dtype(GPU, before[1])


@contextmanager
def _set_together() -> Iterator[None]:
    """Let a subject that switches autocast of CUDA off do so where the machine's numbers are computed."""
    names: Mapping[str, Callable[[str], object]] = {
        "set_autocast_enabled": torch.is_autocast_enabled,
        "set_autocast_dtype": torch.get_autocast_dtype,
    }
    plain = {name: getattr(torch, name) for name in names}

    def of_both(name: str) -> Callable[..., None]:
        def told(*given: object, **named: object) -> None:
            before = names[name](GPU)
            plain[name](*given, **named)
            if (now := names[name](GPU)) != before:  # however the call has named the device
                plain[name]("cpu", now)

        return told

    for name in names:
        setattr(torch, name, of_both(name))
    try:
        yield
    finally:
        for name in names:
            setattr(torch, name, plain[name])


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _deterministic() -> Iterator[None]:
    """Let torch fill what it leaves uninitialised, too, which it does by default in this mode."""
    flags: Any = torch.utils.deterministic
    fill = flags.fill_uninitialized_memory
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error")  # the other function imports torch's compiler: seconds
    flags.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
        flags.fill_uninitialized_memory = fill


@dataclass(frozen=True, kw_only=True)
class _Mode:
    """A mode, and where the backward pass is run: in it, after it, or not at all."""

    enter: Callable[[], AbstractContextManager[object]]
    backward: Backward


MODES: Mapping[str, _Mode] = {
    "under torch.no_grad": _Mode(enter=torch.no_grad, backward="never"),
    INFERENCE: _Mode(enter=torch.inference_mode, backward="never"),
    AUTOCAST: _Mode(enter=_autocast, backward="after"),  # as torch's documentation recommends
    AUTOCAST_TO_HALF: _Mode(enter=lambda: _autocast(torch.float16), backward="after"),
    "with float64 as default dtype": _Mode(enter=lambda: _default_dtype(torch.float64), backward="inside"),
    "with bfloat16 as default dtype": _Mode(enter=lambda: _default_dtype(torch.bfloat16), backward="inside"),
    DETERMINISTIC: _Mode(enter=_deterministic, backward="inside"),
}


_CASTING = {AUTOCAST: torch.bfloat16, AUTOCAST_TO_HALF: torch.float16, SINGLE: torch.bfloat16}
"""The modes that cast, and to which dtype."""
_CAST_PRODUCT = "a product of matrices is left in autocast's dtype, as by torch's own linear"


# -- in the child --------------------------------------------------------------------------------------


def dry_ways(_subject: Subject, backend: Backend) -> dict[str, CallingWay]:
    """Return the modes and devices as ways of a dry run."""
    modes = {name: CallingWay(enter=mode.enter, backward=mode.backward) for name, mode in MODES.items()}
    modes[INFERENCE] = replace(modes[INFERENCE], given=_as_in_inference)
    varies = Power.VARIES in backend.powers
    return modes | ({name: CallingWay(processors=n) for name, n in PROCESSORS.items()} if varies else {})


def experiment(
    subject: Subject,
    case: Case,
    *,
    backend: Backend,
    gradients: bool,
    names: tuple[str, ...],
    processors: tuple[str, ...],
) -> Observation:
    """Call the subject plainly, then in the named modes and on devices of the named numbers of processors."""

    def mode(name: str) -> Callable[[], Shown]:
        return lambda: _in_mode(subject, case, backend, name, gradients=gradients)

    def device(name: str) -> Callable[[], Shown]:
        return lambda: _with_processors(subject, case, backend, PROCESSORS[name], gradients=gradients)

    ways = {name: mode(name) for name in names} | {name: device(name) for name in processors}
    seen = tried_in_turn(subject, case, backend, ways, gradients=gradients)
    if not isinstance(seen.found, Attempts):
        return seen
    concerning = tuple(attempt for attempt in seen.found.tried if attempt.concerns)
    return replace(seen, found=replace(seen.found, tried=concerning))


def _with_processors(
    subject: Subject, case: Case, backend: Backend, number: int, *, gradients: bool
) -> Shown:
    """Call on a device of another size, unless no call before has read its size."""
    before = backend.asked_processors()
    if not before:
        return Shown(concerns=False)
    # Poisoned: where nothing is written, the results of the call before may lie.
    with backend.varied(multiprocessors=number), fresh_memory("nan"):
        call = lay_out(subject, case, device=backend.device(), gradients=gradients)
        outputs = forward(subject, call)
        found: dict[str, torch.Tensor | None] = dict(backward(outputs, call)) if gradients else {}
        found |= named_results(subject, outputs) | mutated(subject, call)
    if backend.asked_processors() == before:
        return Shown(excused="the wrapper keeps the number of multiprocessors that it has read before")
    return Shown(results=(kept(found),))


def _in_mode(subject: Subject, case: Case, backend: Backend, name: str, *, gradients: bool) -> Shown:
    """Call in a mode on poisoned memory: another path of the wrapper may leave it unwritten."""
    mode = MODES[AUTOCAST if name == SINGLE else name]
    call = lay_out(subject, case, device=backend.device(), gradients=gradients)
    found: dict[str, torch.Tensor | None] = {}
    with fresh_memory("nan"):
        try:
            with warnings.catch_warnings(), mode.enter():
                warnings.simplefilter("ignore")
                given = call
                if name == INFERENCE:
                    given = replace(call, arguments=_as_in_inference(call.arguments))
                outputs = forward(subject, given)
                if gradients and mode.backward == "inside":
                    found |= backward(outputs, call)
        except RuntimeError as error:
            if name == DETERMINISTIC and (why := _no_such_algorithm(subject, error)):
                return Shown(excused=why)
            raise
        if gradients and mode.backward == "after":
            found |= backward(outputs, call)
    found |= named_results(subject, outputs) | mutated(subject, call)
    if name in _CASTING:
        if _is_cast_product(found, case, _CASTING[name]):
            return Shown(excused=_CAST_PRODUCT)
        found = _as_declared(found, case)
    return Shown(results=(kept(found),))


def _as_in_inference(arguments: Mapping[str, object]) -> Mapping[str, object]:
    """Let the input be a tensor of inference mode, as a layer before makes it; no parameter is one.

    Of a backward pass that takes no input, what it takes beside parameters is.
    """
    made = {INPUT} if INPUT in arguments else arguments.keys() - PARAMETERS
    return {n: t.clone() if n in made and isinstance(t, torch.Tensor) else t for n, t in arguments.items()}


def _is_cast_product(found: Results, case: Case, to: torch.dtype) -> bool:
    """Return whether the result is a product in autocast's dtype, where the plain call has another."""
    output = found.get("output")
    return (
        LINEAR_WEIGHT in case.given
        and output is not None
        and output.dtype == to
        and to != getattr(torch, case.dtype)
    )


def _as_declared(found: Results, case: Case) -> dict[str, torch.Tensor | None]:
    """Round what autocast has left in float32 to the dtype of the case: torch's own norms do either.

    On a GPU torch runs its norms in float32 then and returns float32, on the CPU in the input's dtype.
    """
    half = getattr(torch, case.dtype)
    return {
        name: t.to(half) if t is not None and name == "output" and t.dtype == torch.float32 else t
        for name, t in found.items()
    }


def _no_such_algorithm(subject: Subject, error: RuntimeError) -> str:
    """Say why a subject that guarantees no determinism may raise here, or nothing."""
    text = str(error)
    asked = "torch.use_deterministic_algorithms(True)" in text and not is_own(error)
    workspace = "CUBLAS_WORKSPACE_CONFIG" in text
    if not asked or ("determinism" in subject.guarantees and not workspace):
        return ""
    return "torch has no deterministic algorithm for what the subject calls, and says so"
