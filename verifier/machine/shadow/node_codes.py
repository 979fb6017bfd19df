"""Codes of half-words: of which node each is which part.

A code is `format << 58 | part << 56 | node`. Format 0 is unknown, so that all memory and every register is
unknown until something writes it; `LITERAL` marks bits that no data can change, which become a literal where
they are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.shadow.graph_nodes import NUMBER_BITS

if TYPE_CHECKING:
    import torch

    from verifier.machine.arithmetic.numerics import Array

FORMATS = {"f16": 1, "bf16": 2, "f32": 3, "f64": 4, "pred": 5, "b32": 7}
NAMES = {number: name for name, number in FORMATS.items()}
FORMAT_AT, PART_AT = NUMBER_BITS + 2, NUMBER_BITS
"""Bits below the format, and below the part, of a code."""
WHOLE = {kind: number << 2 for kind, number in FORMATS.items()}
"""What lies above the node in the code of a whole float."""
HALF = 1 << PART_AT
"""What is added to the code of a half-word to have that of the next one of the float."""
FIXED = 6
LITERAL = FIXED << FORMAT_AT
NUMBER = (1 << PART_AT) - 1
"""The bits of a code that are the number of its node."""
KINDS = {"torch.float16": "f16", "torch.bfloat16": "bf16", "torch.float32": "f32", "torch.float64": "f64"}
INFINITE = {"f16": (2, 0x7C00), "bf16": (2, 0x7F80), "f32": (4, 0x7F800000), "f64": (8, 0x7FF << 52)}
"""Bytes of each format, and the bits of its infinity without the sign: those of a NaN are more."""


def coded(numbers: Array, kind: str) -> Array:
    """Codes of whole floats."""
    return np.asarray(numbers | FORMATS[kind] << FORMAT_AT)


def index_of_bytes(tensor: torch.Tensor) -> Array:
    """Half-words in which the elements of a tensor of bytes lie."""
    index = np.full(tuple(tensor.shape), tensor.storage_offset(), dtype=np.int64)
    for axis, (extent, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        index += (np.arange(extent) * stride).reshape((-1,) + (1,) * (tensor.dim() - 1 - axis))
    return index >> 1


def bits_of(tensor: torch.Tensor) -> Array:
    """Bits of a tensor, of a copy: an array that shared its memory could be written to by others."""
    import torch

    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    size = tensor.element_size()
    copied = tensor.detach().clone(memory_format=torch.contiguous_format)
    return copied.view(kinds[size]).numpy().view(f"u{size}")
