"""Runs a wrapper without its kernels in other ways than the plain one, and says what it does differently.

The same wrapper at the same extents is called plainly and in a mode, say: which kernels and statements run,
what they are given and which operations of torch compute is compared.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch._ops import OpOverload

from strategies.registry import imported
from verifier.execution.backend import Backend
from verifier.execution.dry_run import (
    CALL_SECONDS,
    FIRST_SECONDS,
    HANGING,
    Detail,
    Recorder,
    Wrapper,
    called,
    planned_of,
    recording,
)
from verifier.execution.process_copy import in_a_copy
from verifier.execution.timed_call import HANGS, call_within
from verifier.execution.ways_of_calling import PLAIN, CallingWay
from verifier.execution.wrapper_lines import follow
from verifier.machine.culprit import passed_on
from verifier.machine.device.dispatch_mode import is_custom, run_custom
from verifier.machine.device.dispatching import Dispatching
from verifier.machine.device.without_memory import without_memory
from verifier.records.case import Case
from verifier.records.observation import Observation
from verifier.records.planned_launches import VALUE, Planned, ShapePoint, Unlike, WaysRun
from verifier.records.subject import Subject
from verifier.subjects.process_settings import settings_kept

_wrappers: dict[tuple[str, str], Wrapper] = {}
RAISES = "it raises an error"
_DIGITS = 3
"""Significant digits to which the quotient of two numbers is told."""


def plan_ways(
    subject: Subject,
    case: Case,
    *,
    backend: Backend,
    points: Sequence[ShapePoint],
    gradients: bool,
    of: str,
    only: Collection[str] = (),
) -> Observation:
    """Call the subject at every point plainly and in each way; `found` is a `WaysRun`.

    of: "module:function" of a function (subject, backend) -> ways by name. only: the names of those that are
    wanted, if not all. Ways that ask for a history are called in copies of this process, which is to have
    called nothing yet.
    """
    module, function = of.split(":")
    every: Mapping[str, CallingWay] = getattr(imported(module), function)(subject, backend)
    ways = {name: way for name, way in every.items() if name in only or not only}
    found: dict[str, dict[ShapePoint, Unlike]] = {name: {} for name in ways}
    with without_memory(), recording() as recorder:
        calls = _Calls(subject=subject, case=case, gradients=gradients, recorder=recorder, backend=backend)
        for name, way in ways.items():
            if way.history:
                found[name] = calls.in_copies(points, way)
        rest = {name: way for name, way in ways.items() if not way.history}
        for point in points if rest else ():
            plain = calls.made(point, PLAIN)
            for name, way in rest.items() if plain.answered else ():
                if calls.concerns(way):
                    found[name][point] = unlike(plain, calls.made(point, way))
            if calls.hung >= HANGING:
                break
    ended = f"{calls.hung} calls did not come back" if calls.hung >= HANGING else ""
    seen = WaysRun(ways=found, files=tuple(sorted(calls.files)), ended=ended)
    return Observation(status="ok", found=seen)


@dataclass(frozen=True, kw_only=True)
class Made:
    """What one call did.

    given: by kernel or operation, what each of its launches was given, in words, in their order.
    """

    planned: Planned
    given: Mapping[str, Sequence[Mapping[str, object]]]

    @property
    def answered(self) -> bool:
        """Whether it did not raise."""
        return not self.planned.refused

    @property
    def counts(self) -> Counter[str]:
        """How often what occurs does."""
        found = Counter({name: len(several) for name, several in self.given.items()})
        # Floating-point numbers stand among what was given, and are compared by their quotient.
        shown = (f for f in self.planned.features if f not in found and VALUE not in f)
        found.update(dict.fromkeys(shown, 1))
        if not self.answered:
            found[RAISES] = 1
        return found


def unlike(plain: Made, other: Made) -> Unlike:
    """Say what one call does differently from another."""
    usual, here = plain.counts, other.counts
    return Unlike(
        more=frozenset(here - usual),
        less=frozenset(usual - here) if other.answered else frozenset(),
        other=frozenset(_others(plain.given, other.given)),
        ran=frozenset(here),
        compiled=other.planned.compiled,
    )


def _others(
    plain: Mapping[str, Sequence[Mapping[str, object]]], other: Mapping[str, Sequence[Mapping[str, object]]]
) -> Iterator[str]:
    """Say what is given otherwise where launches are as many."""
    for name in plain.keys() & other.keys():
        if len(plain[name]) != len(other[name]):
            continue
        for before, now in zip(plain[name], other[name], strict=True):
            for key in before.keys() | now.keys():
                was, is_ = before.get(key), now.get(key)
                if was != is_:
                    yield f"{name}: {key} is {_compared(was, is_)}"


def _compared(was: object, now: object) -> str:
    """Say how a value differs: of floats by which factor, of flags and words what it is."""
    if isinstance(was, float) and isinstance(now, float) and was:
        return f"{now / was:.{_DIGITS}g} times as large"
    return f"{now}" if isinstance(now, bool | str | None) else "another"


@dataclass(kw_only=True)
class _Calls:
    """Makes dry calls of one subject.

    hung: how many did not come back. alone: two calls at a point in a process that had called nothing.
    """

    subject: Subject
    case: Case
    gradients: bool
    recorder: Recorder
    backend: Backend
    hung: int = 0
    begun: bool = False
    alone: dict[ShapePoint, list[Made]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        named = (str(self.subject.path), self.subject.name)
        if named not in _wrappers:
            _wrappers[named] = Wrapper.of(self.subject)
        self.wrapper = _wrappers[named]
        self.files = {str(self.subject.path)}

    def concerns(self, way: CallingWay) -> bool:
        """Return whether a way is one of another device and the wrapper has asked for nothing of it."""
        return not way.processors or self.backend.asked_processors() > 0

    def made(self, point: ShapePoint, way: CallingWay) -> Made:
        """Call in a way; what is raised is kept."""
        recorder = self.recorder
        recorder.details = []
        recorder.begin()
        call = partial(
            called, self.subject, self.case, point, way, gradients=self.gradients, recorder=recorder
        )
        device = self.backend.varied(multiprocessors=way.processors) if way.processors else nullcontext()
        with settings_kept(), device, follow(self.wrapper.files, recorder.ran), _Operations(recorder):
            raised = call_within(CALL_SECONDS if self.begun else FIRST_SECONDS, call)
        self.begun = True
        self.hung += raised.text == HANGS
        self.files.update(*(launch.files for launch in recorder.launches))
        # Without a backward pass all is of the forward pass.
        planned = replace(planned_of(recorder, self.wrapper, raised, gradients=False), forward=None)
        return Made(planned=planned, given=_in_words(recorder.details, recorder.own))

    def in_copies(self, points: Sequence[ShapePoint], way: CallingWay) -> dict[ShapePoint, Unlike]:
        """Call in copies of this process that have called nothing yet.

        "first": each point in a copy of its own. "after": each in turn in one copy, after `way.small`. Either
        is compared with a second call of the same point in a copy of its own.
        """
        self.recorder.reads_loops = False  # each copy would read them anew
        for point in points:
            if point not in self.alone:
                self.alone[point] = in_a_copy(partial(self._in_turn, (point, point))) or []
        if way.history == "first":
            made = {point: calls[0] for point, calls in self.alone.items() if calls}
        else:
            in_turn = in_a_copy(partial(self._in_turn, (way.small, *points))) or []
            made = dict(zip(points, in_turn[1:], strict=False))
        self.recorder.reads_loops = True
        again = {point: calls[1] for point, calls in self.alone.items() if calls and calls[1].answered}
        return {p: unlike(again[p], one) for p, one in made.items() if p in again}

    def _in_turn(self, points: Iterable[ShapePoint]) -> list[Made]:
        return [self.made(point, PLAIN) for point in points]


# What calls are given, in words


class _Operations(Dispatching):
    """Notes torch's own operations among the launches: a wrapper may compute by them."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder

    def dispatched(self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Note the operation with its dtypes as its name, and run it as it is."""
        values = [*_flat(args), *_flat(kwargs.values())]
        dtypes = ", ".join(str(t.dtype) for t in values if isinstance(t, torch.Tensor))
        given = {f"argument {n}": v for n, v in enumerate(values) if isinstance(v, bool | float)}
        self.recorder.note(f"torch.{func.overloadpacket.__name__}({dtypes})", given)
        if is_custom(func):
            return run_custom(self, func, args, kwargs)
        return passed_on(func, *args, **kwargs)


def _flat(values: Iterable[object]) -> Iterator[object]:
    for value in values:
        if isinstance(value, tuple | list):
            yield from _flat(value)
        else:
            yield value


def _in_words(
    details: Iterable[Detail], own: Mapping[str, torch.Tensor]
) -> dict[str, list[dict[str, object]]]:
    """Return what launches were given, each tensor by what it is and where it came from first."""
    origins = {_memory(t): name for name, t in own.items()}
    found: dict[str, list[dict[str, object]]] = defaultdict(list)
    for name, given in details:
        words: dict[str, object] = {}
        for key, value in given.items():
            if isinstance(value, torch.Tensor):
                came = origins.setdefault(_memory(value), f"{name}, {key}")
                words |= {f"{part} of {key}": one for part, one in _parts(value).items()}
                words[f"tensor {key}"] = came
            else:
                words[key] = _plain_word(value)
        found[name].append(words)
    return found


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _parts(tensor: torch.Tensor) -> dict[str, object]:
    return {
        "dtype": str(tensor.dtype),
        "shape": tuple(tensor.shape),
        "strides": tensor.stride(),
        "offset": tensor.storage_offset(),
        "memory": tensor.untyped_storage().nbytes(),
    }


def _plain_word(value: object) -> object:
    if isinstance(value, bool | int | float | str | None):
        return value
    if isinstance(value, tuple):
        return tuple(map(_plain_word, value))
    return str(getattr(value, "__name__", None) or type(value).__name__)
