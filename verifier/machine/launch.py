"""Launches: from a kernel, a grid and arguments to waves of blocks executed one after the other."""

# ruff: noqa: PLR0917 - these are called by position, many times a launch

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from verifier.machine import emitter as emission
from verifier.machine import flow, uniformity
from verifier.machine.approximation import Approximation, Correct
from verifier.machine.findings import LaunchError
from verifier.machine.memory import LOCAL_TAG, SHARED_TAG, TAG_SHIFT, GlobalMemory
from verifier.machine.parser import parse
from verifier.machine.sanitizers.uninitialised import Flags
from verifier.machine.scheduler import Scheduler
from verifier.machine.sessions import current
from verifier.machine.syntax import BITS, Address, Instruction, Module, Operand, Symbol, Variable, Vector
from verifier.machine.wave import Monitor, Wave

if TYPE_CHECKING:
    import torch

    from verifier.machine.flow import Program
    from verifier.machine.numerics import Array

_MAX_THREADS = 1024
_MAX_GRID_YZ = 65535
_MAX_SHARED = {80: 166912, 86: 101376, 89: 101376, 90: 232448, 100: 232448, 120: 101376}
# A wave of about this many lanes keeps the live registers in the processor's cache.
_LANES_PER_WAVE = 8192
_STEP_LIMIT = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A device to be played: architecture, size, and the answers where PTX leaves a choice.

    `contraction`: "on" fuses multiplications and additions as ptxas may, "off" runs the PTX as written.
    `schedule_seed`: None serves blocks in order, an integer in a random order.
    `poison`: byte that fills registers and shared memory before use; None means zeros.
    `bounds`: "storage" lets a kernel touch all of a tensor's storage, "view" only the bytes between the
    first and the last element of the tensor it was given.
    `sanitize`: names of the optional sanitizers: uninitialised, shared_races, unequal_stores (by
    lanes of one warp to one shared byte in one instruction), global_races, inputs
    (no store to the arguments named in `read_only`), outputs (every element of those in `outputs` written).
    """

    architecture: int = 90
    multiprocessors: int = 132
    contraction: str = "off"
    approximation: Approximation = field(default_factory=Correct)
    schedule_seed: int | None = None
    poison: int | None = 0xA5
    bounds: str = "storage"
    sanitize: frozenset[str] = frozenset()
    step_limit: int = _STEP_LIMIT
    lanes_per_wave: int = _LANES_PER_WAVE
    read_only: frozenset[str] = frozenset()
    outputs: frozenset[str] = frozenset()

    def max_shared(self) -> int:
        """Bytes of shared memory that a block may ask for."""
        known = [a for a in _MAX_SHARED if a <= self.architecture]
        return _MAX_SHARED[max(known)] if known else 49152


@dataclass(kw_only=True)
class Compiled:
    """A kernel translated to Python: source, code, and where each instruction came from."""

    program: Program
    source: str
    code: Any
    constants: dict[str, Any]
    sites: list[Instruction]
    shapes: uniformity.Shapes
    used: frozenset[str]
    broken: tuple[str, ...]


@lru_cache(maxsize=256)
def parsed(ptx: str) -> Module:
    """Parse a module once."""
    return parse(ptx)


@lru_cache(maxsize=512)
def compiled(ptx: str, kernel: str, contraction: str, full_shapes: bool, shadow: str | None) -> Compiled:
    """Translate a kernel once."""
    module = parsed(ptx)
    function = module.functions.get(kernel)
    if function is None or not function.is_kernel:
        names = ", ".join(f.name for f in module.functions.values() if f.is_kernel)
        raise LaunchError(f"no kernel {kernel!r} in the module; it has: {names}")
    if contraction not in ("on", "off"):
        raise ValueError(f"contraction is 'on' or 'off', not {contraction!r}")
    program = flow.build(module, function, contraction=contraction == "on")
    shapes = uniformity.all_full(program) if full_shapes else uniformity.analyse(program)
    rider = None
    if shadow is not None:
        from verifier.machine.shadows import make_shadow

        rider = make_shadow(shadow, program, shapes)
    work = emission.Emitter(program, shapes, rider)
    source = work.emit()
    code = compile(source, f"<machine:{kernel}>", "exec")
    return Compiled(
        program=program,
        source=source,
        code=code,
        constants=work.code.constants,
        sites=work.sites,
        shapes=shapes,
        used=frozenset(_used_names(program)),
        broken=tuple(f"{kernel}:{i.line} {i.opcode}" for i in rider.broken()) if rider else (),
    )


@dataclass(kw_only=True)
class Frame:
    """Byte offsets of a kernel's static shared and local variables."""

    symbols: dict[str, int]
    shared: int
    local: int


