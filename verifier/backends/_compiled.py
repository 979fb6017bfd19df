"""What the compiled code says about the arithmetic that a declaration and the bounds assume."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache

from verifier.arithmetic import FORMATS, Arithmetic
from verifier.machine.census import Census, census
from verifier.subjects import Subject

_LEAST_RSQRT = 2.0  # a correctly rounded root and a correctly rounded quotient
_SHOWN = 3  # source lines in a note


@lru_cache(maxsize=256)
def of_kernel(ptx: str, kernel: str) -> Census:
    """Count what one kernel consists of, once."""
    return census(ptx, kernel)


def merged(found: Iterable[Census]) -> Census | None:
    """Add the counts of several kernels; None for none."""
    total: Census | None = None
    for one in found:
        total = one if total is None else _sum(total, one)
    return total


def _sum(a: Census, b: Census) -> Census:
    numbers = (
        "instructions", "flushing", "fused", "contractible", "half_sums", "half_atomics", "float_atomics",
        "barriers",
    )  # fmt: skip
    lines = {
        opcode: tuple(sorted({*a.lines.get(opcode, ()), *b.lines.get(opcode, ())}))
        for opcode in {*a.lines, *b.lines}
    }
    return replace(
        a,
        kernel=f"{a.kernel}, {b.kernel}",
        opcodes=Counter(a.opcodes) + Counter(b.opcodes),
        approximate=Counter(a.approximate) + Counter(b.approximate),
        lines=lines,
        **{name: getattr(a, name) + getattr(b, name) for name in numbers},
    )


def summary(found: Census) -> str:
    """Say in one line what the code's arithmetic leaves open."""
    approximate = ", ".join(sorted(found.approximate)) or "none"
    fused = "yes" if found.fused else "no"
    more = ", ptxas may fuse more" if found.contractible else ""
    halves = "some" if found.half_sums or found.half_atomics else "none"
    return (
        f"compiled code: approximate instructions {approximate}; subnormals flushed "
        f"{'yes' if found.flushing else 'no'}; fused multiply-adds {fused}{more}; "
        f"additions in half precision {halves}; float atomics {'yes' if found.float_atomics else 'no'}"
    )


def refined(arithmetic: Arithmetic, found: Census) -> Arithmetic:
    """Return the arithmetic with what is known from the code: what is correctly rounded, flushed or fused.

    A quotient may be made of a reciprocal, and a root of a reciprocal root: an operation counts as correctly
    rounded only if none of those from which it can be made is approximate.
    """
    near = set(found.approximate)
    changes: dict[str, object] = {}
    if not near & {"div", "rcp"}:
        changes |= {"division": 1.0, "reciprocal": 1.0}
        if not near & {"sqrt", "rsqrt"}:
            changes |= {"square_root": 1.0, "reciprocal_square_root": _LEAST_RSQRT}
    if found.flushing:
        changes["flush_to_zero"] = True
    if not found.fused and not found.contractible:
        changes["contracts"] = False
    evidence = f"{arithmetic.evidence}, as the compiled code uses them"
    return replace(arithmetic, evidence=evidence, **changes)  # type: ignore[arg-type]


def contradictions(subject: Subject, dtype: str, assumed: Arithmetic, found: Census) -> tuple[str, ...]:
    """Say, a sentence each, where the compiled code does what the declaration or the bounds exclude."""
    return tuple(_contradictions(subject, dtype, assumed, found))


def _contradictions(subject: Subject, dtype: str, assumed: Arithmetic, found: Census) -> Iterator[str]:
    declared = FORMATS[subject.accumulation(dtype)]
    if declared.precision > FORMATS["float16"].precision and (found.half_sums or found.half_atomics):
        yield (
            f"sums are declared in {declared.name}, the compiled code adds in half precision"
            f"{_where(found, ('f16', 'bf16', 'f16x2', 'bf16x2'), ('add', 'sub', 'fma', 'atom', 'red'))}"
        )
    if found.flushing and not assumed.flush_to_zero:
        yield (
            "the compiled code flushes subnormals, the bounds assume that it does not"
            f"{_where(found, ('ftz',))}"
        )
    fuses = bool(found.fused or found.contractible)
    if fuses and (not assumed.contracts or subject.claim.mean_contraction == "none"):
        yield "no contraction is declared, the compiled code fuses multiplications and additions"
    if found.float_atomics and "determinism" in subject.guarantees:
        yield (
            "determinism is guaranteed, the compiled code adds floats by atomics, in no certain order"
            f"{_where(found, ('f16', 'bf16', 'f16x2', 'bf16x2', 'f32', 'f64'), ('atom', 'red'))}"
        )


def _where(found: Census, words: tuple[str, ...], names: tuple[str, ...] = ()) -> str:
    """Source lines of opcodes that hold one of the words, as a phrase."""
    places = [
        line
        for opcode, lines in found.lines.items()
        if set(opcode.split(".")) & set(words) and (not names or opcode.split(".")[0] in names)
        for line in lines
    ]
    return f" ({', '.join(dict.fromkeys(places[:_SHOWN]))})" if places else ""
