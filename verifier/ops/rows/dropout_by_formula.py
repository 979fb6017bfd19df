"""Norms of residual + dropout(input) for any p: the sum is computed, and its roundings are part of the form.

Where 1 / (1 - p) is no power of two, or quotients are approximate, how it was rounded and whether a product
is fused with the addition differ from kernel to kernel, and no rows are known that the norm reads. Its
statistics are then part of the form, as those of what a gate multiplies first are: sums of T10, of which a
mean that is taken away makes the algorithm of two passes.
Source: docs/explanation/bounds.md, T14, "any p".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from verifier.arithmetic.abstract_number import Form, Numbers, Terms, Value
from verifier.arithmetic.formats import INFLATION, Array
from verifier.bounds.affine import bound_of
from verifier.bounds.affine_value import Affine
from verifier.ops import Bounded, Setting
from verifier.ops.rows.compose_bounds import RowsSolved, error_of_scalar
from verifier.ops.rows.formula import EPS, FormulaComposer, statistics_of
from verifier.ops.rows.gates import WithMoments
from verifier.ops.rows.gates_first import OF_TWO_PASSES
from verifier.oracle.formulas.problem import FormulaProblem, FormulaSolution
from verifier.oracle.problem import Field, Rung
from verifier.oracle.rows.added import AddedRowProblem
from verifier.oracle.rows.dropped import FACTOR, KEPT, scaled
from verifier.records.subject import Claim

P = "p"
SHARE = "kept_share"
"""Name of 1 - p, which a kernel may be given."""
STORED = "new_residual"
HELD = 2.0**-52
"""Covers what 1 - p and 1 / (1 - p) lose in float64, where a kernel is given one of them: two roundings."""
KEPT_SUM = "kept_sum_"
OTHER_STATISTICS = (
    "1 / (1 - p) is rounded, or divided approximately, in ways that differ: a norm of the sum has a bound if "
    "its variance is two_pass or rms, without options, in a form that reads neither saved statistics nor a "
    "mean in two parts"
)
"""Why there is no bound."""
NO_FIELD = "1 / (1 - p) is rounded before a kernel is given it"


class AnyProbability(FormulaProblem):
    """Rows of a norm of residual + input / (1 - p), the input being 0 where it is dropped."""

    def solve(self, rung: Rung = "auto", bits: int | None = None) -> FormulaSolution:
        """Return the exact answer, enclosed; to what is dropped comes no gradient, not even a lost one."""
        found = super().solve(rung, bits)
        gradient = found.results.get("grad_input")
        if gradient is None:
            return found
        own = scaled(gradient, np.where(self.further[KEPT] != 0, 1.0, 0.0))
        return replace(found, results={**found.results, "grad_input": own})

    def in_field(self, _field: Field, _form: Form) -> Mapping[str, Value]:
        """Refuse: what a kernel is given is a rounded number, and no field holds the other one.

        Raises:
            ValueError: always.

        """
        raise ValueError(NO_FIELD)


def has_theorem(form: Form, claim: Claim, *, centred: bool) -> bool:
    """Return whether a form's statistics can be those that `computed` makes."""
    base = form.name.removeprefix(KEPT_SUM).replace("kept_sum", "canonical")
    plain = not any(claim.variance_options.values())
    known = claim.variance == ("two_pass" if centred else "rms") and plain and not form.reads_saved
    return known and (base in OF_TWO_PASSES or not centred)


