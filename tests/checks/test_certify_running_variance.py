"""Certificates of the running variance: it moves towards the sum of squared deviations over N - 1."""

import pytest

pytest.importorskip("triton", reason="certified are Triton's kernels; Triton is missing")

from attacked_kernels import refused
from checks_support import machine_runner

from verifier.checks.support.certificate_at_shape import certified
from verifier.commands.explain import case_for
from verifier.records.certificate import Certificate
from verifier.subjects.load_file import load

KERNEL = """
import torch
import triton
import triton.language as tl
from verifier import Domain, Trees, subject, tree


@triton.jit
def _batch(
    x, y, weight, bias, running_mean, running_var, samples, channels, momentum, eps, BLOCK: tl.constexpr,
):
    channel = tl.program_id(0)
    sample = tl.arange(0, BLOCK)
    inside = sample < samples
    value = tl.load(x + sample * channels + channel, mask=inside, other=0.0)
    count = tl.cast(samples, tl.float32)
    mean = tl.div_rn(tl.sum(value, axis=0), count)
    away = tl.where(inside, value - mean, 0.0)
    VARIANCE
    out = (value - mean) * tl.div_rn(1.0, tl.sqrt_rn(variance + eps))
    if weight is not None:
        out *= tl.load(weight + channel)
    if bias is not None:
        out += tl.load(bias + channel)
    tl.store(y + sample * channels + channel, out, mask=inside)
    held = tl.load(running_mean + channel)
    tl.store(running_mean + channel, (1.0 - momentum) * held + momentum * mean)
    held = tl.load(running_var + channel)
    tl.store(running_var + channel, (1.0 - momentum) * held + momentum * tl.div_rn(SUM, count - 1.0))


@subject(
    op="batch_norm", language="triton", variance="ALGORITHM", accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3), dtypes=("float32",), trees=tree(depth=lambda n: n),
    mean_contraction="none", mutates=("running_mean", "running_var"), differentiable=False,
)
def attack(input, running_mean, running_var, weight=None, bias=None, training=True, momentum=0.1, eps=1e-5):
    samples, channels = input.shape
    y = torch.empty_like(input)
    _batch[(channels,)](
        input, y, weight, bias, running_mean, running_var, samples, channels, momentum, eps,
        BLOCK=triton.next_power_of_2(samples),
    )
    return y
"""
TWO_PASS = """total = tl.sum(away * away, axis=0)
    variance = tl.div_rn(total, count)"""
TEXTBOOK = "variance = tl.div_rn(tl.sum(value * value, axis=0), count) - mean * mean"


@pytest.mark.parametrize(
    ("algorithm", "variance", "moved_towards", "why"),
    [
        ("two_pass", TWO_PASS, "total", ""),
        ("two_pass", TWO_PASS, "-(mean * mean)", "running_var: "),
        ("textbook", TEXTBOOK, "-(mean * mean)", "has no sum to divide by N - 1"),
        ("textbook", TEXTBOOK, "variance * count", "has no sum to divide by N - 1"),
    ],
    ids=["sum", "other_sum", "no_sum", "of_the_variance"],
)
def test_what_the_running_variance_moves_towards(tmp_path, algorithm, variance, moved_towards, why):
    text = KERNEL.replace("VARIANCE", variance).replace("SUM", moved_towards).replace("ALGORITHM", algorithm)
    (tmp_path / "attack.py").write_text(text)
    (subject,) = load(tmp_path / "attack.py").subjects
    case = case_for(subject, "float32", 3, 12, 0.0, 0)
    with machine_runner() as runner:
        found = certified(subject, case, runner=runner)
    if why:
        refused(found, "the code is the declared computation", why)
    else:
        assert isinstance(found, Certificate), found
        assert "running_var" in found.outputs
