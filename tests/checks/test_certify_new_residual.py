"""The sum that a fused norm returns besides: proved of the code itself, and refused where it is another."""

import pytest

pytest.importorskip("triton", reason="certified are Triton's kernels; Triton is missing")

from checks_support import KERNELS, planted

from verifier.cases.recipe import Recipe, Values, build
from verifier.checks.support.certify import certified
from verifier.execution.child_process import Runner
from verifier.ops import op
from verifier.records.certificate import Certificate, Refusal

STORED = "        tl.store(total + column, value, mask=inside)\n"
RETURNED = "        return output, total, *statistics"


@pytest.fixture(scope="module")
def ask():
    with Runner(backend="machine") as runner:

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


@pytest.mark.parametrize(
    ("name", "dtype", "changes"),
    [
        ("add_rms_norm_triton", "float32", stored("value * 1.00000012")),
        ("add_rms_norm_triton", "float16", stored("tl.load(x + column * x_column, mask=inside)")),
        ("add_rms_norm_triton", "float32", stored("value.to(tl.float16).to(tl.float32)")),
        ("add_layer_norm_triton", "bfloat16", stored("value.to(tl.float16).to(tl.float32)")),
        ("add_layer_norm_triton", "float16", stored("value - mean + mean")),
        ("add_layer_norm_triton", "float32", stored("tl.where(value > 1e4, 1e4, value)")),
        ("add_layer_norm_triton", "float16", stored("value * rstd")),
        ("add_rms_norm_triton", "float16", {STORED: STORED.replace("inside", "column < columns - 1")}),
        ("add_rms_norm_triton", "float16", {STORED: STORED.replace("column,", "columns - 1 - column,")}),
        ("add_rms_norm_triton", "float32", {RETURNED: "        return output, residual.clone(), *statistics"}),
        ("add_layer_norm_triton", "float16", {RETURNED: "        return output, output.clone(), *statistics"}),
        ("add_layer_norm_triton", "bfloat16", {RETURNED: "        return output, residual - input, *statistics"}),
        ("add_rms_norm_triton", "float32", {RETURNED: "        return output, total + 0 * r.sum(), *statistics"}),
        ("add_rms_norm_triton", "float16", {RETURNED: "        return output, total.clone().roll(1, 0), *statistics"}),
    ],
)  # fmt: skip
def test_another_sum_is_refused_whatever_the_output_is(ask, name, dtype, changes):
    assert isinstance(ask(name, changes, dtype), Refusal)
