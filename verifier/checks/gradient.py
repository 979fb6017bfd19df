"""Every gradient lies within its proved bound of the exact vector-Jacobian product."""

from __future__ import annotations

from verifier.cases.plan import EVERY_EPS, Plan
from verifier.checks.support.certain_values import certain_values
from verifier.checks.support.output_verdict import judge
from verifier.checks.support.session import Session, gradient_names
from verifier.ops import Op
from verifier.ops.unknown import NO_BOUND
from verifier.records.subject import Subject
from verifier.records.verdict import Outcome, Verdict

NAME = "gradient"
EVERY_DTYPE = True
"""Its answer depends on the dtype most."""
ORDER = 30
NEEDS_A_NORM = NO_BOUND
DEMANDS = (
    "grad_input, grad_weight and grad_bias, and grad_residual where there is one, in the kernel's own dtype, "
    "differ from the exact gradients by no more than their proved bounds"
)
WHY = (
    "a tolerance of 1e-2 does not notice a backward pass that drops a row sum or accumulates in half "
    "precision"
)
CATCHES = (
    "last_tile_of_diagonal_alone_triton",
    "grad_input_without_mean_term",
    "grad_weight_without_rstd",
    "grad_weight_none",
    "sums_of_no_rows_unwritten",
    "dot_summed_in_half_triton",
    "grad_weight_in_input_dtype",
    "grad_weight_empty_like_input",
    "gradient_of_sum_in_dtype_of_input",
    "gradient_of_sum_lost",
    "gradient_of_sum_through_the_norm",
    "gradient_of_dropped_input",
    "gate_gradient_without_slope",
    "gate_gradient_without_bias",
    "gradient_of_alpha_without_input",
    "slope_of_stored_tangent",
    "gradient_of_a_power_with_fixed_size",
    "gradient_beside_the_gate",
    "gradient_of_gate_past_the_norm",
    "gradient_of_gate_without_mean_term",
    "gradient_along_the_row_kept",
    "gradient_through_the_mask",
    "gradient_of_masked_row_nan",
    "powers_of_stored_logarithm",
    "gradient_without_scale",
)


def plan(_subject: Subject, _op: Op) -> Plan:
    """Ask for every hazard and rank, with gradients of several kinds."""
    return Plan(
        gradients=True,
        max_elements=8192,
        eps=EVERY_EPS,
        must=("variant", "eps", "parameter_dtype", "residual_dtype"),
        reaching=True,
        literals=True,
        parameter_dtypes=True,
    )


def skips(subject: Subject, op: Op, _dtype: str, _backend: str) -> str | None:
    """Leave out kernels that declare no backward pass."""
    if op.differentiable and not subject.differentiable:
        return "declared forward only (differentiable=False)"
    return None


def check(session: Session) -> list[Outcome]:
    """Judge every gradient."""
    names = gradient_names(session.subject, session.op)
    # Poisoned, so that what reads fresh memory fails here in every run alike.
    seen = session.execute(gradients=bool(session.op.differentiable), poison="nan")
    present = tuple(n for n in names if session.case.tensors.get(n.removeprefix("grad_"), 0) is not None)
    outcomes = session.shape_outcomes(seen, present)
    wrong = {o.output for o in outcomes}
    there = tuple(n for n in present if n not in wrong)
    outcomes += [*judge(session.truth, seen, there), *certain_values(session, seen, there)]
    return [*outcomes, *_empty_sums(session, seen.outputs, present), *session.contradictions()]


def _empty_sums(session: Session, outputs: object, names: tuple[str, ...]) -> list[Outcome]:
    """Demand zeros for the sums over no rows at all."""
    if session.case.rows != 0 or not isinstance(outputs, dict):
        return []
    found = []
    for name in names:
        value = outputs.get(name)
        if name == "grad_input" or value is None or value.numel() == 0:
            continue
        if bool((value != 0).any()):
            text = f"{name} of an input without rows is {value.flatten()[0].item()}, not zero"
            found.append(Outcome(verdict=Verdict.FAIL, output=name, message=text))
    return found
