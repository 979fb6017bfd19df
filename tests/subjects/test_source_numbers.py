"""Literals that kernels compare with are found in their sources, and become elements of a case."""

import numpy as np
import pytest
import torch

from strategies.values import Values
from verifier import Domain
from verifier.cases.plan import Plan
from verifier.cases.steering import at_numbers
from verifier.subjects.load_file import load_subjects
from verifier.subjects.source_integers import MOST_SIZES, compared_sizes
from verifier.subjects.source_numbers import MOST, further_numbers, source_numbers

TRITON = """
import triton
import triton.language as tl
from verifier import subject

LARGE = tl.constexpr(-65504.0)
NAMES = [2.5, "text", True]

@triton.jit
def kernel(x, y, columns):
    value = tl.load(x + 7) * 1e-3
    small = value < -20
    tl.store(y, tl.where(small, value, tl.maximum(value, 0.0)), mask=tl.arange(0, 64) < columns)

@subject(op="softmax", language="triton", variance="softmax", dtypes=("float32",))
def first(input, dim=-1):
    kernel[(99.5,)](input)
"""


@pytest.fixture
def first(tmp_path):
    pytest.importorskip("triton")
    (tmp_path / "numbers.py").write_text(TRITON)
    return load_subjects(tmp_path / "numbers.py")[0]


def test_what_is_compared_comes_first_and_0_last(first):
    assert sorted(source_numbers(first)[:2]) == [20.0, 64.0]
    assert source_numbers(first)[2:] == (1e-3, 65504.0, 2.5, 0.0)
    assert len(source_numbers(first)) <= MOST


SIZES = """
import triton
import triton.language as tl
from verifier import subject

LONG = tl.constexpr(5120)
WIDE: tl.constexpr = 300
UNUSED = 77

@triton.jit
def kernel(x, y, columns):
    lanes = tl.arange(0, 64)
    if columns > LONG or columns % 96 == 0 or columns == 7 or lanes < 4:
        tl.store(y + lanes * 1000, 0.0, mask=lanes < columns - 11)
    if columns <= WIDE or columns != MORE:
        tl.store(y, 0.0)

@subject(op="softmax", language="triton", variance="softmax", dtypes=("float32",))
def first(input, dim=-1):
    kernel[(1,)](input) if input.shape[0] > 123 else None
"""


def test_sizes_are_integers_beside_a_comparison_or_a_remainder_in_a_kernel(tmp_path):
    pytest.importorskip("triton")
    (tmp_path / "sizes.py").write_text(SIZES.replace("!= MORE", "!= 1 << 4"))
    (subject,) = load_subjects(tmp_path / "sizes.py")
    assert compared_sizes(subject) == (7, 96, 300, 5120)
    (tmp_path / "more.py").write_text(SIZES.replace("MORE", "6"))
    (subject,) = load_subjects(tmp_path / "more.py")
    assert compared_sizes(subject) == (6, 7, 96, 300)
    assert len(compared_sizes(subject)) == MOST_SIZES


def test_of_what_compiled_code_compares_with_only_what_no_literal_says_is_further(first):
    as_compiled = float(np.float32(1e-3))
    assert further_numbers(first, {20.0, as_compiled, 1.0, 0.0, 1e-38, 3e38, 10.25, 0.5}) == (0.5, 10.25)
    assert len(further_numbers(first, map(float, range(3, 19)))) == MOST


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("number", [20.0, -20.0, 0.1, 64.0, -64.0, 0.0, 65504.0, 1e-7])
def test_a_row_holds_its_number_and_both_neighbours(number, dtype):
    made = Values(planted=(1.0, number)).fill((4, 16), dtype)
    kind = getattr(torch, dtype)
    at = torch.tensor(number, dtype=torch.float64).to(kind)
    ends = [torch.tensor(end, dtype=kind) for end in (torch.finfo(kind).min, torch.finfo(kind).max)]
    for row in (1, 3):
        held = made[row]
        assert at in held
        for end in ends:
            near = torch.nextafter(at, end)
            assert not near.isfinite() or near in held
    assert made.isfinite().all()


def test_what_is_planted_is_read_again_and_infinities_are_refused():
    values = Values(planted=(20.0, -20.0))
    assert Values.from_json(values.to_json()) == values
    assert eval(repr(values)) == values
    with pytest.raises(ValueError, match="only finite"):
        Values(planted=(np.inf,))


def test_only_numbers_of_the_domain_are_planted(first):
    bounded = first.differing(domain=Domain(max_abs=20.0, max_kappa=None))
    (recipe, *_) = at_numbers(bounded, Plan(), "float32", (64.0, 2.5, 1e39))
    assert recipe.input.planted == (2.5, -2.5)
    assert list(at_numbers(bounded, Plan(), "float32", (64.0,))) == []
    assert list(at_numbers(first, Plan(), "float16", (70000.0,))) == []
