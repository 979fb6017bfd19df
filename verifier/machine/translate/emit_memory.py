"""Emission of loads, stores, atomics, asynchronous copies and fences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.execute import collectives, mbarriers
from verifier.machine.execute.atomics import Atomic
from verifier.machine.execute.clusters import mapped
from verifier.machine.operations.operation import DTYPE
from verifier.machine.ptx.syntax import (
    BITS,
    Address,
    Immediate,
    Instruction,
    Operand,
    Register,
    Sink,
    Symbol,
    Vector,
)
from verifier.machine.translate import emit_barriers
from verifier.machine.translate.expressions import address_expression, immediate

if TYPE_CHECKING:
    from verifier.machine.translate.expressions import Writer

_STRONG = frozenset({"acquire", "release", "relaxed", "volatile"})
_ATOMIC = frozenset({"add", "and", "or", "xor", "min", "max", "inc", "dec", "cas", "exch"})


def write(writer: Writer, instruction: Instruction) -> bool:
    """Write a memory instruction; False if it is none."""
    name, parts = instruction.parts[0], instruction.parts
    if name in ("ld", "ldu"):
        _load(writer, instruction)
    elif name == "st":
        _store(writer, instruction)
    elif name in ("atom", "red"):
        _atomic(writer, instruction)
    elif (
        name == "cp"
        and parts[1] == "async"
        and parts[2] in ("ca", "cg", "commit_group", "wait_group", "wait_all")
    ):
        _copy(writer, instruction)
    elif name in ("ldmatrix", "stmatrix"):
        _matrix(writer, instruction)
    elif name == "mapa":
        _map(writer, instruction)
    elif name == "mbarrier":
        place = next(one for one in instruction.operands if isinstance(one, Address))
        emit_barriers.in_memory(writer, instruction, _space(writer, instruction, place))
    elif name in ("membar", "fence"):
        writer.add(f"wave.fence({writer.site}, {writer.group}, {parts!r})")
    else:
        return False
    return True


def _space(writer: Writer, instruction: Instruction, address: Operand) -> str:
    """State space of an access: named by the opcode, or by the variable that is accessed."""
    for part in instruction.parts[1:]:
        head = part.split("::")[0]
        if head in ("global", "const"):
            return "global"
        if part == "shared::cluster":
            return "cluster"
        if head in ("shared", "local"):
            return head
        if head == "param":
            base = address.base if isinstance(address, Address) else None
            known = isinstance(base, Symbol) and base.name in writer.code.parameters
            return "parameter" if known else "local"
    if isinstance(address, Address) and isinstance(address.base, Symbol):
        return (
            writer.code.program.variables[address.base.name].space
            if address.base.name in writer.code.program.variables
            else "generic"
        )
    return "generic"


def _map(writer: Writer, instruction: Instruction) -> None:
    """`mapa`: the address of the same variable in the shared memory of another block of the cluster."""
    target, address, rank = instruction.operands
    kind = instruction.parts[-1]
    writer.narrow = writer.is_narrow(_items(target))
    function = writer.code.constant(mapped)
    value = f"{function}({writer.source(address, kind)}, {writer.source(rank, 'u32')})"
    if writer.shadow_emitter is not None:
        writer.shadow_emitter.move(writer, instruction, "address")
    writer.assign(target, kind, value, writer.guard(instruction))


def _announce(writer: Writer, instruction: Instruction) -> None:
    """Tell the monitors of a load or store that synchronises, or of a load of what nobody may write."""
    if _STRONG & set(instruction.parts):
        writer.add(f"wave.strong = {instruction.parts!r}")
    elif "nc" in instruction.parts or instruction.parts[0] == "ldu":
        writer.add("wave.cached = True")


def _items(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vector) else (operand,)


def _load(writer: Writer, instruction: Instruction) -> None:
    """`ld`: all elements of a vector are read before any register is written."""
    target, address = instruction.operands[0], instruction.operands[1]
    space = _space(writer, instruction, address)
    kind = instruction.parts[-1]
    items = _items(target)
    if space == "parameter":
        _parameter(writer, instruction, items, kind)
        return
    if kind == "b128":
        raise writer.refuse(instruction, "128-bit registers")
    writer.narrow = writer.is_narrow(items)
    dtype = DTYPE[kind] if DTYPE[kind][0] == "i" else f"u{BITS[kind] // 8}"
    guard = writer.guard(instruction)
    where = address_expression(writer, address)
    _announce(writer, instruction)
    writer.add(
        f"m = wave.load({writer.site}, {writer.group}, {space!r}, {where}, {dtype!r}, {len(items)}, {guard})"
    )
    moved = "s" if dtype[0] == "i" else "u"
    if writer.shadow_emitter is not None:
        writer.shadow_emitter.move(writer, instruction, "load")
    for number, item in enumerate(items):
        writer.assign(item, f"{moved}{BITS[kind]}", f"m[{number}]", guard)


def _parameter(writer: Writer, instruction: Instruction, items: tuple[Operand, ...], kind: str) -> None:
    """`ld.param` of the kernel's own arguments."""
    address = instruction.operands[1]
    assert isinstance(address, Address)
    assert isinstance(address.base, Symbol)
    inside = address.base.offset + address.offset
    size = next(p.size for p in writer.code.program.kernel.parameters if p.name == address.base.name)
    if not 0 <= inside <= size - len(items) * BITS[kind] // 8:
        raise writer.refuse(instruction, "bytes beyond a parameter")
    offset = writer.code.parameters[address.base.name] + inside
    writer.narrow = writer.is_narrow(items)
    signed = DTYPE[kind][0] == "i"
    dtype = DTYPE[kind] if signed else f"u{BITS[kind] // 8}"
    for number, item in enumerate(items):
        place = offset + number * BITS[kind] // 8
        value = writer.code.once_a_wave(f"wave.parameter({place}, {dtype!r})")
        flat = "[0]" if writer.part and not writer.narrow else ""
        if writer.shadow_emitter is not None:
            writer.shadow_emitter.move(writer, instruction, "parameter")
        writer.assign(item, f"{'s' if signed else 'u'}{BITS[kind]}", value + flat, writer.guard(instruction))