def computed(form: Form, *, centred: bool) -> Form:
    """Return the form of a norm of a sum (see `residual.added`) that makes sum and statistics itself.

    Terms: x, the input with 0 where it is dropped; residual; dropout_mask, 1 or 0; the scalars eps and p, and
    1 - p and 1 / (1 - p) as a kernel may be given them.
    """

    def divided(k: Numbers, t: Terms, value: Value) -> Value:
        one = k.constant(1.0)
        share = k.share(k.either(one - t.further[P], t.further[SHARE]), SHARE)
        scale = k.share(k.either(one / share, t.further[FACTOR]), FACTOR)
        return k.either(value * scale, value / share)

    def total(k: Numbers, t: Terms) -> Value:
        kept = divided(k, t, t.x)
        # A dropout of its own stores what it returns.
        return k.either(kept, k.cast(kept, "input")) + t.further["residual"]

    def read(k: Numbers, t: Terms) -> Value:
        return total(k, t) if form.keeps_sum else k.cast(total(k, t), STORED)

    def shared(k: Numbers, t: Terms) -> Mapping[str, Value]:
        return statistics_of(k, read(k, t), t.further[EPS], centred=centred)

    def of_the_norm(k: Numbers, t: Terms) -> tuple[WithMoments, Terms]:
        mean = t.further["mean"] if centred else k.constant(0.0)
        return WithMoments(k, (mean, t.further["rstd"])), replace(t, x=read(k, t))

    def forward(k: Numbers, t: Terms) -> Value:
        return form.forward(*of_the_norm(k, t))

    def beside(k: Numbers, t: Terms) -> Mapping[str, Value]:
        return {STORED: k.cast(total(k, t), STORED)}

    def backward(k: Numbers, t: Terms) -> Mapping[str, Value]:
        found = dict(form.backward(*of_the_norm(k, t)))
        of_sum = found["grad_residual"]
        # So does a backward pass of its own: what it is given is rounded as sum or input are.
        given = (of_sum, k.cast(of_sum, STORED), k.cast(of_sum, "input"))
        own = k.either(*(divided(k, t, gradient) for gradient in given))
        return {**found, "grad_input": own * t.further[KEPT]}

    return replace(form, forward=forward, backward=backward, shared=shared, beside=beside)


def problem(plain: AddedRowProblem, form: Form, p: float, scale: float, kept: Array) -> AnyProbability:
    """Pose a norm of a sum to the oracle whose first summand is dropped with that p.

    plain: with both summands as they are given. form: the canonical one, `computed`. scale: 1 / (1 - p).
    """
    first, second = plain.summands
    tensors = {"residual": second, KEPT: kept, "grad_new_residual": plain.sum_gradient}
    return AnyProbability(
        input=np.where(kept != 0, first, 0.0),
        eps=plain.eps,
        centred=plain.centred,
        weight=plain.weight,
        bias=plain.bias,
        grad_output=plain.grad_output,
        parameter=plain.parameter,
        form=form,
        further={name: array for name, array in tensors.items() if array is not None},
        scalars={EPS: plain.eps, P: p, SHARE: 1.0 - p, FACTOR: scale},
        moments=False,
        elementwise=(STORED,),
    )


class AnyProbabilityComposer(FormulaComposer):
    """Runs a form of a norm of residual + dropout(input) on one case, whatever p is."""

    def __init__(
        self, solved: RowsSolved, claim: Claim, form: Form, setting: Setting, *, canonical: Form
    ) -> None:
        """Say what is not known of other algorithms.

        form, canonical: of a norm of a sum, see `residual.added`; the second one is run where the first has
        no theorem, and gives the sum alone.
        """
        centred = solved.problem.centred
        known = has_theorem(form, claim, centred=centred)
        super().__init__(solved, claim, computed(form if known else canonical, centred=centred), setting)
        self.dtypes[STORED] = self.dtypes["residual"]
        self._restrict(np.full_like(self.covered, known), OTHER_STATISTICS)

    def own(self) -> Mapping[str, Bounded]:
        """Bound what the norm computes, and the sum as it is stored."""
        found = dict(super().own())
        assert self.form.beside is not None
        with np.errstate(all="ignore"):
            values = self.form.beside(self.numbers, self._terms())
        shape = self.problem.input.shape
        for name, value in values.items():
            # Where the norm has no theorem, the sum has: it reads no statistic, and no other element.
            bound, exact = np.broadcast_to(bound_of(value), shape), self.solution.enclosures[name]
            covered = np.isfinite(np.asarray(exact.high)) & np.isfinite(bound)
            found[name] = Bounded(bound=bound, covered=covered, reasons=tuple(sorted(value.reasons)))
        return found

    def _scalar(self, number: float) -> Affine:
        """Return a scalar as the kernel holds it, computed in float64 or given."""
        error = abs(number) * (error_of_scalar(number, self.setting) + HELD) * INFLATION
        return self.numbers.with_rest(self.numbers.exact(np.full((1, 1), number)), np.full((1, 1), error))
