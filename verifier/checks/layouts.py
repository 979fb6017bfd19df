"""Results do not depend on how the tensors lie in memory."""

from __future__ import annotations

from strategies.layouts import KINDS
from verifier.cases.plan import Plan
from verifier.checks.support.output_verdict import judge
from verifier.checks.support.session import Session, result_names
from verifier.ops import Op
from verifier.ops.unknown import NO_BOUND
from verifier.records.subject import Subject
from verifier.records.verdict import Outcome

NAME = "layouts"
GUARANTEE = "strides are read, not assumed: influences are followed through padded rows, too"
ORDER = 40
NEEDS_A_NORM = f"{NO_BOUND}, in every layout"
DEMANDS = (
    "every result stays within its bound whatever the strides of each tensor are, those of grad_output "
    "included"
)
WHY = (
    "a kernel takes a stride from another tensor, or assumes that it is 1; and y.sum() hands its backward "
    "pass a gradient whose strides are all 0"
)
CATCHES = (
    "column_stride_assumed",
    "grad_output_stride_assumed",
    "gradient_along_row_taken_for_one_number",
    "row_stride_of_input_for_output",
    "rows_evenly_spaced",
    "saved_rstd_evenly_spaced",
    "row_stride_taken_for_column",
    "weight_aligned_as_input_cuda",
    "first_row_aligned_cuda",
    "first_axis_taken_for_last",
)


def plan(subject: Subject, op: Op) -> Plan:
    """Ask for ordinary values in every layout."""
    gradients = subject.differentiable or not op.differentiable
    return Plan(
        gradients=gradients,
        layouts=KINDS,
        hazards=("ordinary",),
        joint=False,
        max_elements=4096,
        max_columns=1100,
        min_rows=1,
        min_columns=1,
        eps=(1e-5,),
        parameter_dtypes=True,
    )


def check(session: Session) -> list[Outcome]:
    """Judge outputs and gradients of a case in an unusual layout."""
    backward = bool(session.op.differentiable) and session.subject.differentiable
    # What nobody wrote must not be right by chance: freed memory often holds the last call's output, and
    # shrunk cases have outputs of zeros.
    seen = session.execute(gradients=backward, poison="nan")
    names = result_names(session.subject, session.op)
    present = tuple(n for n in names if session.case.tensors.get(n.removeprefix("grad_"), 0) is not None)
    outcomes = session.shape_outcomes(seen, present)
    wrong = {o.output for o in outcomes}
    return outcomes + judge(session.truth, seen, tuple(n for n in present if n not in wrong))
