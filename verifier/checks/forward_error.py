"""Every element of the output lies within the proved rounding-error bound, on every admissible device."""

from __future__ import annotations

from dataclasses import replace

from verifier.cases.plan import EVERY_EPS, Plan
from verifier.checks.support.certain_values import certain_values
from verifier.checks.support.output_verdict import judge
from verifier.checks.support.session import Session
from verifier.execution.backend import Backend, Power
from verifier.execution.backends import can
from verifier.execution.call_subject import execute
from verifier.ops import Op
from verifier.ops.unknown import NO_BOUND
from verifier.records.case import Case
from verifier.records.observation import Observation
from verifier.records.subject import Subject
from verifier.records.verdict import Outcome, Verdict

NAME = "forward_error"
EVERY_DTYPE = True
"""Its answer depends on the dtype most."""
ORDER = 10
NEEDS_A_NORM = NO_BOUND
DEMANDS = (
    "every element of the output differs from the exact value by no more than the proved bound of the "
    "declared algorithm: |computed - exact| <= bound"
)
WHY = (
    "a guessed tolerance hides wrong formulas, dropped tails of rows, sums in a narrow format and unstable "
    "variances"
)
CATCHES = (
    "variance_over_n_minus_one",
    "weight_of_another_channel",
    "eps_outside_root",
    "eps_zero_taken_for_none",
    "eps_none_taken_for_another",
    "eps_left_out_taken_for_another",
    "momentum_of_zero_replaced",
    "eps_none_in_words_refused",
    "tiny_eps_raised",
    "last_of_several_dimensions_alone",
    "last_two_of_three_dimensions_alone",
    "mask_of_sample_by_head",
    "last_axis_of_volumes_left_out",
    "one_element_left_as_it_is",
    "last_extent_taken_for_all_within",
    "rows_of_first_axis_alone",
    "largest_begins_above_zero_triton",
    "tail_dropped",
    "reciprocals_of_reciprocals_triton",
    "output_in_weight_dtype",
    "weight_read_as_input_cuda",
    "weight_rounded_to_input_dtype",
    "bias_read_as_weight_triton",
    "rescaling_forgotten_triton",
    "threshold_falls_between_triton",
    "computed_threshold_falls_between_triton",
    "tile_of_one_length_not_masked_triton",
    "rows_along_y_triton",
    "eps_raised_in_long_rows_triton",
    "rows_beyond_bounded_grid_triton",
    "rows_beyond_four_each_triton",
    "sum_in_dtype_of_input",
    "sum_kept_declared_rounded",
    "sum_rounded_declared_kept",
    "dropout_times_what_is_kept",
    "dropout_scale_in_bfloat16",
    "gate_before_the_norm",
    "gate_opened_in_half",
    "gate_opened_by_a_tangent",
    "gate_times_its_sigmoid",
    "mean_of_input_past_the_gate",
    "length_of_a_mean_square",
    "powers_in_half",
    "weights_of_powers_reversed",
    "tangent_by_large_exponential",
    "tangent_approximate_triton",
    "one_plus_weight_in_half",
    "mask_after_the_maximum",
    "masked_with_the_least_number",
    "causal_by_one_column_too_many",
    "diagonal_ends_in_last_column_triton",
    "scale_after_the_mask",
    "added_scores_laid_out_as_mask",
    "stride_of_mask_ignored_triton",
    "logarithm_of_masked_row_nan",
    "largest_added_to_logarithm_triton",
)
ADMISSIBLE = ((1, "on"), (2, "off"))
"""Seeds of other devices, and whether their compiler contracts."""
MOST_ELEMENTS_ELSEWHERE = 2048
"""Elements of a case beyond which one device has to do."""


def plan(_subject: Subject, _op: Op) -> Plan:
    """Ask for every hazard in contiguous memory, of every rank."""
    must = ("variant", "eps", "parameter_dtype", "residual_dtype")
    return Plan(
        eps=EVERY_EPS, must=must, reaching=True, literals=True, parameter_dtypes=True, eps_unsaid=True
    )


def skips(_subject: Subject, op: Op, _dtype: str, _backend: str) -> str | None:
    """Leave out raw backward ops, whose outputs are gradients."""
    return None if "output" in op.outputs else f"{op.name} returns gradients only; gradient judges them"


def check(session: Session) -> list[Outcome]:
    """Judge the output, and arguments that are results too (running statistics)."""
    # Poisoned, so that what reads fresh memory fails here in every run alike.
    seen, names = session.execute(poison="nan"), session.op.outputs
    wrong = session.shape_outcomes(seen, names)
    if wrong:
        return wrong
    outcomes = [*session.contradictions(), *judge(session.truth, seen, names)]
    outcomes += certain_values(session, seen, names)
    if any(o.verdict is Verdict.FAIL for o in outcomes):
        return outcomes
    return outcomes + _on_other_devices(session, names)


def _on_other_devices(session: Session, names: tuple[str, ...]) -> list[Outcome]:
    """Return what fails on devices that differ where PTX leaves them free; in small cases."""
    code = session.compiled
    small = session.case.elements <= MOST_ELEMENTS_ELSEWHERE
    if not can(session.backend, Power.VARIES) or code is None or not small:
        return []
    if not (code.approximate or code.fuses):
        return []
    failed = []
    for seed, contraction in ADMISSIBLE:
        experiment = "verifier.checks.forward_error:elsewhere"
        seen = session.execute(experiment=experiment, seed=seed, contraction=contraction)
        where = f"with approximate instructions at the edge of their errors and contraction {contraction}"
        failed += [
            replace(o, message=f"{o.message}, on an admissible device ({where})")
            for o in judge(session.truth, seen, names)
            if o.verdict is Verdict.FAIL
        ]
    return failed


def elsewhere(subject: Subject, case: Case, *, backend: Backend, seed: int, contraction: str) -> Observation:
    """Execute on a device whose approximate instructions err as far as documented; runs in the child."""
    from verifier.machine.arithmetic.approximation import Adversarial

    with backend.varied(approximation=Adversarial(seed=seed, extreme=True), contraction=contraction):
        return execute(subject, case, backend=backend)
