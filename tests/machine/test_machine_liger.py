"""Liger-Kernel's norms, unmodified, in the machine: within the bound of their own code, both ways."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="the machine plays Triton kernels; Triton is not installed")
if find_spec("liger_kernel") is None:  # it is imported where it runs: that takes as long as torch does
    pytest.skip("liger-kernel is not installed (it comes with the extra dev)", allow_module_level=True)

from verifier import machine

ROWS, COLUMNS, GROUPS, EPS = 6, 120, 4, float(np.float32(1e-5))
functional = torch.nn.functional


def layer_norm(x, w, b):
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    return LigerLayerNormFunction.apply(x, w, b, EPS)


def rms_norm(x, w, b):
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    return LigerRMSNormFunction.apply(x, w, EPS, 0.0, "llama", False)


def group_norm(x, w, b):
    from liger_kernel.ops.group_norm import LigerGroupNormFunction

    return LigerGroupNormFunction.apply(x, w, b, x.shape[1], GROUPS, EPS)


def softmax(x, w, b):
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    return LigerSoftmaxFunction.apply(x)


SPECIFICATIONS = {
    layer_norm: lambda x, w, b: functional.layer_norm(x, (COLUMNS,), w, b, EPS),
    rms_norm: lambda x, w, b: functional.rms_norm(x, (COLUMNS,), w, EPS),
    group_norm: lambda x, w, b: functional.group_norm(x, GROUPS, w, b, EPS),
    softmax: lambda x, w, b: torch.softmax(x, -1),
}


def tensors(norm, dtype):
    generator = torch.Generator().manual_seed(0)
    shape = (ROWS, 8, 15) if norm is group_norm else (ROWS, COLUMNS)
    channels = 8 if norm is group_norm else COLUMNS
    make = lambda *extents: torch.randn(*extents, generator=generator).to(dtype)  # noqa: E731
    return make(*shape), make(channels), make(channels), make(*shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("norm", list(SPECIFICATIONS))
def test_liger_is_within_the_running_bound_of_its_compiled_code(norm, dtype):
    *given, dy = tensors(norm, dtype)
    exact = [t.double().requires_grad_() for t in given]
    wanted = SPECIFICATIONS[norm](*exact)
    slopes = torch.autograd.grad(wanted, exact, dy.double(), allow_unused=True)
    with machine.session(arithmetic="ball") as session:
        leaves = [t.clone().requires_grad_() for t in given]
        y = norm(*leaves)
        y.backward(dy)
        pairs = [(y.detach(), wanted.detach())]
        pairs += [(a.grad, s) for a, s in zip(leaves, slopes, strict=True) if s is not None]
        assert not session.slots.counters.uncovered
        for actual, reference in pairs:
            bound = session.slots.get(actual)
            error = (actual.double() - reference).abs().numpy()
            assert np.isfinite(bound).all()
            # 2^-40 covers the reference's own float64 rounding.
            assert (error <= bound + 2.0**-40).all()
            assert bound.max() > 0
    assert len(session.launches) >= 2
