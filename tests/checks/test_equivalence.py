"""Comparisons of two kernels: what is the same is shown so far as it is, and faulty pairs are told apart."""

from pathlib import Path

import pytest

pytest.importorskip("triton", reason="compared are Triton's kernels; Triton is missing")

from checks_support import KERNELS, machine_runner, planted

from verifier.arithmetic.graph.graph import Builder
from verifier.cases.recipe import Recipe, Values, build
from verifier.checks.support.equivalence import compared_codes
from verifier.checks.support.field_values import field_values
from verifier.commands.compare import UpTo, _status
from verifier.ops import op
from verifier.records.certificate import Refusal
from verifier.records.comparison import CodeComparison
from verifier.subjects.load_file import builtin_files, load

FAULTY = Path(__file__).parents[1] / "faulty_kernels"
KERNEL = (FAULTY / "variance_off_by_one_ulp_triton.py").read_text(encoding="utf-8")
BUG = "    variance *= 1.00000011920928955078125  # the bug\n"
STORE = "    tl.store(y + row"
SUM = "tl.sum(value, axis=0)"
assert BUG in KERNEL
assert STORE in KERNEL
assert SUM in KERNEL
RIGHT = KERNEL.replace(BUG, "")


@pytest.fixture(scope="module")
def runner():
    with machine_runner() as opened:
        yield opened


def kernel(folder, name, *changes):
    text = RIGHT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    file = folder / f"{name}.py"
    file.write_text(text, encoding="utf-8")
    return file


def compared(runner, first, second, *, dtype="float32", gradients=False, columns=33):
    one, other = (load(path).subjects[0] for path in (first, second))
    recipe = Recipe(rows=3, columns=columns, input=Values(seed=0))
    case = build(op(one.op), one, dtype, recipe, gradients=gradients)
    return compared_codes(one, other, case, runner=runner, gradients=gradients)


def only(found):
    assert isinstance(found, CodeComparison), found
    (result,) = found.results
    return result


def built_in(name):
    (file,) = (file for file in builtin_files() if file.stem == name)
    return file


def test_a_kernel_computes_the_bits_of_its_copy(runner, tmp_path):
    found = compared(runner, kernel(tmp_path, "one"), kernel(tmp_path, "copy"), dtype="float16")
    assert only(found).degree == "bits"
    assert only(found).difference is None
    assert _status(found, UpTo.BITS) == 0


def test_a_kernel_computes_the_bits_of_its_copy_backward(runner):
    file = built_in("rms_norm_triton")
    found = compared(runner, file, file, dtype="float16", gradients=True)
    assert {one.degree for one in found.results} == {"bits"}
    assert "grad_weight" in {one.result for one in found.results}


def test_an_added_zero_changes_the_sign_of_a_zero_alone(runner, tmp_path):
    found = compared(
        runner, kernel(tmp_path, "one"), kernel(tmp_path, "zero", (STORE, f"    out += 0.0\n{STORE}"))
    )
    assert only(found).degree == "zeros"
    assert (_status(found, UpTo.BITS), _status(found, UpTo.ZEROS)) == (3, 0)


def test_one_ulp_is_a_difference_with_the_lines_of_both(runner, tmp_path):
    found = compared(runner, kernel(tmp_path, "one"), FAULTY / "variance_off_by_one_ulp_triton.py")
    result = only(found)
    assert result.degree == "none"
    assert "prime field" in result.why
    assert "one.py" in result.difference.first_line
    assert "variance_off_by_one_ulp_triton.py" in result.difference.second_line
    assert _status(found, UpTo.FORMULA) == 3


def test_another_order_of_a_sum_is_the_same_real_function_alone(runner, tmp_path):
    turned = (
        "tl.sum(tl.load(x + row * columns + columns - 1 - column, mask=inside, other=0.0)"
        ".to(tl.float32), axis=0)"
    )
    found = compared(runner, kernel(tmp_path, "one"), kernel(tmp_path, "turned", (SUM, turned)))
    assert only(found).degree == "formula"
    assert only(found).difference is not None
    assert _status(found, UpTo.FORMULA) == 0
    assert _status(found, UpTo.FUSING) == 3
    assert _status(found, UpTo.ZEROS) == (3 if only(found).witness is None else 1)


