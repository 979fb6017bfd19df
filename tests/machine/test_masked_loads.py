"""Masked loads without `other` give what the session says, from code that answers no other session."""

import math
from pathlib import Path

import pytest

pytest.importorskip("triton")

import torch
import triton
import triton.language as tl
from triton.language.semantic import TritonSemantic

from verifier import machine
from verifier.machine import MaskedFill
from verifier.machine.device.masked_loads import unfilled_loads

LANES, INSIDE = 32, 5


@triton.jit
def _load(pointer, mask):
    return tl.load(pointer, mask=mask)


@triton.jit
def _copy(x, y, size, LANES: tl.constexpr):
    lane = tl.arange(0, LANES)
    tl.store(y + lane, _load(x + lane, lane < size))


@triton.jit
def _two(x, y, size, LANES: tl.constexpr):
    lane = tl.arange(0, LANES)
    first = tl.load(x + lane, mask=lane < size)
    second = tl.load(x + lane + 1, mask=lane < size, other=7.0)
    third = tl.load(x + lane + 2, mask=lane < size)
    tl.store(y + lane, first)
    tl.store(y + LANES + lane, second)
    tl.store(y + 2 * LANES + lane, third)


@triton.jit
def _block(x, y, size, LANES: tl.constexpr):
    rows = tl.make_block_ptr(x, (size,), (1,), (0,), (LANES,), (0,))
    tl.store(y + tl.arange(0, LANES), tl.load(rows, boundary_check=(0,)))


def outside(kernel, fill, dtype=torch.float32, parts=1):
    """Return what the last lane of each part got, and the loads that leave lanes undefined."""
    with machine.session(masked_fill=fill) as opened:
        x, y = torch.ones(LANES + 2, dtype=dtype), torch.full((parts * LANES,), 3, dtype=dtype)
        kernel[(1,)](x, y, INSIDE, LANES=LANES, num_warps=1)
        assert y.view(parts, LANES)[:, :INSIDE].eq(1).all()
        return [value.item() for value in y.view(parts, LANES)[:, -1]], list(opened.unfilled)


def line_of(text):
    with Path(__file__).open(encoding="utf-8") as file:
        (number,) = [n for n, line in enumerate(file, 1) if line.strip() == text]
    return f"{__file__}:{number}"


def test_each_fill_is_compiled_for_itself_and_none_answers_a_plain_launch(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    fills = [None, *(MaskedFill(number=n) for n in ("nan", "finite", "positive", "zero"))]
    for _ in range(2):  # once more, from the caches
        plain, nan, finite, positive, zero = (outside(_copy, fill)[0][0] for fill in fills)
        assert (plain, finite, positive, zero) == (0.0, -12288.0, 12288.0, 0.0)
        assert math.isnan(nan)
        assert len(list(tmp_path.iterdir())) == len(fills)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(torch.int32, -0x5A5A5A5B), (torch.int64, -0x5A5A5A5B), (torch.int16, -0x5A5B), (torch.uint8, 0xA5)],
)
def test_integers_get_a_large_odd_number(dtype, expected):
    assert outside(_copy, MaskedFill(number="nan"), dtype) == ([expected], [])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floats_are_filled_as_well(dtype):
    assert outside(_copy, MaskedFill(number="positive"), dtype) == ([12288.0], [])


def test_the_loads_of_a_plain_launch_are_named_and_one_of_them_is_filled_alone():
    first, third = (
        line_of("first = tl.load(x + lane, mask=lane < size)"),
        line_of("third = tl.load(x + lane + 2, mask=lane < size)"),
    )
    assert outside(_two, None, parts=3) == ([0.0, 7.0, 0.0], [first, third])
    assert outside(_two, MaskedFill(number="positive"), parts=3) == ([12288.0, 7.0, 12288.0], [])
    alone = MaskedFill(number="positive", place=third)
    assert outside(_two, alone, parts=3) == ([0.0, 7.0, 12288.0], [first])


def test_a_load_in_an_inlined_function_is_named_where_it_stands():
    assert outside(_copy, None)[1] == [line_of("return tl.load(pointer, mask=mask)")]


@pytest.mark.skipif(
    not hasattr(TritonSemantic, "_load_block_pointer"), reason="this Triton has no block pointers any more"
)
def test_block_pointers_without_padding_are_undefined_beyond_the_bounds_they_check():
    assert len(outside(_block, None)[1]) == 1
    ((value,), unfilled) = outside(_block, MaskedFill(number="nan"))
    assert math.isnan(value)
    assert not unfilled
    assert outside(_block, MaskedFill(number="zero")) == ([0.0], [])


def test_loads_are_read_off_the_first_form_of_a_kernel_whatever_follows_their_operands():
    text = """
    %a = tt.load %p, %m : tensor<64x!tt.ptr<f32>> loc(#loc2)
    %b = tt.load %p#0, %m#1 cacheModifier = ca evictionPolicy = evict_last : !tt.ptr<f32> loc(#loc3)
    %c = tt.load %p, %m, %o : tensor<64x!tt.ptr<f32>> loc(#loc1)
    %d = tt.load %p : !tt.ptr<f32> loc(#loc1)
    %e = tt.load %p, %m {isVolatile = true} : tensor<64x!tt.ptr<f32>> loc("/e.py":9:4)
#loc = loc("/unused.py":1:1)
#loc1 = loc("/filled.py":2:2)
#loc2 = loc("a"(#loc4))
#loc3 = loc(callsite(#loc5 at #loc1))
#loc4 = loc("/a.py":3:9)
#loc5 = loc("b"("/b.py":4:9))
"""
    assert unfilled_loads(text) == ("/a.py:3", "/b.py:4", "/e.py:9")
