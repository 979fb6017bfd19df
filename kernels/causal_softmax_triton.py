"""Softmax of scores up to a diagonal: the launch of masked_softmax_triton.py with CAUSAL set."""

from pathlib import Path

from verifier import load, subject

library = load(Path(__file__).with_name("masked_softmax_triton.py")).module


@subject(op="causal_softmax", **library.DECLARED)
def causal_softmax_triton(input, mask=None, attn_bias=None, scale=1.0, diagonal=0):
    return library.masked(input, mask, attn_bias, scale, diagonal=diagonal)
