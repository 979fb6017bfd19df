"""The expressions that a declaration says a kernel computes: its variance algorithm and its form, on symbols.

What is declared leaves things open that compiled code decides: the order of sums, whether a product is fused,
how a root is taken. A `Way` settles them. The twin of a kernel is the declared computation along one way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import numpy as np

from verifier.arithmetic.abstract_number import Form, Terms, constant_statistics
from verifier.arithmetic.formats import FORMATS, Array
from verifier.arithmetic.graph.graph import Builder, Ids
from verifier.arithmetic.graph.symbols import SHORT_NAMES, SymbolicArithmetic, Symbols, converted
from verifier.ops import Op
from verifier.ops.rows.twin_masked import computed_in_parts
from verifier.ops.rows.twin_numbers import NoTwinError, TwinNumbers, TwinValue, UnfusedSums, Way
from verifier.ops.rows.twin_online import online_sum
from verifier.ops.rows.twin_orders import Orders
from verifier.ops.rows.twin_statistics import (
    held_statistics,
    moved_statistics,
    reduction_of,
    statistics,
)
from verifier.oracle.softmax.problem import ADDED, SCALE, SoftmaxProblem
from verifier.records.case import Case
from verifier.records.subject import PARAMETERS, Subject

_FURTHER = ("grad_new_residual", "gate", "alpha", ADDED)
RAW = (
    *("input", "weight", "bias", "grad_output", "mean", "rstd", "running_mean", "running_var"),
    *("residual", *_FURTHER),
)
_BY_ROW = ("mean", "rstd", "running_mean", "running_var")


def formats_of(case: Case) -> dict[str, str]:
    """Return the format of each argument that has one."""
    dtypes = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in case.given.items()}
    return {name: SHORT_NAMES[dtype] for name, dtype in dtypes.items() if dtype in SHORT_NAMES}


def twin(  # noqa: PLR0917
    op: Op,
    subject: Subject,
    case: Case,
    way: Way,
    orders: Orders,
    builder: Builder,
    *,
    gradients: bool = False,
    unfused: UnfusedSums | None = None,
) -> dict[str, Ids]:
    """Append the expressions of all results, and return their nodes in canonical rows.

    unfused: takes the nodes of sums into which code may fuse products.

    Raises:
        NoTwinError: the declaration is not of a kind that has a twin.
        OrderError: the compiled code has no sum of the terms that the declaration sums.

    """
    claim = subject.claim
    if not op.claimed(claim):
        raise NoTwinError("no variance algorithm is declared")
    if way.contracted and way.divide_by_n == "reciprocal" and claim.mean_contraction != "mixed":
        raise NoTwinError("whether all uses of the mean fuse its product alike is not looked at")
    dtypes = {n: str(t.dtype).removeprefix("torch.") for n, t in case.given.items()}
    accumulation, form = FORMATS[subject.accumulation(case.dtype)], op.form(claim, case.dtype)
    named = {} if way.divide == "div.rn" else {"divide": f"{way.divide}.{SHORT_NAMES[accumulation.name]}"}
    rounded = SymbolicArithmetic(
        format=accumulation, builder=builder, larger=way.larger, reads=orders.of_sum, named=named
    )
    posed = op.problem(case)
    parameter = getattr(posed, "parameter", "columns")
    leaves = {n: _leaves(op, case, rounded, n, parameter) for n in RAW if n in case.given}
    saved = claim.saved_dtype or accumulation.name
    saved = dtypes["input"] if saved == "input" else saved
    held = dtypes | {"output": dtypes["input"], "new_residual": dtypes.get("residual", dtypes["input"])}
    numbers = TwinNumbers(
        rounded=rounded, way=way, rows=case.rows, columns=case.columns,
        reduction=reduction_of(op, claim, way, form, accumulation, saved),
        dtypes=held, mixes=claim.mean_contraction == "mixed",
        trees=claim.trees, parameter=parameter, orders=orders, online=online_sum,
        unfused=unfused or UnfusedSums(),
    )  # fmt: skip
    stored = {"mean": saved, "rstd": saved, "output": dtypes["input"]}
    if isinstance(posed, SoftmaxProblem) and posed.kept is not None:
        results = _parts_of_rows(form, numbers, leaves, posed, claim.fully_masked, gradients=gradients)
        return {n: _stored(rounded, v, stored.get(n) or dtypes["input"]) for n, v in results.items()}
    if "residual" in leaves:
        total = rounded.add(leaves["input"], leaves["residual"])
        kept = numbers.plain(total) if form.keeps_sum else numbers.cast(numbers.plain(total), "residual")
        leaves["input"], leaves["new_residual"] = kept.array, total
    evaluates = not case.scalars.get("training", True)
    if evaluates:
        held_statistics(numbers, leaves["running_mean"], leaves["running_var"], case.eps)
    elif op.needs_variance:
        statistics(numbers, claim, leaves["input"], case.eps, saved, orders.of_merges)
    given = "rstd" in leaves
    if given:
        mean = leaves.get("mean", rounded.symbols(rounded.nodes(np.zeros((case.rows, 1)))))
        numbers.computed = numbers.saved = (numbers.plain(mean), numbers.plain(leaves["rstd"]))
    if evaluates:
        form = replace(form, backward=form.evaluation or constant_statistics)
    further = {"eps": numbers.constant(case.eps)} if op.reads_eps else {}
    results = _results(form, numbers, leaves, given=given, gradients=gradients, further=further)
    moved = set(subject.mutates) & {"running_mean", "running_var"} & set(leaves)
    if moved and not evaluates:
        results |= moved_statistics(numbers, form, leaves, case.scalars, moved)
    stored |= {n: dtypes[n] for n in moved}
    stored |= {"new_residual": dtypes["residual"]} if "residual" in dtypes else {}
    outputs = {
        name: _stored(rounded, value, stored.get(name) or _dtype_of_gradient(name, dtypes))
        for name, value in results.items()
    }
    if evaluates:  # what is not moved is what was given, bit for bit
        for name in moved:
            place = op.flat_index(case, name, tuple(case.given[name].shape))
            outputs[name] = builder.append(f"input:{name}", value=np.atleast_2d(place).reshape(-1, 1))
    return outputs


def _parts_of_rows(
    form: Form,
    numbers: TwinNumbers,
    leaves: Mapping[str, Array],
    posed: SoftmaxProblem,
    empty: str | None,
    *,
    gradients: bool,
) -> Mapping[str, Array]:
    """Return what a softmax of the elements that take part gives; empty: what it does of none."""

    def part(rows: int, columns: int, held: Mapping[str, Array]) -> Mapping[str, Array]:
        own = replace(numbers, rows=rows, columns=columns)
        further = {} if posed.scale == 1.0 else {SCALE: own.constant(posed.scale)}
        return _results(form, own, held, given=False, gradients=gradients, further=further)

    return computed_in_parts(numbers.rounded, leaves, posed, empty, part)


def _results(
    form: Form,
    numbers: TwinNumbers,
    leaves: Mapping[str, Array],
    *,
    given: bool,
    gradients: bool,
    further: Mapping[str, TwinValue],
) -> dict[str, Array]:
    """Return what a kernel computes: of one that is given its statistics, gradients alone.

    further: scalars that a form takes.
    """
    held = {name: numbers.plain(array) for name, array in leaves.items()}
    terms = Terms(
        x=held["input"],
        weight=held.get("weight"),
        bias=held.get("bias"),
        grad_output=held.get("grad_output"),
        further={**{n: held[n] for n in _FURTHER if n in held}, **further},
    )
    terms = form.completed(numbers, terms)
    numbers.backward = given
    if given:  # it has the gradient of any bias
        any_bias = replace(terms, bias=numbers.constant(0.0))
        return {name: value.array for name, value in form.backward(numbers, any_bias).items()}
    output = form.forward(numbers, terms)
    found = {"output": output.array}
    if "new_residual" in leaves:
        found["new_residual"] = leaves["new_residual"]
    if numbers.saved is not None:
        found |= {n: v.array for n, v in zip(("mean", "rstd"), numbers.saved, strict=True)}
    if gradients:
        numbers.backward = True
        backward = form.backward(numbers, replace(terms, output=output))
        found |= {name: value.array for name, value in backward.items()}
    return found


def _leaves(op: Op, case: Case, rounded: SymbolicArithmetic, name: str, parameter: Ids | str) -> Array:
    """Return an argument in canonical rows, as the accumulation format holds it.

    parameter: which entry of weight each element belongs to; "columns" or "rows" where it is its own.
    """
    tensor = case.given[name]
    kept = FORMATS[str(tensor.dtype).removeprefix("torch.")]
    index = np.atleast_2d(op.flat_index(case, name, tuple(tensor.shape)))
    if name in PARAMETERS and not isinstance(parameter, str):
        index = index.ravel()[parameter]
    elif name in _BY_ROW or (name in PARAMETERS and parameter == "rows"):
        index = index.reshape(-1, 1)
    symbols = Symbols(rounded.builder, kept, rounded.builder.append(f"input:{name}", value=index))
    return cast("Array", converted(symbols, rounded.format))


def _dtype_of_gradient(name: str, dtypes: Mapping[str, str]) -> str:
    """Return the dtype of an argument's gradient; that of a bias that is not given is the weight's."""
    of = name.removeprefix("grad_")
    return dtypes.get(of) or dtypes.get("weight") or dtypes["input"]


def _stored(rounded: SymbolicArithmetic, values: Array, dtype: str) -> Ids:
    return converted(
        cast("Symbols", cast("object", rounded.symbols(rounded.nodes(values)))), FORMATS[dtype]
    ).nodes