def test_zero_times_a_neighbour_is_a_difference(runner, tmp_path):
    found = compared(runner, kernel(tmp_path, "one"), FAULTY / "reads_neighbour_row_triton.py")
    assert only(found).degree == "formula"
    assert "depends on elements of input on which only one" in only(found).why
    assert only(found).witness is None
    assert _status(found, UpTo.ZEROS) == 3


def test_zero_times_an_element_of_a_group_between_is_a_difference(runner):
    """A group of the first sample lies between those of two samples that the sum takes."""
    path = KERNELS / "group_norm_triton.py"
    last = "\n        return grad_input, grad_weight, grad_bias, None, None\n"
    term = "0.0 * saved[0, channels - 1].reshape(-1)[0].to(grad_weight.dtype)"
    other = planted({last: f"\n        grad_weight[0] = grad_weight[0] + {term}{last}"}, path)
    (one,) = load(path).subjects
    case = build(
        op(one.op), one, "float32", Recipe(rows=12, columns=8, weight=Values(seed=0)), gradients=True
    )
    found = compared_codes(one, other, case, runner=runner, gradients=True)
    assert isinstance(found, CodeComparison), found
    (result,) = (result for result in found.results if result.result == "grad_weight")
    assert result.degree == "formula"
    assert "depends on elements of input on which only one" in result.why


def test_a_product_that_is_fused_is_the_same_up_to_fusing(runner):
    found = compared(
        runner, built_in("layer_norm_two_pass_triton"), built_in("layer_norm_single_block_triton")
    )
    degrees = {one.result: one.degree for one in found.results}
    assert degrees == {"output": "fusing", "mean": "zeros", "rstd": "fusing"}


def test_what_depends_on_undefined_lanes_is_not_the_same_as_itself(runner):
    file = FAULTY / "sums_undefined_lanes_triton.py"
    found = compared(runner, file, file)
    assert only(found).degree == "none"
    assert _status(found, UpTo.FORMULA) == 3


def test_a_race_is_refused(runner):
    file = FAULTY / "barrier_forgotten_cuda.py"
    found = compared(runner, file, file)
    assert isinstance(found, Refusal)
    assert "Race" in found.why


def test_a_kernel_whose_calls_share_memory_is_refused(runner, tmp_path):
    shared = "    y = _BUFFERS.setdefault((x.shape, x.dtype), torch.empty_like(x))\n"
    buffered = kernel(
        tmp_path,
        "buffered",
        ("    y = torch.empty_like(x)\n", shared),
        ("def _depth", "_BUFFERS = {}\n\n\ndef _depth"),
    )
    found = compared(runner, kernel(tmp_path, "one"), buffered)
    assert isinstance(found, Refusal)
    assert found.stage == "each call gives the same, in memory of its own"


def graph_of(build_output):
    builder = Builder()
    x = builder.append("input:x", value=[0, 1, 2])
    return builder.graph({"y": build_output(builder, x)}, {"x": "f32"})


def test_in_a_field_a_root_of_a_square_is_no_identity_and_sums_have_no_order():
    def total(builder, x):
        return builder.append("add.f32", builder.append("add.f32", x[0], x[1]), x[2])

    def turned(builder, x):
        return builder.append("add.f32", x[0], builder.append("add.f32", x[2], x[1]))

    def magnitude(builder, x):
        return builder.append("sqrt.rn.f32", builder.append("mul.f32", x, x))

    first, second, rooted, plain = (
        field_values(graph_of(one), {}, 1)["y"] for one in (total, turned, magnitude, lambda _, x: x)
    )
    assert first == second
    assert (rooted != plain).all()
    assert (plain != field_values(graph_of(lambda _, x: x), {}, 2)["y"]).all()


def test_sums_of_two_products_of_which_either_is_fused_do_not_cancel(runner, tmp_path):
    apart = "(tl.fma(value, mean, centred * variance) - tl.fma(centred, variance, value * mean))"
    first = kernel(tmp_path, "first")
    second = kernel(tmp_path, "second", (STORE, f"    out += {apart} * 1024.0\n{STORE}"))
    result = only(compared(runner, first, second, columns=16))
    assert result.degree not in {"bits", "zeros", "fusing"}
    assert "would have to cancel" in result.why
