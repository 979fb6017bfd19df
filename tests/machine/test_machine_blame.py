"""Whose fault a failed execution is, seen from the statuses that subjects get on the machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

import verifier
from verifier.cases.recipe import Recipe, build
from verifier.execution.backends import backend
from verifier.execution.call_subject import execute
from verifier.machine import session
from verifier.machine.execute.wave import Wave
from verifier.ops import op
from verifier.records.subject import Claim, Subject


@triton.jit
def _scale(x, y, n, BLOCK: tl.constexpr):
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + c, 2 * tl.load(x + c, mask=c < n), mask=c < n)


def launched(x, grid=(1,), **options):
    y = torch.empty_like(x)
    _scale[grid](x, y, x.numel(), BLOCK=64, num_warps=1, **options)
    return y


def as_it_should(input, eps):
    return launched(input)


def with_large_clusters(input, eps):
    return launched(input, num_ctas=16)


def falls_back(input, eps):
    try:
        return launched(input, num_ctas=16)
    except Exception:
        return input * 2


def forgets_an_argument(input, eps):
    _scale[(1,)](input, BLOCK=64)


def names_no_such_argument(input, eps):
    return launched(input, warps=3)


def calls_torch_wrongly(input, eps):
    return torch.empty("many")


def views_wrongly(input, eps):
    return launched((input + 0.0).view(7, 7))


def multiplies_wrongly(input, eps):
    return launched(input * torch.ones(99))


def gives_a_broken_grid(input, eps):
    return launched(input, grid=(1.5,))


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return launched(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient[..., :1]


def backward_of_another_shape(input, eps):
    return _Doubled.apply(input)


def observed(function, **options):
    subject = Subject(
        function=function,
        name=function.__name__,
        path=Path(__file__),
        op="rms_norm",
        language="triton",
        dtypes=("float32",),
        claim=Claim(),
    )
    case = build(op("rms_norm"), subject, "float32", Recipe(rows=2, columns=8), gradients=bool(options))
    with session():
        return execute(subject, case, backend=backend("machine"), poison="nan", **options)


@pytest.mark.parametrize(
    ("function", "status", "said"),
    [
        (as_it_should, "ok", ""),
        (with_large_clusters, "undecided", "the machine lacks thread-block clusters of 16 blocks"),
        (falls_back, "undecided", "the machine lacks thread-block clusters of 16 blocks"),
        (forgets_an_argument, "refused", "TypeError: "),
        (names_no_such_argument, "crashed", "KeyError: "),
        (calls_torch_wrongly, "refused", "TypeError: empty()"),
        (views_wrongly, "refused", "RuntimeError: shape '[7, 7]' is invalid"),
        (multiplies_wrongly, "refused", "RuntimeError: The size of tensor a"),
        (gives_a_broken_grid, "crashed", "LaunchError: grid has to be whole numbers"),
    ],
)
def test_what_a_subject_does_wrong_is_its_own_and_what_is_lacking_is_not(function, status, said):
    seen = observed(function)
    assert (seen.status, seen.message[: len(said)]) == (status, said)


def test_a_backward_pass_that_autograd_refuses_is_the_subjects():
    seen = observed(backward_of_another_shape, gradients=True)
    assert seen.status == "crashed"
    assert "invalid gradient" in seen.message


@pytest.mark.parametrize("leaf", ["{}['x']", "np.broadcast_shapes((2,), (3,))", "raise TypeError('operand')"])
def test_a_fault_of_the_machine_is_an_error_of_the_verifier(leaf, monkeypatch):
    file = str(Path(verifier.__file__).with_name("machine") / "execute" / "wave.py")
    scope = {"np": np}
    exec(compile(f"def load(*arguments):\n    {leaf}\n", file, "exec"), scope)
    monkeypatch.setattr(Wave, "load", scope["load"])
    seen = observed(as_it_should)
    assert seen.status == "error"
    assert seen.message.endswith(f"(in load, {file}:2)")
    assert "Traceback" in seen.detail


@triton.jit
def _rows(x, w, y, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # noqa: PLR0917
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, BLOCK)
    inside = (r < rows)[:, None] & (c < columns)[None, :]
    places = r[:, None] * columns + c[None, :]
    v = tl.load(x + places, mask=inside, other=0.0, eviction_policy="evict_last")
    g = tl.load(w + c, mask=c < columns, other=0.0, eviction_policy="evict_first")
    out = v * tl.sum(v, axis=1)[:, None] * g[None, :]
    tl.store(y + places, out, mask=inside, cache_modifier=".cs")


@pytest.mark.parametrize("architecture", [80, 90, 100])
def test_a_row_of_weights_reaches_all_lanes_of_one_warp_with_any_policy_of_caches(architecture):
    """A weight that is the same in all blocks is shuffled by a lane number that differs from lane to lane."""
    x = torch.arange(5.0 * 33).reshape(5, 33) % 7
    w, y = torch.arange(33.0) % 5, torch.zeros(5, 33)
    with session(architecture=architecture):
        _rows[(5,)](x, w, y, 5, 33, ROWS=1, BLOCK=64, num_warps=1)
    assert torch.equal(y, x * x.sum(1, keepdim=True) * w)
