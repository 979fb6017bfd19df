"""The rules of the normal form, each with what it claims; proofs in docs/explanation/certificates.md.

Claims: E the same bits unless both are NaN; Z the same number, the sign of a zero aside; F as Z where
the values that vanish are finite (noted, to be discharged); C a product that was not rounded is now
rounded (for theorems that hold for both). A rule is tried once for each node, in the order of the table.
"""

from __future__ import annotations

from verifier.arithmetic.graph.rewriting import Apply, ClaimLetter, RewriteRule
from verifier.arithmetic.graph.rules_of_constants import (
    chosen,
    compared,
    compared_with_infinity,
    folded_operation,
    fused_into_zero,
    fused_with_data_times_zero,
    fused_with_one,
    fused_with_zero,
    infinite_product,
    infinite_sum,
    infinite_sum_of_constants,
    larger_than_all,
    over_one,
    over_power_of_two,
    plus_zero,
    power_of_minus_infinity,
    power_of_zero,
    tangent_of_zero,
    times_one,
    times_zero,
    zero_over,
)
from verifier.arithmetic.graph.rules_of_patterns import (
    chosen_unless_zero,
    contracted,
    equal_terms,
    larger_by_difference,
    parts_of_whole,
)
from verifier.arithmetic.graph.rules_of_signs import (
    commuted,
    identity,
    magnitude,
    narrow,
    narrowed_again,
    negation,
    sign_of_dividend,
    sign_of_fused,
    sign_of_operand,
    sign_of_product,
    sign_of_sum,
    signs_of_factors,
    subtraction,
)

ROUNDED = frozenset({"equal_terms", "parts_of_whole", "narrow_sum"})
"""Rules that hold of a product that is rounded wherever it is used, of no other: terms cancel in most."""

CANCELS = frozenset({"equal_terms", "parts_of_whole", "larger_by_difference"})
"""Rules that take two equal terms for one number; what vanishes are these."""

OF_ALL_VALUES = frozenset({"compared_with_infinity"})
"""Rules of values that must be finite though results may be so without them: what decides between numbers is
no part of these."""

_FOLDED = ("add", "mul", "fma", "div", "narrow", "max", "min")

