"""Constants of compiled code: the fractions that a case's own roundings stand for, and roundings of what."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.shadow.arithmetics.field import next_to_exact, reciprocals
from verifier.machine.shadow.arithmetics.field_exponential import AS_THEY_ARE, LITERALS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from verifier.records.case import Case


def meant(case: Case) -> dict[float, Fraction]:
    """Return what the float32 and float64 roundings of 1/N, 1/(N-1) and N/(N-1) stand for.

    Of both signs, halved and doubled: a power of two rounds nothing. The field knows 1/k for smaller k.
    """
    n = case.columns
    rationals = [Fraction(1, n)] if n else []
    rationals += [Fraction(1, n - 1), Fraction(n, n - 1)] if n > 1 else []
    return {
        held: rational
        for plain in rationals
        for rational in (sign * scale * plain for sign in (1, -1) for scale in (1, 2, Fraction(1, 2)))
        for held in (float(np.float32(float(rational))), float(rational))
        if Fraction(held) != rational
    }


def suspects(literals: Sequence[float], constants: Mapping[float, Fraction], case: Case) -> list[float]:
    """Return the constants of a kernel that may be roundings of what no field element is known for.

    Not those that are declared, arguments of the case, short (so that they are what they say), next to a
    short number (so that they are meant to differ from it), or nearest to 1/k for a whole k: the field takes
    these for 1/k where a kernel may count to k, and a larger k is a decimal's, as in an eps of 1e-6.
    """
    own = [case.eps, *(float(v) for v in case.scalars.values() if isinstance(v, float))]
    known = {*constants, *LITERALS, *AS_THEY_ARE, *own, *(float(np.float32(v)) for v in own)}
    return [n for n in literals if n not in known and -n not in known and _may_be_rounded(abs(n))]


def _may_be_rounded(number: float) -> bool:
    """Whether a positive number is a long one, and of none of the kinds that are what they say."""
    if not math.isfinite(number) or number == 0:
        return False
    if next_to_exact(np.float64(number)):
        return reciprocals(np.float64(number)) is not None  # a slip, or 1/k: nobody knows
    whole = round(1 / number) if number > 2.0**-20 else 0
    return not whole or number not in {1 / whole, float(np.float32(1 / whole))}
