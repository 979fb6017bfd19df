"""What each theorem of docs/explanation/bounds.md asks of a row and says of it, in the words of that page.

The proofs are there alone. A test finds each bound and each quantity on the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_ALL_ROWS = (
    "the row has an element, and no NaN or infinity",
    "the format holds the count N, of merges exactly",
    "fl(1/N) is not subnormal",
    "v + eps and its reciprocal root are in range",
)
_DEPTH = "no term meets more than d additions"
_ONE_MEAN = "one m̂ for the row"
_MEANS = "element i uses m_i with |m_i − μ| ≤ e and |m_i − m_j| ≤ τ"


@dataclass(frozen=True, kw_only=True)
class Theorem:
    """about: what it bounds. asks: its hypotheses, besides the model of arithmetic. bound: what it says."""

    about: str
    asks: tuple[str, ...]
    bound: str


THEOREMS: Mapping[str, Theorem] = {
    "T1": Theorem(about="mean", asks=(_DEPTH,), bound="|m̂ − μ| ≤ e := Θ_{d+c_m}·A1 + ω"),
    "T2": Theorem(
        about="textbook variance from means",
        asks=(_DEPTH,),
        bound="|v̂ − v| ≤ (1 + u)·[Θ_{d+1+c_m}·A2 + U + 2|μ|e + e² + u(|μ| + e)² + ω] + u·v",
    ),
    "T2'": Theorem(
        about="textbook variance from sums",
        asks=(_DEPTH,),
        bound="|v̂ − v| ≤ (1 + Θ_{1+c_m})·[Θ_{d+1}·A2 + Θ_{2d+1+c_m}·A1² + ω(1 + Θ_d) "
        "+ ω(2 + Θ_{1+c_m})/N] + Θ_{1+c_m}·v + ω",
    ),
    "T3": Theorem(
        about="two-pass variance",
        asks=(_DEPTH, _ONE_MEAN, "k = d + 3 + c_m"),
        bound="|v̂ − v| ≤ Θ_k·v + (1 + Θ_k)·e² + U",
    ),
    "T3n": Theorem(
        about="two-pass variance with several means",
        asks=(_DEPTH, _MEANS, "k = d + 3 + c_m"),
        bound="|v̂ − v| ≤ Θ_k·v + (1 + Θ_k)·(τ·D1 + e²) + U",
    ),
    "T4": Theorem(
        about="corrected two-pass variance from sums",
        asks=(_DEPTH, _ONE_MEAN, "a := min(√(v + e²), D1 + e) and R := Θ_{d+1}·a"),
        bound="|v̂ − v| ≤ (1 + Θ_{1+c_m})·[Θ_{d+3}(v + e²) + 2eR + R² + Θ_{1+c_m}(e + R)² + ω(1 + Θ_d) "
        "+ ω(2 + Θ_{1+c_m})/N] + Θ_{1+c_m}·v + ω",
    ),
    "T4n": Theorem(
        about="corrected two-pass variance from sums, with several means",
        asks=(_DEPTH, _MEANS),
        bound="Put v⁺ = v + τ·D1 + τ²/4 in the place of v inside the bracket and in a, and add τ·D1 + τ²/4 "
        "to the bracket",
    ),
    "T4b": Theorem(
        about="corrected two-pass variance from means",
        asks=(_DEPTH, _MEANS, "R' = Θ_{d+1+c_m}·a + ω"),
        bound="|v̂ − v| ≤ (1 + u)·[Θ_{d+3+c_m}(v⁺ + e²) + τ·D1 + τ²/4 + U + 2eR' + R'² + u(e + R')² + ω] "
        "+ u·v",
    ),
    "T5": Theorem(
        about="shifted variance from means",
        asks=(_DEPTH, "z_i = x_i − s, s one element of the row", "e_z := Θ_{d+1+c_m}·mean|z| + ω"),
        bound="|v̂ − v| ≤ (1 + u)·[Θ_{d+3+c_m}·mean z² + U + 2|μ − s|e_z + e_z² + u(|μ − s| + e_z)² + ω] "
        "+ u·v",
    ),
    "T5'": Theorem(
        about="shifted variance from sums",
        asks=(_DEPTH, "z_i = x_i − s, s one element of the row"),
        bound="T2' with Θ_{d+3} for Θ_{d+1}, mean z² for A2, Θ_{2d+3+c_m} for Θ_{2d+1+c_m} and mean|z| "
        "for A1",
    ),
    "T6": Theorem(about="mean square", asks=(_DEPTH,), bound="|fl(Σx²)/N − A2| ≤ Θ_{d+1+c_m}·A2 + U"),
    "T7": Theorem(
        about="mean and variance by updates and merges, closed form",
        asks=(
            "d_W stages of updates, then L of merges",
            "in every merge of nonempty parts n_B ≤ ϱ·n_A, where A is the part that is corrected",
            "ê_0 = 0 and ê_h = (1 + λ)ê_{h−1} + q",
            "E_W = ê_{d_W}, E = ê_d",
        ),
        bound="|v̂ − v| ≤ Θ_K·v + (1 + Θ_K)·[2Eσ + 2E² + E_W(σ + E_W) + ω(1 + (1.25 + wN)L)] + ω",
    ),
    "T8": Theorem(
        about="mean and variance by updates and merges, along the declared tree",
        asks=("the order is one that the declaration names, or its lanes are",),
        bound="|v̂ − v| ≤ Θ_K·v + (1 + Θ_K)·(X/N + Ē_root² + ω(1 + (1.25 + wN)L)) + ω",
    ),
    "T9": Theorem(
        about="reciprocal standard deviation, or that of the mean square",
        asks=("|v̂ − v| ≤ Δ", "λ := Δ_t/t", "λ < 1, or the variance cannot be negative (second form)"),
        bound="|r̂ − r| ≤ r·[((1 − λ)^−½ − 1)(1 + ρ₀) + ρ₀]",
    ),
    "T10": Theorem(
        about="outputs and gradients",
        asks=("the operations of the declared form, on numbers of which each has a bound",),
        bound="Every operation then adds u(|result| + T) + ω to the rest",
    ),
    "T11": Theorem(
        about="softmax",
        asks=(_DEPTH, "S = (Σ_j y_j·H_j + N·ω_e/s)(1 + Θ_d) + Θ_d", "S < 1"),
        bound="|ŷ_i − y_i| ≤ y_i·[(1 + H_i)(1 + c_d·u)/(1 − S) − 1] + (ω_e/s)(1 + c_d·u)/(1 − S) + ω",
    ),
    "T12": Theorem(
        about="where the theorems end",
        asks=_ALL_ROWS,
        bound="each of these, with its roundings, is below half of the largest number",
    ),
    "T13": Theorem(
        about="running statistics, the unbiased variance in them",
        asks=("R and α are exact", "|v̂ − v| ≤ Δ", "k = c_m + 2c_d + 3"),
        bound="|m̂ − v·N/(N − 1)| ≤ (Δ + Θ_k(v + Δ) + 4ω)·N/(N − 1)",
    ),
    "T14": Theorem(
        about="norms of input + residual",
        asks=("with dropout, 1/(1 − p) is a power of two; with any other p all bounds are those of T10",),
        bound="The returned sum is t, in every bit. Output, statistics and gradients keep the bounds of the "
        "norm of x, in whose exact values x is taken for given",
    ),
    "T15": Theorem(
        about="logistic functions of gates whose exponential may overflow; of others by T10 and T11",
        asks=("L ≤ −z and L ≤ −ẑ, less what the argument loses inside the exponential, and L > 8",),
        bound="|σ̂ − σ| ≤ 4·exp(−L) + ω",
    ),
    "T16": Theorem(
        about="softmax of scores under masks",
        asks=("J, the elements that take part, is not empty", "each computed score is within E_i of z_i"),
        bound="The bounds of T11, in each of its forms, hold for J with |max ẑ − M| ≤ max_J E_j and with "
        "E_i + max_J E_j added to the error of the argument of each exponential",
    ),
    "T17": Theorem(
        about="hyperbolic tangents of a library",
        asks=("the argument is within E of z", "m = max(|z| − E, 0)"),
        bound="|t̂ − tanh z| ≤ d + c_t·u·(|tanh z| + d) + ω + ω_t, where d = min(E/cosh² m, 2)",
    ),
    "T18": Theorem(
        about="norms of powers",
        asks=("sums of sixth powers do not overflow",),
        bound="x^2p has 2p − 1 roundings, its mean Θ_{2p−1+d+c_m} relative, r_p half of that and those of a "
        "reciprocal root",
    ),
}
"""The theorems that algorithms and certificates name, by number."""

_SUM, _SQUARES = "N·A1", "N·A2"
_DEVIATIONS = "N(v + τ·D1 + e²)"
_SHIFTED = "N·mean|z|, N·mean z²"
BELOW_HALF: Mapping[str, tuple[str, ...]] = {
    "chan": ("N·N(D + Ē)²", "N·max|x| if means are pooled"),
    "rms": (_SQUARES,),
    "shifted": (_SHIFTED, "(|μ − s| + e_z)²"),
    "shifted_sums": (_SHIFTED, "(N·mean|z|)²"),
    "textbook": (_SUM, _SQUARES, "(|μ| + e)²"),
    "textbook_sums": (_SUM, "N·A2, (N·A1)²"),
    "two_pass": (_SUM, _DEVIATIONS),
    "two_pass_corrected": (_SUM, _DEVIATIONS, "N²(e + R)²"),
    "two_pass_corrected_mean": (_SUM, _DEVIATIONS, "(e + R')²"),
    "welford": ("4N(D + Ē)²", "N·N(D + Ē)²"),
}
"""What may not exceed half of the largest number (T12), by variance algorithm."""


def stated(number: str, algorithm: str | None) -> Theorem:
    """Return a theorem, T12 with the quantities of a variance algorithm."""
    theorem = THEOREMS[number]
    if number != "T12" or algorithm is None:
        return theorem
    return Theorem(
        about=theorem.about,
        asks=(*theorem.asks, f"below half of the largest number: {', '.join(BELOW_HALF[algorithm])}"),
        bound=theorem.bound,
    )
