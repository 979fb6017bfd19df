"""An algorithm is read from compiled code only where the code is proved to have it, whatever was guessed."""

import pytest

from verifier import Trees
from verifier.commands.describe import describe
from verifier.commands.describing import claims
from verifier.commands.describing.compiled_algorithm import read_algorithm
from verifier.execution import Runner
from verifier.subjects.load_file import builtin_folder, load_subject

GUESSES = ("textbook", "two_pass", "welford")


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("layer_norm_two_pass_triton", "two_pass"),
        ("layer_norm_textbook_triton", "textbook"),
        ("layer_norm_welford_triton", None),  # several means of a row, and only one is guessed
        ("rms_norm_triton", None),  # none of the guesses
        ("softmax_triton", None),
    ],
)
def test_the_algorithm_is_that_of_the_code_whatever_is_guessed(name, read):
    declared = load_subject(builtin_folder() / f"{name}.py", name)
    with Runner("machine") as runner:
        found = read_algorithm(declared.differing(trees=Trees()), runner, "float32", GUESSES)
    assert (None if found is None else found.variance) == read
    assert found is None or found.depth == 6


WRONG = """
import torch
import triton
import triton.language as tl
from verifier import subject

@triton.jit
def kernel(x, y, columns, eps, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    start = tl.program_id(0) * columns
    value = tl.load(x + start + at, mask=at < columns, other=0.0).to(tl.float32)
    d = tl.where(at < columns, value - tl.div_rn(tl.sum(value), columns.to(tl.float32)), 0.0)
    y_ = d * tl.rsqrt(tl.div_rn(tl.sum(d * d), (columns - MINUS).to(tl.float32)) + eps)
    tl.store(y + start + at, y_, mask=at < columns)

@subject(op="layer_norm", language="triton", dtypes=("float32",))
def norm(input, eps=1e-5):
    dense = input.contiguous()
    y, columns = torch.empty_like(dense), input.shape[-1]
    if y.numel():
        kernel[(y.numel() // columns,)](dense, y, columns, eps, BLOCK=triton.next_power_of_2(columns))
    return y
"""


@pytest.mark.parametrize(("minus", "read"), [("0", "two_pass"), ("1", None)])
def test_no_algorithm_is_read_from_another_variance(minus, read, kernel_file):
    path = kernel_file(WRONG.replace("MINUS", minus), head="")
    with Runner("machine") as runner:
        found = read_algorithm(load_subject(path, "norm"), runner, "float32", GUESSES)
    assert (None if found is None else found.variance) == read


def test_a_proposal_says_what_was_read(kernel_file, monkeypatch):
    for count in ("COMPILED_CASES", "COMPILED_GRADIENT_CASES"):
        monkeypatch.setattr(claims, count, 2)
    text = describe(kernel_file(WRONG.replace("MINUS", "0"), head="")).replace("\n#   ", " ")
    assert "two_pass was read from the compiled code at 4x64, for all inputs of that shape" in text
    assert 'variance="two_pass"' in text
    assert "refuted" not in text
