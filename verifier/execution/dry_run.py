"""Runs a wrapper without its kernels: launches are noted, nothing is compiled, tensors have no memory.

What a wrapper launches follows from extents alone, unless it reads numbers: a call takes a millisecond, and
an extent of 2^20 costs what one of 1 does. The process is spoiled for real runs if the subject keeps tensors.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any, TypeGuard

import numpy as np
import torch

from verifier.execution.backend import Backend
from verifier.execution.loops_of_source import Loops, loops_of_cuda, loops_of_triton
from verifier.execution.timed_call import HANGS, Raised, call_within
from verifier.execution.turns_of_loops import (
    Head,
    heads_of_cuda,
    heads_of_triton,
    of_launch,
    template_names,
    whole,
)
from verifier.execution.ways_of_calling import PLAIN, CallingWay
from verifier.execution.wrapper_lines import SourceLine, follow
from verifier.machine.device.without_memory import NOWHERE, without_memory
from verifier.ops import op
from verifier.records.case import Case
from verifier.records.observation import Observation
from verifier.records.planned_launches import AGAIN, SEVENFOLD, VALUE, WRAPPER, DryRun, Planned, ShapePoint
from verifier.records.subject import Subject
from verifier.subjects import cuda_source
from verifier.subjects.source_map import source_map

CALL_SECONDS = 2.0
"""Limit of one call by the clock: one takes milliseconds, and more only where it hangs."""
FIRST_SECONDS = 20.0
"""The same of the first call, in which a wrapper may import what it needs."""
HANGING = 2
"""Calls that hang after which no other is tried."""
MOST_TILES = 3
"""Tiles are counted as far: one, several of which the last is the second, more."""
LEAST_TILE = 16
"""A constant below is a number of stages or of rows at once, and no tile."""
NO_WIDTH = 0
"""Of a compilation of CUDA C++, whose time does not grow with a tile."""


def plan_launches(
    subject: Subject, case: Case, *, backend: Backend, points: Sequence[ShapePoint], gradients: bool
) -> Observation:
    """Call the subject at every point with tensors that have no memory; `found` is a `DryRun`.

    case: whose dtypes, scalars and absent tensors the calls have. gradients: call backward, too.
    """
    del backend  # an experiment is told where it runs; tensors without memory are nowhere
    planned: list[Planned] = []
    files: set[str] = {str(subject.path)}
    hung, ended, wrapper = 0, "", Wrapper.of(subject)
    with without_memory(), recording() as recorder:
        for point in points:
            recorder.begin()
            call = partial(called, subject, case, point, PLAIN, gradients=gradients, recorder=recorder)
            with follow(wrapper.files, recorder.ran):
                refused = call_within(CALL_SECONDS if planned else FIRST_SECONDS, call)
            hung += refused.text == HANGS
            planned.append(planned_of(recorder, wrapper, refused, gradients=gradients))
            files.update(*(launch.files for launch in recorder.launches))
            if hung >= HANGING:
                ended = f"{hung} of {len(planned)} calls did not come back within {CALL_SECONDS:g} seconds"
                break
    found = DryRun(planned=tuple(planned), files=tuple(sorted(files)), ended=ended)
    return Observation(status="ok", found=found)


def called(
    subject: Subject, case: Case, point: ShapePoint, way: CallingWay, *, gradients: bool, recorder: Recorder
) -> None:
    """Call the subject once in a way, and its backward pass."""
    the_op = op(case.op)
    shapes = the_op.shapes(*point)
    assert shapes is not None
    tensors = {
        name: torch.empty(shapes.tensors[name], dtype=given.dtype, device=NOWHERE)
        for name, given in case.given.items()
        if name in shapes.tensors
    }
    for name in the_op.differentiable if gradients else ():
        if name in tensors and subject.gives_gradient(name) and (way.asked is None or name in way.asked):
            tensors[name].requires_grad_(True)
    known = {**dict.fromkeys(case.tensors), **case.scalars, **shapes.scalars, **tensors}
    arguments = {name: known[name] for name in subject.signature if name in known}
    alone = [n for n, p in subject.signature.items() if p.kind is p.POSITIONAL_ONLY]

    def differentiate() -> None:
        given = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
        named = dict(zip(subject.returns, given, strict=False)) | {"output": given[0]}
        recorder.note("what it returns", named)
        incoming = {n: g for n, g in the_op.incoming.items() if n in named and g in tensors}
        outputs = [named[name] for name in incoming if way.used in {"", name}]
        wanted = {n: t for n, t in arguments.items() if isinstance(t, torch.Tensor) and t.requires_grad}
        if not (gradients and outputs and wanted and way.backward != "never"):
            return
        if all(isinstance(t, torch.Tensor) and t.requires_grad for t in outputs):
            recorder.begin_backward()
            told = [tensors[g] for n, g in incoming.items() if way.used in {"", n}]
            found = torch.autograd.grad(outputs, [*wanted.values()], told, allow_unused=True)
            recorder.note("its gradients", dict(zip(wanted, found, strict=True)))

    with way.enter():
        passed = way.given(arguments)
        recorder.know({**tensors, **passed})
        returned = subject.function(
            *(passed[n] for n in alone), **{n: v for n, v in passed.items() if n not in alone}
        )
        if way.backward != "after":
            differentiate()
    if way.backward == "after":
        differentiate()


# What is noted of a launch


@dataclass(frozen=True, kw_only=True)
class _Noted:
    """One launch: its features, its compilation with the widest tile, and the sources that made it.

    built: its constants. grid: its extents along x, y and z. loops: as in `Planned`.
    """

    kernel: str
    features: frozenset[str]
    loops: frozenset[tuple[str, int, bool]]
    compiled: tuple[str, int]
    built: tuple[str, ...]
    files: tuple[str, ...]
    backward: bool
    grid: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Wrapper:
    """The statements of a wrapper, by file and line: what to call that one of them ran."""

    statements: Mapping[SourceLine, str]

    @classmethod
    def of(cls, subject: Subject) -> Wrapper:
        """Read the sources of a subject."""
        every = [s for s in source_map(subject).statements if not s.refuses]
        return cls(
            statements={
                (s.path, n): f"{WRAPPER}{s.place.file}:{s.place.line}" for s in every for n in s.lines
            }
        )

    @cached_property
    def files(self) -> frozenset[str]:
        """The files of the wrapper."""
        return frozenset(path for path, _ in self.statements)

    def features(self, ran: Iterable[SourceLine]) -> frozenset[str]:
        """Return which statements ran, of lines that did."""
        return frozenset(self.statements[line] for line in ran if line in self.statements)


def planned_of(recorder: Recorder, wrapper: Wrapper, refused: Raised, *, gradients: bool) -> Planned:
    """Join what was noted of one call, and of its forward pass."""
    launches = recorder.launches
    before = [launch for launch in launches if not launch.backward]
    ahead = recorder.ran_before if recorder.backward else recorder.ran
    forward = _joined(before, wrapper.features(ahead), refused) if gradients else None
    return replace(_joined(launches, wrapper.features(recorder.ran), refused), forward=forward)


def _joined(launches: Sequence[_Noted], lines: frozenset[str], refused: Raised) -> Planned:
    ran = frozenset[str]() if refused.text else lines  # what ran before an error runs where there is none
    return Planned(
        features=ran.union(*(launch.features for launch in launches)),
        compiled=frozenset(launch.compiled for launch in launches),
        built=frozenset((launch.kernel, launch.built) for launch in launches),
        grids=_grids(launches),
        loops=frozenset().union(*(launch.loops for launch in launches)),
        refused=refused.text,
        fails=bool(refused.text) and not refused.on_purpose,
    )


def _grids(launches: Iterable[_Noted]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for launch in launches:
        found[launch.kernel] = tuple(map(max, launch.grid, found.get(launch.kernel, launch.grid)))
    return found


_NO_LOOPS = Loops(products={})


@cache
def _stem(file: str) -> str:
    return Path(file).stem


Detail = tuple[str, dict[str, object]]
"""A kernel, or what else takes or gives values, and these by name."""


@dataclass(kw_only=True)
class Recorder:
    """Stands where kernels are launched.

    ran: lines of the wrapper that ran in this call; ran_before: those of its forward pass, once it is over.
    details: what each launch was given, and what came back, where somebody wants it; own: the tensors of the
    call itself, by name. reads_loops: whether sources of kernels are read for what their loops go over.
    """

    launches: list[_Noted] = field(default_factory=list)
    ran: set[SourceLine] = field(default_factory=set)
    ran_before: frozenset[SourceLine] = frozenset()
    backward: bool = False
    details: list[Detail] | None = None
    own: dict[str, torch.Tensor] = field(default_factory=dict)
    reads_loops: bool = True
    _sources: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _loops: dict[str, Loops] = field(default_factory=dict)
    _heads: dict[str, tuple[Head, ...]] = field(default_factory=dict)

    def begin(self) -> None:
        """Forget the call before."""
        self.launches.clear()
        self.ran.clear()
        self.backward = False
        self.own.clear()
        if self.details is not None:
            self.details.clear()

    def know(self, own: Mapping[str, object]) -> None:
        """Take these for the tensors of the call itself."""
        self.own.update({name: t for name, t in own.items() if isinstance(t, torch.Tensor)})

    def note(self, name: str, given: Mapping[str, object]) -> None:
        """Note details, if anybody wants them."""
        if self.details is not None:
            self.details.append((name, dict(given)))

    def begin_backward(self) -> None:
        """Tell what ran so far from what the backward pass runs besides."""
        self.backward, self.ran_before = True, frozenset(self.ran)

    def triton(self, kernel: Any, args: Sequence[object], grid: Any, options: Mapping[str, object]) -> None:
        """Note the launch of a Triton kernel."""
        given = dict(zip(kernel.arg_names, args, strict=False))
        given |= {name: value for name, value in options.items() if name in kernel.arg_names}
        for parameter in kernel.params:
            if parameter.name not in given and parameter.has_default:
                given[parameter.name] = parameter.default
        file = kernel.fn.__code__.co_filename
        name = f"{_stem(file)}.{kernel.__name__}"
        constants = {p.name: given.get(p.name) for p in kernel.params if p.is_constexpr}
        tiles: dict[str, int] = {n: v for n, v in constants.items() if _is_tile(v)}
        if name not in self._loops and self.reads_loops:
            self._loops[name] = loops_of_triton(kernel, constants)
            self._heads[name] = heads_of_triton(kernel, constants)
        loops = self._loops.get(name, _NO_LOOPS)
        extents = tuple(map(int, grid(given) if callable(grid) else grid))
        features = set(_of_grid(name, extents))
        self.note(name, {**options, **given, "grid": extents})
        for n, value in given.items():
            features.update((_of_constant if n in constants else _of)(name, n, value))
        for n, value in loops.named({n: v for n, v in given.items() if n not in constants}).items():
            through = {tile: width for tile, width in tiles.items() if loops.goes_through(n, tile)}
            features.update(_looped(name, n, value, through))
        if "num_warps" in options:  # of one warp or of several: a sum is another program
            features.add(f"{name}: num_warps is {options['num_warps']}")
        special = ",".join(f"{n}={_specialised(v, constant=n in constants)}" for n, v in given.items())
        features |= {*_again(name, turns := _turns(self._heads.get(name, ()), whole(given)))}
        compiled = (special, max(tiles.values(), default=1))
        fixed = {**constants, "num_warps": options.get("num_warps")}
        built = tuple(f"{n}={_specialised(v, constant=True)}" for n, v in fixed.items())
        self._note(name, features, turns, compiled, built=built, file=file, grid=extents)

    def cuda(self, launch: cuda_source.Launch, args: Sequence[object]) -> None:
        """Note the launch of a kernel of CUDA C++."""
        name, _, template = launch.kernel.expression.removesuffix(">").partition("<")
        threads = int(np.prod(launch.block))
        tiles = {"block": threads} if threads >= LEAST_TILE else {}
        features = {f"{name}: warps is {-(-threads // 32)}", *_of_grid(name, launch.grid)}
        for number, word in enumerate(template.split(",")):
            features.update(_of_constant(name, f"<{number}>", _read(word.strip())))
        path = launch.kernel.source.path
        names = launch.kernel.parameter_names(args) or [f"({number})" for number in range(len(args))]
        given = dict(zip(names, map(_plain, args), strict=True))
        self.note(name, {**given, "template": template, "grid": launch.grid, "block": launch.block})
        for n, value in given.items():
            features.update(_of(name, n, value))
        loops = loops_of_cuda(path, name) if self.reads_loops else _NO_LOOPS
        for n, value in loops.named(given).items():
            if loops.strides_to(n):
                features.update(_looped(name, n, value, tiles))
            if loops.counts_to(n):
                features.update(_looped(name, n, value, {}))
        words = map(_read, map(str.strip, template.split(",")))
        turns: _Turns = {}
        if self.reads_loops:
            constants = dict(zip(template_names(path, name), words, strict=False))
            values = of_launch(given, constants, launch.grid, launch.block)
            features |= {*_again(name, turns := _turns(heads_of_cuda(path, name), values))}
        built = (f"<{template}>", f"{'x'.join(map(str, launch.block))} threads")
        compiled = (template, NO_WIDTH)
        self._note(name, features, turns, compiled, built=built, file=str(path), grid=launch.grid)

    def _note(
        self,
        name: str,
        features: set[str],
        turns: _Turns,
        compilation: tuple[str, int],
        *,
        built: tuple[str, ...],
        file: str,
        grid: Sequence[int],
    ) -> None:
        if name not in self._sources:
            self._sources[name] = (file, *_callers())
        special, width = compilation
        self.launches.append(
            _Noted(
                kernel=name,
                features=frozenset({name, *features}),
                loops=frozenset((*where, n is None or n > 1) for where, n in turns.items()),
                compiled=(f"{name}[{special}]", width),
                built=built,
                files=self._sources[name],
                backward=self.backward,
                grid=(*grid, 1, 1)[:3],
            )
        )


@contextmanager
def recording() -> Iterator[Recorder]:
    """Put a recorder where Triton and the project launch kernels."""
    recorder = Recorder()

    def on_device(self: cuda_source.Launch, *arguments: object) -> None:
        recorder.cuda(self, arguments)

    with ExitStack() as stack:
        _replace(stack, cuda_source.Launch, "__call__", on_device)
        try:
            from triton.runtime.jit import JITFunction
        except ImportError:
            pass
        else:
            _replace(stack, JITFunction, "run", _run_by(recorder))
        yield recorder


def _run_by(recorder: Recorder) -> Callable[..., object]:
    def run(self: object, *args: object, grid: object, warmup: bool, **options: object) -> object:
        if not warmup:
            recorder.triton(self, args, grid, options)
        return SimpleNamespace(metadata=None)

    return run


def _replace(stack: ExitStack, owner: type, name: str, value: object) -> None:
    stack.callback(setattr, owner, name, vars(owner)[name])
    setattr(owner, name, value)


_LIBRARIES = frozenset({*sys.stdlib_module_names, "torch", "triton", "numpy", "verifier", "strategies"})


def _callers() -> Iterator[str]:
    """Yield the files of the functions on the way to a launch, and of what these know by name."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    while frame is not None and frame.f_code.co_filename != __file__:
        known = frame.f_globals
        if str(known.get("__name__")).partition(".")[0] not in _LIBRARIES:
            yield frame.f_code.co_filename
            yield from filter(None, map(_file_of, known.values()))
        frame = frame.f_back


