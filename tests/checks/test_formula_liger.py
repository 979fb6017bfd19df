"""Liger's published layer norm and RMS norm equal their ops in the field, through their own wrappers."""

import importlib.util
from itertools import product

import pytest
from checks_support import in_turn

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("liger_kernel") is None,
        reason="liger-kernel is not installed (it comes with the extra dev)",
    ),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
]


NORMS = ["layer_norm", "rms_norm_llama", "rms_norm_gemma", "rms_norm_none"]


@pytest.mark.parametrize(
    ("norm", "dtype"), in_turn(product(NORMS, [(6, 40), (5, 1000)]), ["float16", "bfloat16", "float32"])
)
def test_liger_equals_its_op_in_every_element(norm, dtype):
    name, shape = norm
    from test_formula import case_of, judged

    from verifier.records.verdict import Verdict
    from verifier.subjects.libraries import library_files
    from verifier.subjects.load_file import load_subject

    subject = load_subject(library_files()["liger"], f"liger_{name}")
    case = case_of(subject, dtype, *shape)
    (passed,) = judged(subject, case, multiprocessors=4)
    assert passed.verdict is Verdict.PASS, passed.message
    assert {"output", "grad_input", "grad_weight"} <= set(passed.evidence)
