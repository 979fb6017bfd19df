"""`accumulates="input"` claims sums in each input's own format, and no more."""

from dataclasses import replace

import pytest
from checks_support import examination, faulty

from verifier.arithmetic.formats import FORMATS
from verifier.audit.budget import Budget
from verifier.audit.rules import line_verdict
from verifier.records.subject import Domain
from verifier.records.verdict import Verdict

NARROW = Domain(max_abs=8.0, max_kappa=2.0, min_rows=1, min_columns=1, max_columns=48)


def summing_in_half(accumulates):
    subject = faulty("half_sums_declared_single").differing(accumulates=accumulates)
    return replace(subject, domain=NARROW)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_kernel_that_sums_in_its_input_s_dtype_is_right_where_it_says_so(dtype):
    declared = examination(summing_in_half("input"), "forward_error", dtype, budget=Budget(cases=12)).run()
    assert declared.counts[Verdict.PASS], declared
    assert not [f for f in declared.findings if f.verdict is Verdict.FAIL]
    assumed = examination(summing_in_half("float32"), "forward_error", dtype, budget=Budget(cases=12)).run()
    assert line_verdict(assumed) is Verdict.FAIL


def test_the_input_s_format_is_that_of_each_dtype():
    subject = summing_in_half("input")
    assert [subject.accumulation(dtype) for dtype in FORMATS] == list(FORMATS)