def _file_of(value: object) -> str | None:
    """Return the file of a module or of a function, unless it is a library's."""
    home = sys.modules.get(getattr(value, "__module__", None) or "")
    module = value if isinstance(value, ModuleType) else home
    own = module is not None and module.__name__.partition(".")[0] not in _LIBRARIES
    return getattr(module, "__file__", None) if own else None


_Turns = Mapping[tuple[str, int], int | None]
"""How often the loops of a launch turn, by file and line; None where their heads do not tell."""


def _turns(heads: Iterable[Head], values: Mapping[str, int]) -> _Turns:
    return {head.where: head.turns(values) for head in heads}


def _again(kernel: str, turns: _Turns) -> Iterator[str]:
    """Say which loops turn more than once."""
    for (file, line), n in turns.items():
        if n is not None and n > 1:
            yield f"{kernel}: loops over {file}:{line}{AGAIN}"


def _of_grid(kernel: str, extents: Sequence[int]) -> Iterator[str]:
    for axis, extent in zip("xyz", extents, strict=False):
        yield f"{kernel}: grid {axis} {_class(int(extent))}"


def _of_constant(kernel: str, name: str, value: object) -> Iterator[str]:
    """Say what a constant is; of a number only whether it is 0, 1 or more, for it may be a size."""
    if isinstance(value, int) and not isinstance(value, bool):
        yield f"{kernel}: {name} {_class(value)}"
    else:
        yield f"{kernel}: {name} is {_word(value)}"


