"""Predicates packed into integers: what asks for one of them asks for it, and nothing else changes."""

import numpy as np
import pytest
from ptx_snippets import REGISTERS, STORE, kernel, run

from verifier.machine.ptx import basic_blocks, packed_predicates
from verifier.machine.ptx.parser import parsed

HELD = REGISTERS + ".reg .b16 %h<9>; .reg .b64 %d<3>;"
TWO = "setp.gt.u32 %p1, %t, 3; setp.lt.u32 %p2, %t, 9; "
PACKED = TWO + (
    "selp.b16 %h1, 1, 0, %p1; selp.b16 %h2, -1, 0, %p2; shl.b16 %h2, %h2, 1; or.b16 %h1, %h1, %h2; "
    "and.b16 %h1, %h1, 3; cvt.u32.u16 %r1, %h1; "
)


def direct(body):
    """The program of a body, with predicates asked for directly."""
    module = parsed(kernel(body, 1, registers=HELD))
    return packed_predicates.asked_directly(basic_blocks.build(module, module.functions["k"]))


def last_of(body):
    """Opcode and operand of the instruction that writes %p3."""
    found = [one for one in direct(body).instructions() if one.written == ("%p3",)]
    assert len(found) == 1
    return f"{found[0].opcode} {' '.join(getattr(o, 'name', '') for o in found[0].operands[1:])}".strip()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (PACKED + "and.b32 %r2, %r1, 1; setp.ne.b32 %p3, %r2, 0;", "mov.pred %p1"),
        (PACKED + "shr.u32 %r2, %r1, 1; setp.ne.b32 %p3, %r2, 0;", "mov.pred %p2"),
        (PACKED + "and.b32 %r2, %r1, 2; setp.eq.b32 %p3, %r2, 0;", "not.pred %p2"),
        (TWO + "selp.b32 %r1, 0, 4, %p1; setp.ne.b32 %p3, %r1, 0;", "not.pred %p1"),
        (TWO + "selp.b32 %r1, 0, 4, !%p1; setp.ne.b32 %p3, %r1, 0;", "mov.pred %p1"),
        (TWO + "selp.b32 %r1, 5, 1, %p1; xor.b32 %r1, %r1, 5; setp.ne.b32 %p3, %r1, 0;", "not.pred %p1"),
        (TWO + "selp.b32 %r1, -1, 0, %p1; and.b32 %r2, %r3, 8; and.b32 %r1, %r1, 1; or.b32 %r1, %r1, 0; "
         "setp.ne.u32 %p3, %r1, 0;", "mov.pred %p1"),
        (PACKED + "cvt.u64.u32 %d1, %r1; shl.b64 %d1, %d1, 9; shr.u64 %d1, %d1, 10; "
         "setp.ne.b64 %p3, %d1, 0;",
         "mov.pred %p2"),
        # No single predicate is asked for, or it is not known to be the one that was packed.
        (PACKED + "setp.ne.b32 %p3, %r1, 0;", "setp.ne.b32 %r1"),
        (PACKED + "setp.gt.u32 %p1, %t, 5; and.b32 %r2, %r1, 1; setp.ne.b32 %p3, %r2, 0;", "setp.ne.b32 %r2"),
        (PACKED + "@%p2 mov.u32 %r1, 7; and.b32 %r2, %r1, 1; setp.ne.b32 %p3, %r2, 0;", "setp.ne.b32 %r2"),
        (PACKED + "and.b32 %r2, %r1, %r3; and.b32 %r2, %r2, 1; setp.ne.b32 %p3, %r2, 0;", "setp.ne.b32 %r2"),
        (PACKED + "or.b32 %r2, %r1, 8; setp.ne.b32 %p3, %r2, 0;", "setp.ne.b32 %r2"),
        (PACKED + "and.b32 %r2, %r1, 1; setp.ne.b32 %p3, %r2, 1;", "setp.ne.b32 %r2"),
        (PACKED + "and.b32 %r2, %r1, 1; setp.gt.u32 %p3, %r2, 0;", "setp.gt.u32 %r2"),
        (PACKED + "and.b32 %r2, %r1, 1; bra NEXT; NEXT: setp.ne.b32 %p3, %r2, 0;", "setp.ne.b32 %r2"),
        (PACKED + "@%p1 bra NEXT; NEXT: and.b32 %r2, %r1, 1; setp.ne.b32 %p3, %r2, 0;", "setp.ne.b32 %r2"),
        (PACKED + "cvt.s32.s16 %r2, %h1; setp.ne.b32 %p3, %r2, 0;", "setp.ne.b32 %r2"),
        (PACKED + "add.u32 %r2, %r1, 1; and.b32 %r2, %r2, 1; setp.ne.b32 %p3, %r2, 0;", "setp.ne.b32 %r2"),
    ],
)  # fmt: skip
def test_a_question_for_one_bit_is_one_for_its_predicate(body, expected):
    assert last_of(body) == expected


