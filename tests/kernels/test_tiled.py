"""Kernels of several rows a program: what goes wrong where a program takes tiles in turns is caught."""

import pytest
import torch
from checks_support import KERNELS, SKELETONS, failures, subject_of, subject_of_texts

pytest.importorskip("triton", reason="the subjects are Triton kernels; Triton is not installed")

from strategies.values import Values
from verifier.audit.trial import Trial
from verifier.cases.recipe import Recipe, assemble, build
from verifier.execution import Runner
from verifier.ops import op

RMS = KERNELS / "rms_norm_tiled_triton.py"
FILES = (RMS, KERNELS / "rms_norm_triton.py", *SKELETONS)
TILES = "row_tiles_skeleton_triton.py"
ON_A_DEVICE, ON_A_SMALL_ONE = "PROGRAMS = 132", "PROGRAMS = 4"
"""Multiprocessors that launches are made for: of four, three rows of two pieces are more than programs."""
FAULTS = {
    "tiles left out": ("rows, programs * TALL", "rows, programs * TALL * 2"),
    "the sums of the last tile alone": ("part_dw += d * hat", "part_dw = d * hat"),
}
OF_TWO_PIECES = {
    "the other piece left out": ("hat_g += tl.where(there_too, other_hat * other_g, 0.0)", "pass"),
    "its own piece twice": ("(1 - piece) * BLOCK", "piece * BLOCK"),
    "the other piece without weight": ("other_g *= tl.load", "tl.load"),
}


def with_fault(right, wrong, *, small=False):
    """Return the subject with a fault; small: for a device of four multiprocessors."""
    texts = {file.name: file.read_text(encoding="utf-8") for file in FILES}
    assert right in texts[RMS.name]
    texts[RMS.name] = texts[RMS.name].replace(right, wrong)
    if small:
        assert texts[TILES].count(f"\n{ON_A_DEVICE} ") == 1
        texts[TILES] = texts[TILES].replace(f"\n{ON_A_DEVICE} ", f"\n{ON_A_SMALL_ONE} ")
    return subject_of_texts(texts, RMS.name)


def judged(subject, rows, columns=8193):
    """Return the failures of one case of more tiles, or fewer, than programs."""
    recipe = Recipe(rows=rows, columns=columns, input=Values(seed=1))
    case = build(op("rms_norm"), subject, "float16", recipe, gradients=True)
    with Runner("machine") as runner:
        trial = Trial(subject=subject, check_name="gradient", dtype="float16", runner=runner)
        return failures(trial.judge(case)[0])


@pytest.mark.parametrize("name", list(FAULTS))
def test_a_fault_of_later_turns_shows_where_there_are_more_tiles_than_programs(name):
    subject = with_fault(*FAULTS[name], small=True)
    assert not judged(subject, 2)  # every program has one tile: the fault changes no number
    assert {failure.output for failure in judged(subject, 3)} >= {"grad_weight"}


def test_more_tiles_than_programs_are_right():
    assert not judged(subject_of(RMS), 67)


@pytest.mark.parametrize("name", list(OF_TWO_PIECES))
def test_a_fault_of_rows_of_two_pieces_shows_in_them_alone(name):
    subject = with_fault(*OF_TWO_PIECES[name])
    assert {failure.output for failure in judged(subject, 2)} == {"grad_input"}
    assert not judged(subject, 2, columns=8192)


OF_FEW_ROWS = {
    "later tiles of rows left out of the sums": ("range(0, rows, TALL)", "range(0, TALL, TALL)", 257),
    "the sums of the last tile of rows": ("part_dw += d * (value", "part_dw = d * (value", 257),
    "half of these programs left out": ("(programs + summing,)", "(programs + summing // 2,)", 3),
}


@pytest.mark.parametrize("name", list(OF_FEW_ROWS))
def test_a_fault_of_the_programs_that_sum_columns_of_few_rows_shows(name):
    """Of more than 768 rows other kernels sum the columns."""
    right, wrong, rows = OF_FEW_ROWS[name]
    subject = with_fault(right, wrong)
    assert {failure.output for failure in judged(subject, rows, columns=300)} == {"grad_weight"}
    assert not judged(subject, 769, columns=300)


@pytest.mark.parametrize(
    ("name", "columns"),
    [("rms_norm_tiled_triton", 250), ("layer_norm_compensated_triton", 250), ("rms_norm_heads_triton", 250)],
)
def test_a_row_has_the_same_bits_among_few_rows_and_among_thousands(name, columns):
    """`batch_invariance` has few rows in all of its cases: no other tile is launched for them."""
    subject, few = subject_of(KERNELS / f"{name}.py"), 5
    recipe = Recipe(rows=2051, columns=columns, input=Values(seed=1))
    case = build(op(subject.op), subject, "float16", recipe, gradients=True)
    rows = {n: t[:few].contiguous() if t is not None and t.dim() > 1 else t for n, t in case.tensors.items()}
    others = assemble(op(subject.op), case.dtype, rows, case.scalars, {}, hazard="", origin="")
    with Runner("machine") as runner:
        whole, part = (runner.run(subject, one, gradients=False).outputs for one in (case, others))
    assert part["output"].shape[0] == few
    for result in subject.returns:
        assert torch.equal(whole[result][:few], part[result]), result
