"""What the code that was executed says of bounds, and of what is declared."""

from __future__ import annotations

from dataclasses import replace

from verifier.arithmetic.formats import FORMATS, Arithmetic
from verifier.ops import Setting
from verifier.records.compiled_code import CompiledCode
from verifier.records.subject import Claim, Subject

_RECIPROCAL_ROOT = 5.0  # u: rsqrt.approx alone, 2**-22.9 relative (PTX ISA) and its comparison's half ulp
_TWO_ROUNDINGS = 2.0  # u: a quotient made as the product with a reciprocal, both correctly rounded


def refined(subject: Subject, setting: Setting, found: CompiledCode) -> tuple[Subject, Setting]:
    """Return declaration and setting with what the code says where the declaration is silent.

    A bound becomes tighter only if everything that computes was read: torch operations on the host were not.
    """
    arithmetic = replace(setting.arithmetic, atomics=bool(found.atomics))
    if found.flushes:
        arithmetic = replace(arithmetic, flush_to_zero=True)
    if arithmetic.format.name == "float32":
        arithmetic = _operations(arithmetic, subject.claim, found)
    if not found.host and not found.fuses:
        arithmetic = replace(arithmetic, contracts=False)
        if "mean_contraction" in subject.claim.assumed:
            subject = subject.differing(mean_contraction="none")
    if arithmetic != setting.arithmetic:
        evidence = f"{arithmetic.evidence}, as the compiled code uses them"
        setting = replace(setting, arithmetic=replace(arithmetic, evidence=evidence))
    return subject, setting


def _operations(documented: Arithmetic, claim: Claim, found: CompiledCode) -> Arithmetic:
    """Return the errors of quotients and roots that the instructions at hand allow, in u.

    A quotient may be made of a reciprocal: it counts as correctly rounded only if neither is approximate,
    and as two roundings where nothing is declared of how it is made. 1 / sqrt is a reciprocal root, or a
    root and a quotient: the worse of those that the code has. Where the host computes, only what is
    larger than documented is taken.
    """
    silent = bool({"divide_by_n", "formula"} & claim.assumed)
    exact = not found.approximate & {"div", "rcp"}
    division = (_TWO_ROUNDINGS if silent else 1.0) if exact else documented.division
    reciprocal = 1.0 if exact else documented.reciprocal
    root = documented.square_root if "sqrt" in found.approximate else 1.0
    ways = [root + (1.0 if exact else documented.division)] if found.roots else []
    rsqrt = min(_RECIPROCAL_ROOT, documented.reciprocal_square_root)
    ways += [rsqrt] if "rsqrt" in found.approximate else []
    changes = {
        "division": min(division, documented.division),
        "reciprocal": reciprocal,
        "square_root": root if found.roots else documented.square_root,
        "reciprocal_square_root": max(ways, default=documented.reciprocal_square_root),
    }
    if found.host:
        changes = {name: max(value, getattr(documented, name)) for name, value in changes.items()}
    return replace(documented, **changes)  # type: ignore[arg-type]


def summary(found: CompiledCode) -> str:
    """Say in one line what the code's arithmetic leaves open."""
    approximate = ", ".join(sorted(found.approximate)) or "none"
    text = (
        f"compiled code ({len(found.kernels)} kernel(s)): approximate instructions {approximate}; "
        f"subnormals flushed {_word(found.flushes)}; products fused into sums {_word(found.fuses)}; "
        f"half-precision additions {_word(bool(found.half_places))}; "
        f"float atomics {_word(bool(found.atomics))}"
    )
    if not found.host:
        return text
    return f"{text}; torch computes on the host ({', '.join(sorted(found.host))}), so no bound is tightened"


def _word(holds: bool) -> str:
    return "yes" if holds else "no"


def contradictions(subject: Subject, dtype: str, found: CompiledCode) -> tuple[str, ...]:
    """Say, a sentence each, where the code certainly does what the declaration excludes."""
    declared = FORMATS[subject.accumulation(dtype)]
    silent = not subject.claims and "accumulates" in subject.claim.assumed
    if silent or declared.precision <= FORMATS["float16"].precision or not found.half_sums:
        return ()
    text = f"sums are declared in {declared.name}, the compiled code keeps sums in half precision"
    return (f"{text} ({'; '.join(found.half_sums)})",)


def remarks(subject: Subject, dtype: str, found: CompiledCode) -> tuple[str, ...]:
    """Say what may contradict the declaration: it does if the place belongs to what is declared."""
    said = []
    wide = FORMATS[subject.accumulation(dtype)].precision > FORMATS["float16"].precision
    if wide and found.half_places and not contradictions(subject, dtype, found):
        said.append(f"the compiled code also adds in half precision ({', '.join(found.half_places)})")
    if found.atomics and "determinism" in subject.guarantees:
        said.append(
            "determinism is guaranteed, the compiled code adds floats by atomics, in no certain order "
            f"({', '.join(found.atomics)})"
        )
    silent = "mean_contraction" in subject.claim.assumed or subject.claim.mean_contraction != "none"
    if subject.claim.divide_by_n == "reciprocal" and not silent and found.fuses:
        said.append("the mean is declared uncontracted, the compiled code fuses products into sums")
    return tuple(said)