def _store(writer: Writer, instruction: Instruction) -> None:
    """`st`: constants and narrower registers are stored with the width of the type.

    `st.async` too: what it stores is there at once, before its barrier has counted it.
    """
    address, value = instruction.operands[0], instruction.operands[1]
    kind = instruction.parts[-1]
    if kind == "b128":
        raise writer.refuse(instruction, "128-bit registers")
    dtype = f"u{BITS[kind] // 8}"
    values = []
    for item in _items(value):
        bits = item
        if isinstance(item, Immediate) and item.kind != "integer" and kind in ("f32", "f64"):
            values.append(writer.code.constant(immediate(item, kind).view(dtype)))
            continue
        values.append(writer.source(bits, f"u{BITS[kind]}"))
    guard, where = writer.guard(instruction), address_expression(writer, address)
    space = _space(writer, instruction, address)
    if space == "parameter":
        raise writer.refuse(instruction, "store to a kernel parameter")
    _announce(writer, instruction)
    what = f"{dtype!r}, [{', '.join(values)}], {guard}"
    writer.add(f"wave.store({writer.site}, {writer.group}, {space!r}, {where}, {what})")
    if writer.shadow_emitter is not None:
        writer.shadow_emitter.move(writer, instruction, "store")
    if "async" in instruction.parts:
        function, barrier = (
            writer.code.constant(mbarriers.deliver),
            address_expression(writer, instruction.operands[2]),
        )
        octets = len(values) * BITS[kind] // 8
        writer.add(f"{function}(wave, {writer.site}, {writer.group}, {barrier}, {octets}, {guard})")


