"""Log-softmax of masked scores in torch operators: a control, not a reference."""

from pathlib import Path

import torch

from verifier import load, subject

library = load(Path(__file__).with_name("masked_softmax_torch.py")).module


@subject(op="masked_log_softmax", **library.DECLARED)
def masked_log_softmax_torch(input, mask=None, attn_bias=None, scale=1.0):
    scores = library.scores(input, mask, attn_bias, scale)
    return torch.nn.functional.log_softmax(scores, -1)
