"""The error that one step of a merging variance adds: a Welford update or a merge of two parts."""

from __future__ import annotations

from dataclasses import dataclass

from verifier.bounds.variance import Merge
from verifier.bounds.variance.options import Merged
from verifier.bounds.variance.row_terms import RowTerms


@dataclass(frozen=True, kw_only=True)
class Local:
    """The error that one node adds to its mean, and the roundings of one increment of the squares.

    |new error| <= u|m| + (1 + u)(beta |m - m_A| + chi (n_A|m_A| + n_B|m_B|)/n + absolute), m the merged mean;
    `absolute` is w * omega of the model. half_ulp: the last rounding errs by half an ulp, not by u|m|.
    """

    beta: float
    chi: float
    absolute: float
    increment: float
    half_ulp: bool


def update_step(t: RowTerms) -> Local:
    """Return the local errors of one Welford update, m + delta / k, by division or by reciprocal."""
    arithmetic = t.claim.arithmetic
    roundings = max(1.0 + arithmetic.division, 2.0 + arithmetic.reciprocal)
    return Local(
        beta=t.theta(roundings),
        chi=0.0,
        absolute=t.omega + 2.0 * t.flush,
        increment=3.0,
        half_ulp=True,
    )


def merge_step(t: RowTerms) -> Local:
    """Return the local errors of one merge in the declared form; its squares delta**2 n_A n_B / n."""
    arithmetic = t.claim.arithmetic
    share = max(arithmetic.division, arithmetic.reciprocal + 1.0)
    form: Merge = t.claim.chosen(Merged).merge
    centred = form == "increment"
    return Local(
        beta=t.theta(2.0 + share) if centred else 0.0,
        chi=0.0 if centred else t.theta(1.0 + share),
        absolute=2.0 * t.omega + 2.0 * t.flush,
        increment=5.0 + share,
        half_ulp=form != "pooled" or arithmetic.division == 1.0,
    )
