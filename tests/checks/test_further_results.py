"""Checks judge each result of an op: a new residual may be wrong where the output is right."""

import pytest
from checks_support import cases_of, examination, failures

from verifier.records.verdict import Verdict

KERNELS = """
def kernel(name, spoilt):
    def added(input, residual, weight=None, eps=1e-5):
        wide = input.double() + residual.double()
        out = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        out = out if weight is None else out * weight.double()
        return out.float(), spoilt(wide.float(), residual)

    added.__name__ = name
    return subject(
        op="add_rms_norm",
        language="torch",
        variance="rms",
        accumulates="float32",
        dtypes=("float32",),
        differentiable=False,
        returns=("output", "new_residual"),
        trees=tree(depth=lambda columns: max(columns, 1)),
        domain=Domain(max_abs=1e15),
        guarantees={"special_values"},
    )(added)

right_sum = kernel("right_sum", lambda new, residual: new)
wrong_when_strided = kernel(
    "wrong_when_strided", lambda new, residual: new if residual.is_contiguous() else new * 1.5
)
loses_nan = kernel("loses_nan", lambda new, residual: torch.nan_to_num(new))
"""


@pytest.mark.parametrize(
    ("check", "name"), [("layouts", "wrong_when_strided"), ("special_values", "loses_nan")]
)
def test_a_new_residual_is_judged(check, name, subjects_of, no_child):
    found = {}
    for one in ("right_sum", name):
        subject = subjects_of(KERNELS)[one]
        examining = examination(subject, check, "float32", "eager")
        cases = cases_of(subject, check, "float32", 40)
        found[one] = [o for case in cases for o in examining.judge(case)[0]]
    assert not failures(found["right_sum"])
    assert any(o.output == "new_residual" or "new_residual" in o.message for o in failures(found[name]))
    assert any(o.verdict is Verdict.PASS for o in found["right_sum"])
