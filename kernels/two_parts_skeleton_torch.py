"""How the norms of a sum of two tensors are audited as norms of one: its two parts; no subject."""

import torch


def split(input):
    """Return two tensors whose exact sum is `input`: 3/4 and 1/4 of the even elements, halves of the odd.

    A product with 1/2 or 3/4, rounded or not, lies between input / 2 and input, so that the difference is
    exact (Sterbenz). Not one factor for all: a norm does not see a factor that its whole row has.
    """
    odd = torch.arange(input.shape[-1], device=input.device) % 2
    part = input * (0.75 - 0.25 * odd).to(input.dtype)
    return part, input - part
