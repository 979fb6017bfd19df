"""A kernel that no op describes sums in as many parts as a device has multiprocessors: modes judges it."""

import pytest
from checks_support import cases_of, examination, machine

from verifier.records.verdict import Verdict
from verifier.subjects.load_file import load

pytest.importorskip("triton")
KERNEL = """
import torch
import triton
import triton.language as tl

from verifier import subject


@triton.jit
def _forward(x, w, y, n, eps, BLOCK: tl.constexpr):
    column, row = tl.arange(0, BLOCK), tl.program_id(0)
    value = tl.load(x + row * n + column, mask=column < n, other=0.0)
    scale = tl.load(w + column, mask=column < n, other=0.0)
    rstd = tl.rsqrt(tl.sum(value * value, axis=0) / n + eps)
    tl.store(y + row * n + column, value * rstd * scale, mask=column < n)


@triton.jit
def _parts(x, g, parts, rows, chunk, n, eps, BLOCK: tl.constexpr):
    column, begin = tl.arange(0, BLOCK), tl.program_id(0) * chunk
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(begin, tl.minimum(begin + chunk, rows)):
        value = tl.load(x + row * n + column, mask=column < n, other=0.0)
        slope = tl.load(g + row * n + column, mask=column < n, other=0.0)
        total += slope * value * tl.rsqrt(tl.sum(value * value, axis=0) / n + eps)
    tl.store(parts + tl.program_id(0) * n + column, total, mask=column < n)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, eps):
        x, y, n = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format), x.shape[-1]
        _forward[(x.numel() // n,)](x, w.contiguous(), y, n, eps, BLOCK=triton.next_power_of_2(n))
        ctx.save_for_backward(x)
        ctx.eps = eps
        return y

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        n = x.shape[-1]
        rows, programs = x.numel() // n, torch.cuda.get_device_properties(x.device).multi_processor_count
        parts = torch.empty(programs, n, device=x.device, dtype=x.dtype)
        chunk = MOST(triton.cdiv(rows, programs))
        block = triton.next_power_of_2(n)
        _parts[(programs,)](x, g.contiguous(), parts, rows, chunk, n, ctx.eps, BLOCK=block)
        return None, parts.sum(0), None


def specification(input, weight, eps):
    return input / torch.sqrt((input * input).mean(-1, keepdim=True) + eps) * weight


@subject(op="unknown", specification=specification, language="triton", dtypes=("float32",),
         gradients=("weight",))
def own(input, weight, eps=1e-5):
    return _Norm.apply(input, weight, eps)
"""


@pytest.mark.parametrize(
    ("most", "verdicts"), [("int", {Verdict.PASS}), ("(lambda rows: min(rows, 64))", {Verdict.FAIL})]
)
def test_a_device_of_another_size_is_judged_by_the_roundings_of_its_own_run(kernel_file, most, verdicts):
    """Of the 149 rows one multiprocessor leaves the last ones out, where it takes 64 at most."""
    (subject,) = load(kernel_file(KERNEL.replace("MOST", most), name="own.py", head="")).subjects
    shapes = {"shapes": ((149, 5),), "hazards": ("ordinary",)}
    with machine():
        examining = examination(subject, "modes", "float32", "machine")
        found = [
            o for case in cases_of(subject, "modes", "float32", 1, **shapes) for o in examining.judge(case)[0]
        ]
    told = [o for o in found if o.output == "grad_weight"]
    assert {o.verdict for o in told} == verdicts, [o.message for o in found]
    if verdicts == {Verdict.FAIL}:
        assert all("with 1 multiprocessor" in o.message or "with 2 multi" in o.message for o in told)
