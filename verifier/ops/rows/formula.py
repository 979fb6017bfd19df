"""Ops whose exact results and bounds both follow from a formula: norms with a part that no theorem names.

The canonical form of the op, run in exact arithmetic, is its meaning (`verifier.oracle.formulas`). The same
form, or another one, is run on bounds (T10): mean and rstd come from the theorem of the declared variance
algorithm where the op has one, or else from the form itself (`Form.shared`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from verifier.arithmetic.abstract_number import Form, Numbers, Terms, Value
from verifier.arithmetic.blocks import cut
from verifier.arithmetic.formats import FORMATS, INFLATION
from verifier.bounds.affine import AffineNumbers, bound_of
from verifier.bounds.affine_value import Affine
from verifier.ops import Bounded, Expected, Setting
from verifier.ops.rows import trailing_dimensions
from verifier.ops.rows.compose_bounds import Composer, RowsSolved, case_array
from verifier.ops.rows.results import like
from verifier.oracle.enclosure import Enclosure
from verifier.oracle.formulas.problem import FormulaProblem, FormulaSolution
from verifier.records.case import Case
from verifier.records.subject import Claim, Subject

EPS = "eps"
"""The scalar that a form adds by itself, where no variance algorithm does."""


def problem(
    case: Case, *, form: Form, centred: bool, further: tuple[str, ...] = (), moments: bool = True
) -> FormulaProblem:
    """Pose an op over trailing dimensions with its VJP to the oracle.

    form: the canonical one. further: tensors of the input's shape beside it. moments: whether the form reads
    mean and rstd; eps is a scalar of the form where it does not.
    """
    norm = trailing_dimensions.problem(case, centred=centred)
    beside = {name: case_array(case, name) for name in further}
    return FormulaProblem(
        input=norm.input,
        eps=norm.eps,
        centred=centred,
        weight=norm.weight,
        bias=norm.bias,
        grad_output=norm.grad_output,
        parameter=norm.parameter,
        form=form,
        further={n: a.reshape(case.rows, case.columns) for n, a in beside.items() if a is not None},
        scalars={} if moments else {EPS: case.eps},
        moments=moments,
    )


def statistics_of(k: Numbers, rows: Value, eps: Value, *, centred: bool) -> Mapping[str, Value]:
    """Return mean, where one is taken away, and rstd of rows that a form computes: those of two passes."""
    found: dict[str, Value] = {}
    if centred:
        found["mean"] = k.mean(rows)  # which is shared as far as contraction lets it
        rows = rows - found["mean"]
    found["rstd"] = k.share(k.rsqrt_of_squares(k.mean(rows * rows), eps), "rstd")
    return found


def exact(solution: FormulaSolution) -> Mapping[str, Enclosure]:
    """Name the exact results."""
    return solution.enclosures


def expected(case: Case, _subject: Subject) -> Mapping[str, Expected]:
    """Return the shape and dtype of the output, and of the gradient of every tensor that has one."""
    gradients = {f"grad_{name}": like(tensor) for name, tensor in case.given.items() if name != "grad_output"}
    return {"output": like(case.given["input"]), **gradients}


class FormulaComposer(Composer):
    """Runs a form on one case; sums of the forward pass follow the tree of the statistics."""

    problem: FormulaProblem

    def __init__(self, solved: RowsSolved, claim: Claim, form: Form, setting: Setting) -> None:
        """Begin with the forward pass."""
        super().__init__(solved, claim, form, setting)
        self.numbers.row_tree = setting.trees.statistics
        self.shared: dict[str, Affine] = {}

    def _prepared(self) -> dict[str, Bounded]:
        """Make mean and rstd, if the form reads them."""
        return super()._prepared() if self.problem.moments else {}

    @property
    def _is_of_rows(self) -> bool:
        """Whether nothing but sums over rows is of all rows, and nothing is of each but mean and rstd."""
        problem, form = self.problem, self.form
        whole = bool(problem.wholes or problem.scalars or form.shared or form.beside)
        return type(self) is FormulaComposer and not whole

    def _read(self, numbers: AffineNumbers, rows: slice) -> Terms:
        """Read the operands of some rows."""
        further = dict[str, Affine]()
        for name, array in self.problem.further.items():
            own, rounded = cut(array, (rows, slice(None))), self.dtypes.get(name) != "bool"
            further[name] = numbers.read(own, name) if rounded else numbers.exact(own)
        return replace(super()._read(numbers, rows), further=further)

    def _terms(self) -> Terms:
        """Read the operands, and make what both passes read, as the forward pass does."""
        read = super()._terms()
        scalars = {name: self._scalar(number) for name, number in self.problem.scalars.items()}
        read = replace(read, further={**read.further, **scalars})
        with np.errstate(all="ignore"):
            whole = self.form.completed(self.numbers, read)
        self.shared = {name: value for name, value in whole.further.items() if name not in read.further}
        return whole

    def _scalar(self, number: float) -> Affine:
        """Return eps as the kernel holds it: one number, within the rounding of it."""
        value = self.numbers.exact(np.full((1, 1), number))
        return self.numbers.with_rest(value, np.full((1, 1), abs(number) * self._eps_error() * INFLATION))

    def own(self) -> Mapping[str, Bounded]:
        """Bounds of all results, and of what both passes read as it is saved."""
        results = dict(super().own())
        for name, value in self.shared.items():
            saved = self._saved_part(value, name)
            results[name] = self.bounded(saved, bound_of(saved)[:, 0], self.covered)
        return results

    def _gradient_values(self, numbers: AffineNumbers, terms: Terms) -> dict[str, Affine]:
        """Run the backward pass: it reads what was saved, and its sums have trees of their own."""
        numbers.row_tree = self.setting.trees.row_gradients
        output = self.form.forward(numbers, terms)
        saved = {n: self._saved_part(v, n) for n, v in self.shared.items()}
        terms = replace(terms, output=output, further={**terms.further, **saved})
        return super()._gradient_values(numbers, terms)

    def _stored_bounded(self, name: str, value: Affine) -> Bounded:
        """Bound a gradient; a sum of all elements has a theorem only if every row has."""
        if name.removeprefix("grad_") not in self.problem.wholes:
            return super()._stored_bounded(name, value)
        bound = bound_of(value)[0]
        return self.bounded(value, bound, np.full(bound.shape, self.covered.all()))

    def _saved_part(self, value: Affine, name: str) -> Affine:
        """Return a number of each row as the backward pass reads it: in the format of saved statistics."""
        held = self._held()
        if held is None:
            return value
        stored = FORMATS[held]
        kept = self.numbers._round(value, stored.u, stored.omega, stored)
        return self.numbers.share(kept, f"saved {name}")


def composer_of(solved: RowsSolved, claim: Claim, form: Form, setting: Setting) -> Composer:
    """Return what runs a form on a case: of rows that are normalized, or of a formula of them."""
    kind = FormulaComposer if isinstance(solved.problem, FormulaProblem) else Composer
    return kind(solved, claim, form, setting)


def bounds(solved: RowsSolved, claim: Claim, form: Form, setting: Setting) -> Mapping[str, Bounded]:
    """Bound every output and gradient; see `rows_bounds`."""
    return composer_of(solved, claim, form, setting).own()
