"""Kernels of several rows a program: what goes wrong where a program takes tiles in turns is caught."""

import pytest
import torch
from checks_support import KERNELS, SKELETONS, failures, subject_of, subject_of_texts

pytest.importorskip("triton", reason="the subjects are Triton kernels; Triton is not installed")

import triton

from strategies.values import Values
from verifier.audit.trial import Trial
from verifier.cases.recipe import Recipe, assemble, build
from verifier.execution import Runner
from verifier.ops import op
from verifier.subjects.load_file import load

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
    "the other piece left out": (
        "hat_g = tl.fma(tl.where(there_too, other_hat, 0.0), other_g, product(hat, g))",
        "hat_g = product(hat, g)",
    ),
    "its own piece twice": ("(1 - piece) * BLOCK", "piece * BLOCK"),
    "the other piece without weight": ("other_g = product(other_g, other_w)", "pass"),
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


def rows_alone(case, few):
    """Return the case of its first rows alone."""
    rows = {n: t[:few].contiguous() if t is not None and t.dim() > 1 else t for n, t in case.tensors.items()}
    return assemble(op(case.op), case.dtype, rows, case.scalars, {}, hazard="", origin="")


OF_ROWS = (
    "rms_norm_tiled",
    "layer_norm_compensated",
    "rms_norm_heads",
    "softmax_tiled",
    "layer_norm_two_pass",
)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", OF_ROWS)
def test_a_row_has_the_same_bits_among_few_rows_and_among_thousands(name, dtype):
    """`batch_invariance` has few rows in nearly all of its cases: no other tile is launched for them."""
    subject, few = subject_of(KERNELS / f"{name}_triton.py"), 5
    recipe = Recipe(rows=2051, columns=250, input=Values(seed=1))
    case = build(op(subject.op), subject, dtype, recipe, gradients=True)
    with Runner("machine") as runner:
        both = [runner.run(subject, one, gradients=True).outputs for one in (case, rows_alone(case, few))]
    whole, part = both
    assert part["output"].shape[0] == few
    for result in (*subject.returns, "grad_input"):
        assert torch.equal(whole[result][:few], part[result]), result


SPECIALISED = '@triton.jit(do_not_specialize=["rows", "chunk"])\ndef _backward_rows('


def test_code_that_is_compiled_for_one_row_a_program_shows_in_the_bits_of_a_row():
    """Of one compiled for a chunk of 1 the compiler fuses other products into the sums of a row."""
    files = (KERNELS / "layer_norm_two_pass_triton.py", KERNELS / "layer_norm_skeleton_triton.py", *SKELETONS)
    texts = {file.name: file.read_text(encoding="utf-8") for file in files}
    assert SPECIALISED in texts["layer_norm_skeleton_triton.py"]
    faulty = {
        name: text.replace(SPECIALISED, "@triton.jit\ndef _backward_rows(") for name, text in texts.items()
    }
    recipe = Recipe(rows=1025, columns=132, input=Values(seed=1))
    for kernel, same in ((texts, True), (faulty, False)):
        subject = subject_of_texts(kernel, "layer_norm_two_pass_triton.py")
        case = build(op(subject.op), subject, "float32", recipe, gradients=True)
        with Runner("machine") as runner:
            both = [runner.run(subject, one, gradients=True).outputs for one in (case, rows_alone(case, 161))]
        assert torch.equal(both[0]["grad_input"][:161], both[1]["grad_input"]) is same


EXPLICIT = (
    "layer_norm_compensated",
    "rms_norm_heads",
    "rms_norm_tiled",
    "softmax_tiled",
    "log_softmax_tiled",
)
FUSED, UNFUSED = "num_warps=warps", "num_warps=warps, enable_fp_fusion=False"


def rows_unfused(name, dtype, columns):
    """Return, for each result of a row, whether code whose sums fuse no product has its bits."""
    file = KERNELS / f"{name}_triton.py"
    texts = {one.name: one.read_text(encoding="utf-8") for one in KERNELS.glob("*_triton.py")}
    unfused = {one: text.replace(FUSED, UNFUSED) for one, text in texts.items()}
    recipe = Recipe(rows=5, columns=columns, input=Values(seed=1))
    outputs = []
    for kernel in (texts, unfused):
        subject = subject_of_texts(kernel, file.name)
        case = build(op(subject.op), subject, dtype, recipe, gradients=True)
        with Runner("machine") as runner:
            outputs.append(runner.run(subject, case, gradients=True).outputs)
    results = (*subject.returns, "grad_input")
    return {result: torch.equal(outputs[0][result], outputs[1][result]) for result in results}


@pytest.mark.parametrize(
    ("name", "dtype", "columns"),
    [(name, "float32", 250) for name in EXPLICIT]
    + [(name, "float16", 3000) for name in EXPLICIT if name != "rms_norm_heads"]
    + [(name, "float32", 9000) for name in ("layer_norm_compensated", "rms_norm_tiled")],  # of two pieces
)
def test_no_product_is_left_that_a_compiler_could_fuse_into_a_row(name, dtype, columns):
    """Such a kernel is compiled anew for 1 row, and for a multiple of 16."""
    assert all(rows_unfused(name, dtype, columns).values())


def test_a_product_that_a_compiler_does_fuse_shows():
    assert not rows_unfused("layer_norm_two_pass", "float32", 250)["grad_input"]


def test_rows_are_written_by_code_that_no_number_of_rows_chooses():
    """A compiler fuses by the code around: the bits of a row are those of one code, whatever the batch."""
    written, batch = {"y", "dx"}, {"rows", "chunk", "programs"}
    seen = 0
    for file in sorted(KERNELS.glob("*_triton.py")):
        if "published" in file.name or file.name.removesuffix("_triton.py") in EXPLICIT:
            continue
        for name, one in vars(load(file).module).items():
            if not isinstance(one, triton.JITFunction) or f"{name}[" not in file.read_text(encoding="utf-8"):
                continue
            if batch & set(one.arg_names) and written & set(one.arg_names):
                free = {p.name for p in one.params if p.do_not_specialize}
                assert batch & set(one.arg_names) <= free, f"{file.name}: {name}"
                seen += 1
    assert seen >= 6
