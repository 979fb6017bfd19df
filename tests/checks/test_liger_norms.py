"""Liger's norms raise no alarm that is not a defect of theirs, forward and backward."""

import importlib.metadata
import importlib.util
from itertools import product

import pytest
from checks_support import cases_of, examination, in_turn, machine

from verifier import load
from verifier.records.verdict import Verdict
from verifier.subjects.libraries import library_files

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("liger_kernel") is None,
        reason="liger-kernel is not installed (it comes with the extra dev)",
    ),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
]
NORMS = {s.name.removeprefix("liger_"): s for s in load(library_files()["liger"]).subjects}
FEW = ((4, 33),)  # each shape is a compilation
SHOWN = (*FEW, (3, 128))


def judged(name, check, dtype, count=2, shapes=FEW):
    subject = NORMS[name]
    with machine():
        examining = examination(subject, check, dtype, "machine")
        cases = cases_of(subject, check, dtype, count, shapes=shapes)
        return [o for case in cases for o in examining.judge(case)[0]]


NAMES = ["layer_norm", "rms_norm_llama", "rms_norm_gemma", "rms_norm_none", "softmax"]
LINES = product(NAMES, ["forward_error", "gradient"])


@pytest.mark.parametrize(("line", "dtype"), in_turn(LINES, ["float32", "float16", "bfloat16"]))
def test_a_norm_of_liger_is_right_in_every_case(line, dtype):
    name, check = line
    verdicts = {o.verdict for o in judged(name, check, dtype)}
    assert Verdict.PASS in verdicts
    assert verdicts <= {Verdict.PASS, Verdict.NO_THEOREM}


@pytest.mark.parametrize("check", ["formula", "gradcheck", "gradient"])
def test_its_poly_norm_is_right(check):
    verdicts = {o.verdict for o in judged("poly_norm", check, "float32")}
    assert Verdict.PASS in verdicts
    assert verdicts <= {Verdict.PASS, Verdict.SKIPPED}


@pytest.mark.parametrize("check", ["forward_error", "gradient"])
def test_its_group_norm_is_right_in_single_precision(check):
    assert {o.verdict for o in judged("group_norm", check, "float32")} <= {
        Verdict.PASS,
        Verdict.NO_THEOREM,
    }


def test_its_group_norm_rounds_sums_of_float16_to_bfloat16():
    """Parts of grad_weight and grad_bias pass through bfloat16 before they are added."""
    if (found := importlib.metadata.version("liger_kernel")) != "0.8.5":
        pytest.skip(f"Liger-Kernel {found} is installed; the defect was seen in 0.8.5")
    outcomes = judged("group_norm", "gradient", "float16", count=5, shapes=SHOWN)
    found = [o for o in outcomes if o.verdict is Verdict.FAIL]
    assert {o.output for o in found} <= {"grad_weight", "grad_bias", "declaration"}
    assert found