def _atomic(writer: Writer, instruction: Instruction) -> None:
    """`atom` and `red`, with vector forms."""
    parts = instruction.parts
    operands = list(instruction.operands)
    target: Operand = operands.pop(0) if parts[0] == "atom" else Sink()
    address, values = operands[0], operands[1:]
    operation = next((p for p in parts[1:] if p in _ATOMIC), None)
    kind = parts[-1]
    if operation is None or kind == "b128" or len(values) > (2 if operation == "cas" else 1):
        raise writer.refuse(instruction)
    items = _items(target)
    count = max(len(_items(values[0])), 1)
    source_kind = kind
    columns = [[writer.source(_items(v)[n], source_kind) for v in values] for n in range(count)]
    rows = ", ".join(f"[{', '.join(column)}]" for column in columns)
    guard, where = writer.guard(instruction), address_expression(writer, address)
    space = _space(writer, instruction, address)
    wanted = parts[0] == "atom" and not all(isinstance(i, Sink) for i in items)
    if writer.shadow_emitter is not None:
        writer.shadow_emitter.move(writer, instruction, "atomic")
    what = writer.code.constant(Atomic(operation=operation, kind=kind, words=parts, wanted=wanted))
    access = f"{writer.site}, {writer.group}, {space!r}, {where}"
    writer.add(f"m = wave.atomic({access}, {what}, [{rows}], {guard})")
    if not wanted:
        return
    if writer.shadow_emitter is not None:
        writer.shadow_emitter.move(writer, instruction, "atomic result")
    for number, item in enumerate(items):
        writer.assign(item, kind, f"m[{number}]", guard)


def _copy(writer: Writer, instruction: Instruction) -> None:
    """`cp.async` and its commit and wait."""
    parts = instruction.parts
    guard = writer.guard(instruction)
    if parts[2] in ("ca", "cg"):
        operands = [o for o in instruction.operands if isinstance(o, Address)]
        sizes = [o for o in instruction.operands if not isinstance(o, Address)]
        first = sizes[0]
        if not isinstance(first, Immediate) or "mbarrier" in parts:
            raise writer.refuse(instruction)
        target, source = (address_expression(writer, o) for o in operands)
        actual = (
            writer.source(sizes[1], "u32") if len(sizes) > 1 else writer.code.constant(np.array(first.value))
        )
        if len(sizes) > 1 and isinstance(sizes[1], Register) and writer.code.width(sizes[1].name) == 1:
            raise writer.refuse(instruction, "ignore-src")
        what = f"{target}, {source}, {first.value}, {actual}, {guard}"
        writer.add(f"wave.start_copy({writer.site}, {writer.group}, {what})")
    elif parts[2] == "commit_group":
        writer.add(f"wave.async_copies.commit({writer.group}, {guard})")
    elif parts[2] == "wait_group":
        operand = instruction.operands[0]
        assert isinstance(operand, Immediate)
        writer.add(f"wave.wait_for_copies({writer.group}, {operand.value}, {guard})")
    else:
        writer.add(f"wave.wait_for_copies({writer.group}, None, {guard})")


def _matrix(writer: Writer, instruction: Instruction) -> None:
    """`ldmatrix` and `stmatrix` of 8x8 matrices of 16-bit elements."""
    parts = instruction.parts
    if "m8n8" not in parts or parts[-1] != "b16":
        raise writer.refuse(instruction)
    count = next(int(p[1:]) for p in parts if p in ("x1", "x2", "x4"))
    loading = parts[0] == "ldmatrix"
    registers, address = instruction.operands if loading else reversed(instruction.operands)
    items = _items(registers)
    function = writer.code.constant(collectives.matrix_addresses)
    where = address_expression(writer, address)
    writer.add(f"a = {function}({writer.group}, {where}, {count}, {'trans' in parts})")
    common = f"{writer.site}, {writer.group}, 'shared'"
    shift = writer.code.constant(np.array(16, dtype="u4"))
    for number, item in enumerate(items):
        for half, name in enumerate(("lo", "hi")):
            if loading:
                writer.add(
                    f"{name} = wave.load({common}, a[{number}][{half}], 'u2', 1, None)[0].astype('u4')"
                )
            else:
                word = writer.source(item, "u32")
                word = f"({word} >> {shift})" if half else word
                writer.add(f"wave.store({common}, a[{number}][{half}], 'u2', [{word}.astype('u2')], None)")
            if writer.shadow_emitter is not None:
                writer.shadow_emitter.matrix(writer, item, half, loading)
        if loading:
            writer.add(f"v{number} = lo | (hi << {shift})")
    if loading:
        for number, item in enumerate(items):
            writer.assign(item, "u32", f"v{number}", None)