_TABLE: tuple[tuple[str, ClaimLetter, tuple[str, ...], str, Apply], ...] = (
    ("subtraction", "E", ("sub",), "a - b = a + (-b)", subtraction),
    ("negation", "E", ("neg",), "neg is the sign of an edge", negation),
    ("widening", "E", ("widen",), "a wider format holds every number of a narrower one", identity),
    ("narrow_sum", "E", ("add",), "a + b of two halves is that of float32, rounded again", narrow),
    ("narrow_product", "E", ("mul",), "a * b of two halves is that of float32, rounded again", narrow),
    ("magnitude", "E", ("abs",), "|-a| = |a|", magnitude),
    (
        "signs_of_factors",
        "E",
        ("mul", "div"),
        "(-a) * b = -(a * b), (-a) / b = -(a / b)",
        signs_of_factors,
    ),
    ("sign_of_dividend", "E", ("other",), "div.full(-a, b) = -div.full(a, b)", sign_of_dividend),
    ("narrowed_again", "E", ("narrow",), "cvt.rn(a) = a, a a number of that format", narrowed_again),
    ("sign_of_narrowed", "E", ("narrow",), "cvt.rn(-a) = -cvt.rn(a)", sign_of_operand),
    ("sign_of_product", "E", ("fma",), "fma(-a, b, c) = fma(a, -b, c) = fma(-b, a, c)", sign_of_product),
    ("folding", "E", _FOLDED, "operations on finite constants", folded_operation),
    ("comparison", "E", ("comparison",), "a comparison of constants", compared),
    ("choice", "E", ("choice",), "what a constant chooses", chosen),
    ("times_one", "E", ("mul",), "a * 1 = a", times_one),
    ("over_one", "E", ("div",), "a / 1 = a", over_one),
    ("over_power_of_two", "E", ("div",), "a / 2**k = a * 2**-k, 2**-k normal", over_power_of_two),
    ("fused_with_one", "E", ("fma",), "fma(a, 1, c) = a + c", fused_with_one),
    ("infinite_sum_of_constants", "E", ("add",), "c + inf = inf, c a constant", infinite_sum_of_constants),
    ("infinite_product", "E", ("mul",), "c * inf = inf, c a constant and no zero", infinite_product),
    ("power_of_minus_infinity", "E", ("other",), "ex2(-inf) = 0, exp(-inf) = 0", power_of_minus_infinity),
    ("power_of_zero", "E", ("other",), "ex2(0) = 1, exp(0) = 1", power_of_zero),
    ("tangent_of_zero", "E", ("other",), "tanh(0) = 0", tangent_of_zero),
    ("plus_zero", "Z", ("add", "unordered"), "a + 0 = a", plus_zero),
    ("fused_with_zero", "Z", ("fma",), "fma(0, k, c) = c, k a finite constant", fused_with_zero),
    ("fused_into_zero", "Z", ("fma",), "fma(a, b, 0) = a * b", fused_into_zero),
    (
        "larger_than_all",
        "F",
        ("max", "min"),
        "max(a, c) = a, c = -inf or the least number of the format, a finite",
        larger_than_all,
    ),
    ("larger_by_difference", "F", ("choice",), "a - b > 0 ? a : b = max(a, b)", larger_by_difference),
    (
        "compared_with_infinity",
        "F",
        ("comparison",),
        "a == inf is false, and a == -inf, a finite",
        compared_with_infinity,
    ),
    ("zero_over", "F", ("div", "other"), "0 / a = 0, a finite and no zero", zero_over),
    ("chosen_unless_zero", "F", ("choice",), "a == 0 ? c : a = a, a no zero", chosen_unless_zero),
    ("infinite_sum", "F", ("add",), "inf + a = inf, a finite", infinite_sum),
    ("equal_terms", "F", ("add",), "a - a = 0, a finite", equal_terms),
    ("times_zero", "F", ("mul",), "0 * a = 0, a finite", times_zero),
    ("fused_with_data_times_zero", "F", ("fma",), "fma(0, a, c) = c, a finite", fused_with_data_times_zero),
    (
        "parts_of_whole",
        "F",
        ("add",),
        "x * c + (x - x * c) = x, 1/2 <= c <= 1, x finite; also where x is narrow and so are both parts",
        parts_of_whole,
    ),
    ("contraction", "C", ("fma", "divfma", "addmul"), "fma(a, b, c) becomes a * b + c", contracted),
    ("commuted", "E", ("add", "mul"), "a + b = b + a, a * b = b * a", commuted),
    ("commuted_extremes", "Z", ("max", "min"), "max(a, b) = max(b, a)", commuted),
    ("sign_of_sum", "Z", ("add",), "-a + b = -(a - b)", sign_of_sum),
    ("sign_of_fused", "Z", ("fma",), "fma(-a, b, c) = -fma(a, b, -c)", sign_of_fused),
)

_OF_DATA = frozenset({
    *("subtraction", "negation", "widening", "narrow_sum", "narrow_product", "narrowed_again"),
    *("magnitude", "signs_of_factors"),
    *("sign_of_dividend", "sign_of_narrowed", "sign_of_product", "larger_by_difference", "equal_terms"),
    *("parts_of_whole", "contraction", "commuted", "commuted_extremes", "sign_of_sum", "sign_of_fused"),
})  # fmt: skip
"""Rules that may hold where no operand is a constant."""

RULES: tuple[RewriteRule, ...] = tuple(
    RewriteRule(name=name, claim=claim, families=families, says=says, apply=apply, of_data=name in _OF_DATA)
    for name, claim, families, says, apply in _TABLE
)
"""In the order in which they are tried."""
