"""Certificates of batch norms in evaluation, where mean and variance are given."""

import pytest

pytest.importorskip("triton", reason="certified are Triton's kernels; Triton is missing")

from checks_support import machine_runner

from verifier.checks.support.certificate_at_shape import certified
from verifier.commands.explain import SelectionError, case_for
from verifier.records.certificate import Certificate, Refusal
from verifier.subjects.load_file import builtin_files, load

(KERNEL,) = (file for file in builtin_files() if file.stem == "batch_norm_triton")
ROOT = "root(variance + eps)"


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    with machine_runner() as runner:

        def asked(before="", after="", dtype="float16"):
            text, path = KERNEL.read_text(), tmp_path_factory.mktemp("evaluation") / "attack.py"
            assert before in text
            start = text.index("def _running") if before == ROOT else 0
            text = text[:start] + text[start:].replace(before, after, 1) if before else text
            path.write_text(text.replace("Path(__file__).with_name(", f"Path({str(KERNEL)!r}).with_name("))
            (subject,) = load(path).subjects
            case = case_for(subject, dtype, 3, 8, 0.0, 0, evaluation=True)
            return certified(subject, case, runner=runner, gradients=True)

        yield asked


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_batch_norm_in_evaluation_is_certified_of_its_own_elements(ask, dtype):
    found = ask(dtype=dtype)
    assert isinstance(found, Certificate), found.why
    assert found.scalars["training"] is False
    assert "what the running statistics and the form canonical of batch_norm give" in found.statement
    assert found.support["output"]["input"] == "its element"
    assert found.support["running_var"] == {"running_var": "that of its row"}
    assert found.proofs[0].bound is None  # no statistic is computed
    assert {"grad_input", "grad_weight", "grad_bias"} < set(found.outputs)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (ROOT, "root(variance) + eps"),
        (ROOT, "root(tl.maximum(variance, 0.0) + eps)"),
        ("out = g * rstd", "out = g * rstd * (1.0 + 1.1920929e-7)"),
        ("out = g * rstd", "out = g * rstd + 0.0 * value"),
        ("        if TRAINING:\n", "        if TRAINING or columns > 4:\n"),
    ],
    ids=["eps_outside", "clamped", "one_ulp", "zero_times_input", "through_statistics"],
)
def test_a_batch_norm_that_is_wrong_in_evaluation_is_refused(ask, before, after):
    found = ask(before, after)
    assert isinstance(found, Refusal), found.statement
    assert found.stage == "the code is the declared computation", found.why


def test_an_op_without_evaluation_has_no_such_case():
    (file,) = (file for file in builtin_files() if file.stem == "rms_norm_triton")
    with pytest.raises(SelectionError, match="does not tell evaluation from training"):
        case_for(load(file).subjects[0], "float32", 3, 8, 0.0, 0, evaluation=True)
