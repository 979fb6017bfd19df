"""Translation of a kernel of a PTX module, done once for each way in which it is executed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType
from typing import TYPE_CHECKING, Generic, TypeVar

from verifier.machine.execute.findings import LaunchError
from verifier.machine.kept_results import are_kept, kept
from verifier.machine.operations.resolve import resolve
from verifier.machine.ptx import basic_blocks, literals, packed_predicates
from verifier.machine.ptx.loops import Loop, loops_of
from verifier.machine.ptx.parser import parsed
from verifier.machine.ptx.syntax import Address, Instruction, Operand, Symbol, Vector
from verifier.machine.translate import emitter as emission
from verifier.machine.translate import uniformity
from verifier.machine.translate.guards import Guard, guards_of

if TYPE_CHECKING:
    from verifier.machine.ptx.basic_blocks import Program
    from verifier.machine.ptx.syntax import Function, Module
    from verifier.machine.shadow.emitter_kind import EmitterKind

Thing = TypeVar("Thing")


PROGRAM_IS = 3
"""Parts of a question that say which program it is: PTX, kernel, contraction."""


@dataclass(kw_only=True, eq=False)
class TranslatedKernel:
    """A kernel translated to Python: its code, and where each instruction came from.

    Python takes longer to compile a block than to write it, so that is done when the block is first reached.
    `question`: what was translated, and how; its first parts are all that the program follows from.
    """

    program: Program
    emitted: emission.Emitted
    prologue: CodeType
    constants: dict[str, object]
    sites: list[Instruction]
    shapes: uniformity.RegisterShapes
    used: frozenset[str]
    broken: tuple[str, ...]
    loops: tuple[Loop, ...]
    guards: tuple[Guard, ...] = ()
    blocks: dict[tuple[int, bool], CodeType] = field(default_factory=dict)
    allocations: dict[str, CodeType] = field(default_factory=dict)
    question: tuple[str, ...] = field(default=(), init=False)

    def allocation(self, expression: str) -> CodeType:
        """Code of an expression that allocates the slots of registers, of which there are few."""
        code = self.allocations.get(expression)
        if code is None:
            code = self.allocations[expression] = compile(expression, "<allocation>", "eval")
        return code

    def block(self, number: int, *, part: bool) -> CodeType:
        """Code that defines `block`, the function of one block for all lanes or for some.

        Lanes part in few kernels, and where they do, in many blocks: these are compiled and kept together.
        """
        if part and (number, True) not in self.blocks and are_kept():
            written = (self.program.kernel.name, *self.emitted.part)
            self.blocks |= kept("parts", written, lambda: self.compiled_blocks(part=True))
        code = self.blocks.get((number, part))
        if code is None:
            code = self.blocks[number, part] = self._compiled_block(number, part=part)
        return code

    def compiled_blocks(self, *, part: bool) -> dict[tuple[int, bool], CodeType]:
        """Compile every block of one form, for those who take it from the disk."""
        numbers = range(len(self.emitted.part if part else self.emitted.full))
        return {(number, part): self._compiled_block(number, part=part) for number in numbers}

    def _compiled_block(self, number: int, *, part: bool) -> CodeType:
        source = (self.emitted.part if part else self.emitted.full)[number]
        return compile(source, f"<machine:{self.program.kernel.name}:{number}>", "exec")


@lru_cache(maxsize=512)
def compiled(
    ptx: str, kernel: str, contraction: str, full_shapes: bool, shadows: EmitterKind | None
) -> TranslatedKernel:
    """Translate a kernel once; shadows: which of them the code moves, None for none."""
    module = parsed(ptx)
    function = module.functions.get(kernel)
    if function is None or not function.is_kernel:
        names = ", ".join(f.name for f in module.functions.values() if f.is_kernel)
        raise LaunchError(f"no kernel {kernel!r} in the module; it has: {names}")
    if contraction not in ("on", "off"):
        raise ValueError(f"contraction is 'on' or 'off', not {contraction!r}")
    named = {_MODULE: module, _KERNEL: function}
    question = (ptx, kernel, contraction, str(full_shapes), shadows.name if shadows is not None else "")
    made = kept(
        "translation",
        question,
        lambda: _translated(module, function, contraction, full_shapes, shadows),
        name=lambda made: {id(one): word for word, one in named.items()} | _functions(made.program),
        find=lambda word: named[word] if word in named else _function(word),
    )
    made.question = question
    return made


class _Identity(Generic[Thing]):
    """A thing as a key that equals no other's, though they may say the same."""

    def __init__(self, thing: Thing) -> None:
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.thing is other.thing

    def __hash__(self) -> int:
        return id(self.thing)


@lru_cache(maxsize=64)
def _analysed(
    module: _Identity[Module], function: _Identity[Function], contraction: bool
) -> tuple[Program, uniformity.RegisterShapes]:
    """Return blocks and shapes of registers, which all ways to execute a kernel have in common."""
    built = basic_blocks.build(module.thing, function.thing, contraction=contraction)
    program = packed_predicates.asked_directly(literals.spread(built))
    return program, uniformity.analyse(program)


def _translated(
    module: Module, function: Function, contraction: str, full_shapes: bool, shadows: EmitterKind | None
) -> TranslatedKernel:
    kernel = function.name
    program, found = _analysed(_Identity(module), _Identity(function), contraction == "on")
    shapes = uniformity.all_full(program) if full_shapes else found
    shadow_emitter = None
    if shadows is not None:
        from verifier.machine.translate.choose_shadow import make_shadow_emitter

        shadow_emitter = make_shadow_emitter(shadows, program, shapes)
    work = emission.Emitter(program, shapes, shadow_emitter)
    emitted = work.emit()
    made = TranslatedKernel(
        program=program,
        emitted=emitted,
        prologue=compile(emitted.prologue, f"<machine:{kernel}>", "exec"),
        constants=work.code.constants,
        sites=work.sites,
        shapes=shapes,
        used=frozenset(_used_names(program)),
        broken=tuple(f"{kernel}:{i.line} {i.opcode}" for i in shadow_emitter.broken())
        if shadow_emitter
        else (),
        loops=tuple(loops_of(program.blocks)),
        guards=guards_of(program, found, work.code.names),
    )
    if are_kept():
        made.blocks |= made.compiled_blocks(part=False)
    return made


_MODULE, _KERNEL = "module", "kernel"


def _functions(program: Program) -> dict[int, str]:
    """Name the functions of operations, which are built anew in each process, by opcode."""
    opcodes = {instruction.opcode for instruction in program.instructions()}
    found = {opcode: resolve(opcode) for opcode in sorted(opcodes)}
    return {id(one.function): f"operation {opcode}" for opcode, one in found.items() if one is not None}


def _function(word: str) -> object:
    operation = resolve(word.removeprefix("operation "))
    assert operation is not None
    return operation.function


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