def _of(kernel: str, name: str, value: object) -> Iterator[str]:
    """Say what an argument is, its size left out."""
    if isinstance(value, torch.Tensor):
        yield f"{kernel}: {name} is {value.dtype}"
    elif isinstance(value, int) and not isinstance(value, bool):
        yield f"{kernel}: {name} {_class(value)}"
    elif isinstance(value, float):
        yield f"{kernel}: {name}{VALUE}{value!r}"
    else:
        yield f"{kernel}: {name} is {_word(value)}"


def _looped(kernel: str, name: str, value: int, tiles: Mapping[str, int]) -> Iterator[str]:
    """Say how often tiles go into an integer that a loop goes over; without a tile, the integer's class."""
    for tile, width in tiles.items():
        tiles_of_it = -(-value // width)
        yield f"{kernel}: loops over {name} by {tile} {min(MOST_TILES, tiles_of_it)}"
        if tiles_of_it % 8 == 7:  # of four turns written out, one turn and all of the rest
            yield f"{kernel}: loops over {name} by {tile}{SEVENFOLD}"
    if not tiles:
        yield f"{kernel}: loops over {name} {_class(value)}"


def _plain(value: object) -> object:
    """Return a number of NumPy or C as Python's."""
    if isinstance(value, np.generic):
        return value.item()
    return value.value if isinstance(value, ctypes._SimpleCData) else value


def _is_tile(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= LEAST_TILE


def _class(value: int) -> str:
    return {0: "0", 1: "1"}.get(value, "n" if value > 0 else "negative")


def _word(value: object) -> str:
    named = getattr(value, "__name__", None)
    if isinstance(value, bool | str | torch.dtype | None):
        return str(value)
    return named if isinstance(named, str) else str(getattr(value, "name", type(value).__name__))


def _specialised(value: object, *, constant: bool) -> str:
    """Say what of an argument a compilation of Triton depends on."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype)
    if constant or not isinstance(value, int) or isinstance(value, bool):
        return _word(value) if not isinstance(value, int | float) else str(value) if constant else "number"
    return "1" if value == 1 else "16" if value % 16 == 0 else "i64" if value >= 1 << 31 else "int"


def _read(word: str) -> int | str:
    return int(word) if word.lstrip("-").isdigit() else word