def lay_out(program: Program, named: frozenset[str], memory: GlobalMemory, dynamic_shared: int) -> Frame:
    """Place variables: static shared first, then the dynamic array; local ones in each lane's frame."""
    symbols: dict[str, int] = {}
    shared, local = 0, 0
    everything = {**program.module.variables, **program.variables}
    for variable in everything.values():
        if variable.space == "shared" and variable.size and variable.name in named:
            shared = -(-shared // variable.alignment) * variable.alignment
            symbols[variable.name] = shared
            shared += variable.size
    dynamic = -(-shared // 16) * 16
    for variable in everything.values():
        if variable.space == "shared" and not variable.size:
            symbols[variable.name] = dynamic
            shared = dynamic + dynamic_shared
        elif variable.space in ("local", "param"):
            local = -(-local // variable.alignment) * variable.alignment
            symbols[variable.name] = local
            local += variable.size
        elif variable.space in ("global", "const") and variable.name in named:
            symbols[variable.name] = _global_variable(program.module, variable, memory)
    _fill_references(everything, symbols, memory)
    return Frame(symbols=symbols, shared=shared, local=local)


def _used_names(program: Program) -> set[str]:
    """Variables that the kernel's instructions mention."""
    known = {**program.module.variables, **program.variables}
    names = {name for i in program.instructions() for name in (*symbols_of(i.operands), *i.arguments)}
    waiting = list(names)
    while waiting:
        variable = known.get(waiting.pop())
        for _, word in variable.references if variable else ():
            name = word.split("+")[0].strip()
            if name not in names:
                names.add(name)
                waiting.append(name)
    return names


def symbols_of(operands: Sequence[Operand]) -> list[str]:
    """Names of the variables in operands."""
    names = []
    for operand in operands:
        if isinstance(operand, Symbol):
            names.append(operand.name)
        elif isinstance(operand, Address):
            names += symbols_of((operand.base,))
        elif isinstance(operand, Vector):
            names += symbols_of(operand.items)
    return names


def _global_variable(module: Module, variable: Variable, memory: GlobalMemory) -> int:
    """Map a module variable; its contents live as long as the module."""
    data = module.data.get(variable.name)
    if data is None:
        data = np.zeros(max(variable.size, 1), dtype=np.uint8)
        if variable.initial:
            data[: len(variable.initial)] = np.frombuffer(variable.initial, dtype=np.uint8)
        module.data[variable.name] = data
    return memory.map_array(data, f"variable {variable.name}").base


def _fill_references(variables: dict[str, Variable], symbols: dict[str, int], memory: GlobalMemory) -> None:
    """Write the addresses that initialisers name."""
    for variable in variables.values():
        for offset, name in variable.references if variable.name in symbols else ():
            region = memory.regions[symbols[variable.name] >> TAG_SHIFT]
            address = symbols[name.split("+")[0].strip()]
            region.octets[offset : offset + 8] = np.frombuffer(struct.pack("<Q", address), dtype=np.uint8)


def launch_ptx(
    ptx: str,
    kernel: str,
    grid: Sequence[int],
    block: Sequence[int],
    shared_bytes: int,
    arguments: Sequence[Any],
    *,
    machine: Machine | None = None,
    names: Sequence[str] | None = None,
) -> None:
    """Execute a kernel of a PTX module on CPU tensors, in place.

    grid, block: up to three extents. shared_bytes: dynamic shared memory of a block.
    arguments: one per kernel parameter: a torch tensor (its data pointer is passed), a Python int, float or
    bool, a numpy scalar, a ctypes value, bytes (a structure passed by value), or None (a null pointer).
    Python numbers take the type and width of the PTX parameter. names: what reports call the arguments.

    Raises MachineFinding for a defect that execution shows, UnsupportedInstruction for PTX outside the
    subset, LaunchError for a launch that no device would accept.
    """
    session = current()
    machine = machine or (session.machine if session else Machine())
    Launch(ptx, kernel, grid, block, shared_bytes, arguments, machine, names).run()


def _extents(values: Sequence[int], what: str) -> tuple[int, int, int]:
    full = [int(v) for v in values] + [1] * (3 - len(values))
    if len(full) != 3 or any(v < 0 for v in full):
        raise LaunchError(f"{what} has to be up to three extents, not {tuple(values)}")
    return full[0], full[1], full[2]


class Launch:
    """One launch: arguments mapped, blocks ordered, waves run."""

    def __init__(
        self,
        ptx: str,
        kernel: str,
        grid: Sequence[int],
        block: Sequence[int],
        shared_bytes: int,
        arguments: Sequence[Any],
        machine: Machine,
        names: Sequence[str] | None,
    ) -> None:
        """See `launch_ptx`."""
        from verifier.machine.sanitizers import make_monitors

        self.machine, self.kernel = machine, kernel
        self.grid, self.block = _extents(grid, "grid"), _extents(block, "block")
        self.memory = GlobalMemory()
        self.monitors: tuple[Monitor, ...] = make_monitors(machine)
        full = any(getattr(monitor, "every_lane", False) for monitor in self.monitors)
        session = current()
        self.slots = session.slots if session else None
        shadow = "uninitialised" if "uninitialised" in machine.sanitize else None
        if self.slots is not None:
            if shadow:
                raise LaunchError("either an arithmetic or the tracking of uninitialised values, not both")
            shadow = "slots"
        self.compiled = compiled(ptx, kernel, machine.contraction, full or shadow == "uninitialised", shadow)
        if self.slots is not None:
            self.slots.counters.broken.update(self.compiled.broken)
        self.frame = lay_out(self.compiled.program, self.compiled.used, self.memory, shared_bytes)
        self.names = list(names) if names else [p.name for p in self.compiled.program.kernel.parameters]
        self.parameters = self.pack(arguments)
        self.check()

    def check(self) -> None:
        """Refuse what a device would refuse."""
        threads = self.block[0] * self.block[1] * self.block[2]
        if self.grid[0] >= 1 << 31 or max(self.grid[1:]) > _MAX_GRID_YZ:
            raise LaunchError(
                f"a grid of {self.grid}; at most (2^31 - 1, {_MAX_GRID_YZ}, {_MAX_GRID_YZ}) is possible"
            )
        if not 1 <= threads <= _MAX_THREADS:
            raise LaunchError(f"a block of {threads} threads; between 1 and {_MAX_THREADS} are possible")
        if self.frame.shared > self.machine.max_shared():
            raise LaunchError(
                f"{self.frame.shared} bytes of shared memory; the device has {self.machine.max_shared()}"
            )
        required = self.compiled.program.kernel.directives.get("reqntid")
        if required and _extents(required, "reqntid") != self.block:
            raise LaunchError(f"the kernel requires blocks of {required} threads, not {self.block}")
        limit = self.compiled.program.kernel.directives.get("maxntid")
        if limit and threads > int(np.prod(limit)):
            raise LaunchError(
                f"the kernel allows at most {int(np.prod(limit))} threads a block, not {threads}"
            )

    def pack(self, arguments: Sequence[Any]) -> bytes:
        """Give the parameter buffer; tensors become addresses."""
        parameters = self.compiled.program.kernel.parameters
        if len(arguments) != len(parameters):
            raise LaunchError(f"{self.kernel} takes {len(parameters)} arguments, not {len(arguments)}")
        offsets = self.compiled.program.kernel.parameter_offsets()
        size = max((offsets[p.name] + p.size for p in parameters), default=0)
        buffer = bytearray(size)
        for parameter, name, value in zip(parameters, self.names, arguments, strict=True):
            data = self.argument_bytes(parameter, name, value)
            if len(data) > parameter.size:
                raise LaunchError(f"argument {name} has {len(data)} bytes, the parameter {parameter.size}")
            buffer[offsets[parameter.name] : offsets[parameter.name] + len(data)] = data
        return bytes(buffer)

    def argument_bytes(self, parameter: Variable, name: str, value: Any) -> bytes:
        """Bytes of one argument."""
        if value is None:
            return bytes(parameter.size)
        if isinstance(value, bytes | bytearray):
            return bytes(value)
        if hasattr(value, "data_ptr"):
            return struct.pack("<Q", map_tensor(self.memory, value, name, self.machine.bounds))
        if isinstance(value, np.generic | np.ndarray):
            return value.tobytes()
        if isinstance(value, bool | int | float):
            return scalar_bytes(parameter, value)
        return bytes(memoryview(value))

    def run(self) -> None:
        """Execute all blocks, wave after wave."""
        total = self.grid[0] * self.grid[1] * self.grid[2]
        if total == 0:
            return
        threads = self.block[0] * self.block[1] * self.block[2]
        per_wave = max(1, self.machine.lanes_per_wave // threads)
        numbers = block_numbers(total, self.machine.schedule_seed)
        steps = 0
        with np.errstate(all="ignore"):
            ready: tuple[Wave, Any] | None = None
            for start in range(0, total, per_wave):
                ids = coordinates(numbers(start, min(start + per_wave, total)), self.grid)
                if ready is None or ready[0].blocks != len(ids):
                    ready = self.prepare(ids)
                else:
                    ready[0].restart(ids)
                steps += self.run_wave(*ready, steps)
        for monitor in self.monitors:
            finish = getattr(monitor, "finish", None)
            if finish:
                finish(self)

    def prepare(self, ids: Array) -> tuple[Wave, Any]:
        """Allocate a wave for these blocks and bind the translated code to it."""
        wave = Wave(
            memory=self.memory,
            block_ids=ids,
            grid=self.grid,
            block=self.block,
            shared_size=self.frame.shared,
            local_size=self.frame.local,
            parameters=self.parameters,
            model=self.machine.approximation,
            poison=self.machine.poison,
            monitors=self.monitors,
            multiprocessors=self.machine.multiprocessors,
            symbols=self.frame.symbols,
            slots=self.slots,
        )
        if "uninitialised" in self.machine.sanitize:
            wave.flags = Flags(wave)
        namespace = runtime_names(wave) | self.compiled.constants
        exec(self.compiled.code, namespace)  # noqa: S102 - our own translation of the kernel
        return wave, namespace["build"](wave)

    def run_wave(self, wave: Wave, functions: Any, steps: int) -> int:
        """Execute a wave; return how many steps that took."""
        scheduler = Scheduler(
            self.compiled.program, wave, self.compiled.sites, self.machine.step_limit - steps
        )
        scheduler.run(*functions)
        return scheduler.steps


def block_numbers(total: int, seed: int | None) -> Any:
    """Order in which blocks are served, as a function of a range; random orders need the whole list."""
    if seed is None:
        return np.arange
    order = np.arange(total)
    np.random.default_rng(seed).shuffle(order)
    return lambda start, stop: order[start:stop]


def coordinates(numbers: Array, grid: tuple[int, int, int]) -> Array:
    """(n,) block numbers to (n, 3) coordinates."""
    return np.stack((numbers % grid[0], numbers // grid[0] % grid[1], numbers // (grid[0] * grid[1])), axis=1)


def scalar_bytes(parameter: Variable, value: float) -> bytes:
    """Bytes of a Python number in the type of the parameter."""
    kind, size = parameter.type, parameter.size
    if kind in ("f32", "f64", "f16") or (
        isinstance(value, float) and kind in ("b32", "b64", "b16", "u32", "u64", "u16")
    ):
        return struct.pack({2: "<e", 4: "<f", 8: "<d"}[size], value)
    width = BITS[kind] // 8
    return (int(value) & ((1 << 8 * width) - 1)).to_bytes(width, "little")


def map_tensor(memory: GlobalMemory, tensor: torch.Tensor, name: str, bounds: str) -> int:
    """Map the tensor's storage where it lies and return the address of its first element."""
    storage = tensor.untyped_storage()
    pointer, size = storage.data_ptr(), storage.nbytes()
    region = memory.by_host.get(pointer)
    offset = tensor.data_ptr() - pointer
    if region is None or size == 0:
        region = memory.map_bytes(pointer, size, name, keep=tensor)
        if bounds == "view":
            region.low, region.high = extent_of(tensor, offset)
    else:
        region.name = region.name if name in region.name.split("/") else f"{region.name}/{name}"
        if bounds == "view":
            low, high = extent_of(tensor, offset)
            region.low, region.high = min(region.low, low), max(region.high, high)
    return region.base + offset


def extent_of(tensor: torch.Tensor, offset: int) -> tuple[int, int]:
    """First byte and one past the last byte of a tensor's elements within its storage."""
    if tensor.numel() == 0:
        return offset, offset
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return offset, offset + (reach + 1) * tensor.element_size()


def allocate(wave: Wave, width: int, shape: int) -> Array:
    """Give a register for a wave, filled with the poison."""
    rows = wave.blocks if shape & uniformity.PER_BLOCK else 1
    columns = wave.threads if shape & uniformity.PER_THREAD else 1
    if width == 1:
        return np.zeros((rows, columns), dtype=bool)
    register = np.empty((rows, columns), dtype=f"u{width // 8}")
    register.view(np.uint8).fill(0 if wave.poison is None else wave.poison)
    return register


def runtime_names(wave: Wave) -> dict[str, Any]:
    """Names that every emitted kernel uses."""
    names = {
        name: getattr(np, name)
        for name in (
            "add",
            "subtract",
            "multiply",
            "divide",
            "negative",
            "absolute",
            "minimum",
            "maximum",
            "sqrt",
            "bitwise_and",
            "bitwise_or",
            "bitwise_xor",
            "invert",
            "equal",
            "not_equal",
            "less",
            "less_equal",
            "greater",
            "greater_equal",
            "positive",
            "isfinite",
            "isinf",
            "isnan",
            "reciprocal",
            "where",
            "copyto",
            "rint",
            "trunc",
            "floor",
            "ceil",
        )
    }
    if wave.flags is not None:
        names["flags"] = wave.flags
    if wave.slots is not None:
        names |= {"slots": wave.slots, "slots_zero": np.zeros((), dtype=wave.slots.arithmetic.dtype)}
    return names | {
        "wave": wave,
        "allocate": allocate,
        "model": wave.model,
        "np": np,
        "shared_tag": SHARED_TAG,
        "local_tag": LOCAL_TAG,
    }