def drawn(random):
    """A body of random operations on packed predicates, and a function of them by thread: what it stores."""
    lines, words = [], {}
    predicates = {f"%p{n}": n * 7 <= THREADS if n % 2 else THREADS % (n + 2) == 0 for n in range(1, 5)}
    for name in predicates:
        n = int(name[2:])
        lines += (
            [f"setp.ge.u32 {name}, %t, {n * 7};"]
            if n % 2
            else [f"rem.u32 %r19, %t, {n + 2};", f"setp.eq.u32 {name}, %r19, 0;"]
        )
    for step in range(24):
        target, width = f"%r{step % 6}", 32
        choice = random.integers(0, 6) if len(words) > 2 else 0
        mask = (1 << width) - 1
        if choice == 0:
            sides = [int(s) for s in random.choice([0, 1, 2, 5, -1, 3, 8], 2)]
            name = str(random.choice([*predicates]))
            lines.append(f"selp.b32 {target}, {sides[0]}, {sides[1]}, {name};")
            words[target] = np.where(predicates[name], sides[0] & mask, sides[1] & mask).astype(np.uint64)
            continue
        a, b = (str(one) for one in random.choice([*words], 2))
        if choice == 1:
            amount = int(random.integers(0, 5))
            lines.append(f"shl.b32 {target}, {a}, {amount};")
            words[target] = (words[a] << np.uint64(amount)) & np.uint64(mask)
        elif choice == 2:
            amount = int(random.integers(0, 5))
            lines.append(f"shr.u32 {target}, {a}, {amount};")
            words[target] = words[a] >> np.uint64(amount)
        elif choice == 3:
            number = int(random.choice([1, 3, 7, 8, 255]))
            lines.append(f"and.b32 {target}, {a}, {number};")
            words[target] = words[a] & np.uint64(number)
        elif choice == 4:
            lines += [f"cvt.u16.u32 %h1, {a};", f"cvt.u32.u16 {target}, %h1;"]
            words[target] = words[a] & np.uint64(0xFFFF)
        else:
            family = str(random.choice(["or", "xor", "and"]))
            lines.append(f"{family}.b32 {target}, {a}, {b};")
            joined = {"or": np.bitwise_or, "xor": np.bitwise_xor, "and": np.bitwise_and}[family]
            words[target] = joined(words[a], words[b])
    found, lines = np.zeros(len(THREADS), dtype=np.uint64), [*lines, "mov.u32 %r18, 0;"]
    for bit in range(12):
        word, comparison = str(random.choice([*words])), str(random.choice(["ne", "eq"]))
        lines += [f"and.b32 %r17, {word}, {1 << bit};", f"setp.{comparison}.b32 %p6, %r17, 0;"]
        lines += [f"selp.b32 %r16, {1 << bit}, 0, %p6;", "or.b32 %r18, %r18, %r16;"]
        there = (words[word] & np.uint64(1 << bit)) != 0
        found |= np.where(there == (comparison == "ne"), np.uint64(1 << bit), np.uint64(0))
    return " ".join(lines), found


THREADS = np.arange(64)


def test_random_packing_gives_what_it_gives_bit_by_bit():
    direct_ones = 0
    for seed in range(25):
        body, expected = drawn(np.random.default_rng(seed))
        result = run(body + STORE.replace("%r0", "%r18"), registers=HELD)
        assert (result.numpy().astype(np.uint64) == expected).all(), seed
        direct_ones += sum(one.opcode in {"mov.pred", "not.pred"} for one in direct(body).instructions())
    assert direct_ones > 40
