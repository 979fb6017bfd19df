"""Norms of a sum, with dropout or without, as people write them: right ones pass, and each p is tried."""

import pytest

from verifier.audit.rules import line_verdict
from verifier.commands.conformance import examine_job, parameters
from verifier.records.verdict import Verdict
from verifier.subjects.load_file import load_subjects

IN_TORCH = """
@subject(op="add_rms_norm", language="torch", variance="rms", accumulates="float32", formula="autograd",
         dtypes=("float32",), domain=Domain(max_abs=1e15), returns=("output", "new_residual"))
def plain_sum(input, residual, weight=None, eps=1e-6):
    total = residual + input
    y = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * weight), total

@subject(op="dropout_add_layer_norm", language="torch", variance="two_pass", accumulates="float32",
         formula="kept_sum_autograd", dtypes=("bfloat16",), domain=Domain(max_abs=1e15, max_kappa=1e3),
         returns=("output", "new_residual"))
def plain_dropout(input, residual, dropout_mask, weight=None, bias=None, eps=1e-5, p=0.5):
    total = residual.float() + torch.where(dropout_mask, input.float() / (1 - p), 0.0)
    away = total - total.mean(-1, keepdim=True)
    y = away * torch.rsqrt(away.square().mean(-1, keepdim=True) + eps)
    y = y if weight is None else y * weight.float()
    y = y if bias is None else y + bias.float()
    return y.to(input.dtype), total.to(residual.dtype)
"""
IN_TRITON = """
import triton
import triton.language as tl

@triton.jit
def _norm(x, r, kept, w, y, s, p, n, eps, BLOCK: tl.constexpr):
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = column < n
    value = tl.load(x + row * n + column, mask=inside, other=0.0)
    there = tl.load(kept + row * n + column, mask=inside, other=0) != 0
    total = tl.load(r + row * n + column, mask=inside, other=0.0) + tl.where(there, value / (1.0 - p), 0.0)
    tl.store(s + row * n + column, total, mask=inside)
    out = total * (1.0 / tl.sqrt(tl.sum(total * total, axis=0) / n + eps))
    tl.store(y + row * n + column, out * tl.load(w + column, mask=inside, other=0.0), mask=inside)

@subject(op="dropout_add_rms_norm", language="triton", variance="rms", accumulates="float32",
         dtypes=("float32",), domain=Domain(max_abs=1e15, max_columns=8192, layouts=("contiguous",)),
         differentiable=False, returns=("output", "new_residual"))
def in_one_kernel(input, residual, dropout_mask, weight=None, eps=1e-6, p=0.5):
    n = input.shape[-1]
    y, total = torch.empty_like(input), torch.empty_like(residual)
    w = torch.ones(n, device=input.device) if weight is None else weight
    if n and input.numel():
        _norm[(input.numel() // n,)](input, residual, dropout_mask, w, y, total, PROBABILITY, n, eps,
                                     BLOCK=triton.next_power_of_2(n))
    return y, total
"""


CASES = 20


def verdicts(file, *names):
    jobs = [job for _, job in parameters(load_subjects(file)) if job.check in names]
    lines = [examine_job(job, budget=str(CASES)) for job in jobs]
    return {(line.subject, line.check): (line_verdict(line), line.findings, line.errors) for line in lines}


def test_a_block_of_torch_operators_passes(kernel_file):
    """A sum depends on no weight, so that no gradient comes back from it where weight alone requires one."""
    found = verdicts(kernel_file(IN_TORCH), "forward_error", "gradient", "partial_gradients")
    assert {key: verdict for key, (verdict, *_) in found.items()} == dict.fromkeys(found, Verdict.PASS), found
    assert len(found) == 6


@pytest.mark.parametrize(("given", "verdict"), [("p", Verdict.PASS), ("min(p, 0.5)", Verdict.FAIL),
                                                ("p if p < 0.4 else 0.5", Verdict.FAIL)])  # fmt: skip
def test_a_quotient_may_be_approximate_whatever_p_is_and_each_p_is_tried(given, verdict, kernel_file):
    file = kernel_file(IN_TRITON.replace("PROBABILITY", given))
    ((found, *findings),) = verdicts(file, "forward_error").values()
    assert found is verdict, findings
