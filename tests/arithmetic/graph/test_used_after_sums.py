"""Sums that torch makes in an order of its own: only roundings take them, and chains of their parts."""

import pytest

from verifier.arithmetic.graph.graph import Builder
from verifier.arithmetic.graph.opcodes import UNORDERED_SUM
from verifier.arithmetic.graph.support import used_after_sums

CHAIN = "s = torch.sum.f32 a b"


@pytest.mark.parametrize(
    ("text", "user"),
    [
        (["s = add.f32 a b", "t = mul.f32 s c"], ""),
        ([CHAIN, f"t = {UNORDERED_SUM} s c"], ""),
        ([CHAIN, "t = torch.to.f16.f32 s"], ""),
        ([CHAIN, "r = torch.to.f16.f32 s", "t = cvt.f32.f16 r"], ""),
        ([CHAIN, f"t = {UNORDERED_SUM} c s"], UNORDERED_SUM),
        ([CHAIN, f"t = {UNORDERED_SUM} s s"], UNORDERED_SUM),
        ([CHAIN, "r = torch.to.f16.f32 s", "w = cvt.f32.f16 r", f"t = {UNORDERED_SUM} w c"], UNORDERED_SUM),
        ([CHAIN, "t = add.f32 c s"], "add.f32"),
        ([CHAIN, "r = torch.to.f16.f32 s", "t = mul.f16 r r"], "mul.f16"),
        ([CHAIN, "t = torch.neg.f32 s"], "torch.neg.f32"),
    ],
    ids=[
        *("no_chain", "chain", "rounded", "widened_again", "chain_as_a_term", "twice"),
        *("chain_of_what_is_rounded", "added", "product_of_what_is_rounded", "negative"),
    ],
)
def test_what_takes_a_sum_of_an_unknown_order_is_named(text, user):
    builder = Builder()
    known = {name: builder.append(f"input:{name}") for name in "abc"}
    for line in text:
        name, _, opcode, *operands = line.split()
        known[name] = builder.append(opcode, *(known[one] for one in operands))
    assert used_after_sums(builder.graph({"y": known["t"]})) == user
