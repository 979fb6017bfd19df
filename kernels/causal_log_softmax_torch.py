"""Log-softmax of scores up to a diagonal in torch operators: a control, not a reference."""

from pathlib import Path

import torch

from verifier import load, subject

library = load(Path(__file__).with_name("masked_softmax_torch.py")).module


@subject(op="causal_log_softmax", **library.DECLARED)
def causal_log_softmax_torch(input, mask=None, attn_bias=None, scale=1.0, diagonal=0):
    scores = library.scores(input, library.below(input, mask, diagonal), attn_bias, scale)
    return torch.nn.functional.log_softmax(scores, -1)
