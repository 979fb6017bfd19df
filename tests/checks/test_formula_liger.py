"""Liger's published layer norm and RMS norm equal their ops in the field, through their own wrappers."""

import importlib.util

import pytest

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("liger_kernel") is None,
        reason="liger-kernel is not installed (it comes with the extra dev)",
    ),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
]

LAYER_NORM = """
from verifier import subject
@subject(op="layer_norm", language="triton", dtypes=("float16", "bfloat16", "float32"))
def liger_layer_norm(input, weight, bias, eps=1e-6):
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction
    return LigerLayerNormFunction.apply(input, weight, bias, eps)
"""
RMS_NORM = """
from verifier import subject
@subject(op="rms_norm", language="triton", dtypes=("float16", "bfloat16", "float32"))
def liger_rms_norm(input, weight, eps=1e-6):
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction
    return LigerRMSNormFunction.apply(input, weight, eps, 0.0, {mode!r}, False)
"""


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    "source",
    [LAYER_NORM, RMS_NORM.format(mode="llama"), RMS_NORM.format(mode="gemma"), RMS_NORM.format(mode="none")],
    ids=["layer_norm", "llama", "gemma", "none"],
)
@pytest.mark.parametrize("shape", [(6, 40), (5, 1000)])
def test_liger_equals_its_op_in_every_element(source, dtype, shape, tmp_path):
    from checks_support import subject_of
    from test_formula import case_of, judged

    from verifier.records.verdict import Verdict

    (tmp_path / "liger.py").write_text(source, encoding="utf-8")
    subject = subject_of(tmp_path / "liger.py")
    case = case_of(subject, dtype, *shape)
    (passed,) = judged(subject, case, multiprocessors=4)
    assert passed.verdict is Verdict.PASS, passed.message
    assert {"output", "grad_input", "grad_weight"} <= set(passed.evidence)
