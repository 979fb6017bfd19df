"""The sum that a fused norm returns besides: proved of the code itself, and refused where it is another."""

import pytest

pytest.importorskip("triton", reason="certified are Triton's kernels; Triton is missing")

from checks_support import KERNELS, machine_runner, planted

from verifier.cases.recipe import Recipe, Values, build
from verifier.checks.support.certificate_at_shape import certified
from verifier.ops import op
from verifier.records.certificate import Certificate, Refusal

STORED = "        tl.store(total + column, value, mask=inside)\n"
RETURNED = "return output, total, *statistics"
RMS, LAYER = "add_rms_norm_triton", "add_layer_norm_triton"


@pytest.fixture(scope="module")
def ask():
    with machine_runner() as runner:

        def asked(name, changes, dtype):
            subject = planted(changes, KERNELS / "add_norm_skeleton_triton.py", (name,))
            recipe = Recipe(rows=2, columns=12, input=Values(seed=0))
            case = build(op(subject.op), subject, dtype, recipe, gradients=False)
            return certified(subject, case, runner=runner)

        yield asked


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", ["add_rms_norm_triton", "add_layer_norm_triton"])
def test_the_sum_is_proved_where_it_is_rounded_in_one_step_or_in_two(ask, name, dtype):
    found = ask(name, {}, dtype)
    assert isinstance(found, Certificate), found
    assert "new_residual" in found.outputs
    assert found.support["new_residual"] == {"input": "its element", "residual": "its element"}


def stored(value):
    """Another value in the place of the sum, which the norm goes on with."""
    return {STORED: f"        tl.store(total + column, {value}, mask=inside)\n"}


def returned(value):
    """Another tensor in the place of the sum, of which the kernel is right."""
    return {RETURNED: RETURNED.replace("total", value)}


@pytest.mark.parametrize(
    ("name", "dtype", "changes"),
    [
        (RMS, "float32", stored("value * 1.00000012")),
        (RMS, "float16", stored("tl.load(x + column * x_column, mask=inside)")),
        (RMS, "float32", stored("value.to(tl.float16).to(tl.float32)")),
        (LAYER, "bfloat16", stored("value.to(tl.float16).to(tl.float32)")),
        (LAYER, "float16", stored("value - mean + mean")),
        (LAYER, "float32", stored("tl.where(value > 1e4, 1e4, value)")),
        (LAYER, "float16", stored("value * rstd")),
        (RMS, "float16", {STORED: STORED.replace("inside", "column < columns - 1")}),
        (RMS, "float16", {STORED: STORED.replace("column,", "columns - 1 - column,")}),
        (RMS, "float32", returned("residual.clone()")),
        (LAYER, "float16", returned("output.clone()")),
        (LAYER, "bfloat16", returned("residual - input")),
        (RMS, "float32", returned("total + 0 * r.sum()")),
        (RMS, "float16", returned("total.clone().roll(1, 0)")),
    ],
)
def test_another_sum_is_refused_whatever_the_output_is(ask, name, dtype, changes):
    assert isinstance(ask(name, changes, dtype), Refusal)
