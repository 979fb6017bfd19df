"""Answers of single instructions on a device, operand by operand."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from on_device import description, launch

sys.path.insert(0, str(Path(__file__).parents[1] / "machine"))

from golden_opcodes import OPCODES, operands
from ptx_snippets import arrange


def read(root: Path) -> None:
    """Write tests/goldens/opcodes.npz: the operands by type and the bits of every result."""
    kept: dict[str, np.ndarray] = {}
    refused = []
    for opcode, (kinds, result) in OPCODES.items():
        given = operands(kinds)
        text = arrange(opcode, given, result)
        tensors = [torch.from_numpy(x.view(np.uint8).copy()).cuda() for x in given]
        size = np.dtype(result).itemsize
        answer = torch.zeros(len(given[0]) * size, dtype=torch.uint8, device="cuda")
        try:
            launch(text, "k", 1, len(given[0]), [*tensors, answer])
        except RuntimeError as error:
            refused.append(f"{opcode}: {error}")
            continue
        kept[f"result {opcode}"] = answer.cpu().numpy().view(f"u{size}")
        for number, (kind, array) in enumerate(zip(kinds, given, strict=True)):
            kept[f"operand {number} {' '.join(kinds)} {kind}"] = array.view(f"u{array.dtype.itemsize}")
    kept["about"] = np.frombuffer(json.dumps({**description(), "refused": refused}).encode(), dtype=np.uint8)
    path = root / "tests/goldens/opcodes.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **kept)
    print(len(OPCODES), "opcodes,", len(refused), "refused", refused)
