"""Stores the PTX that an older Triton makes of the tutorial's backward pass, for test_older_compilers.py.

Run from a checkout with the Triton to record: `python tests/quality/record_older_ptx.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
import triton

from verifier import machine
from verifier.machine.device.triton_driver import Launcher
from verifier.subjects.load_file import load_subjects

ROOT = Path(__file__).parents[2]
STORED = Path(__file__).with_name("tutorial_backward_rows_triton_3_6.ptx")
KERNEL = "backward_rows"
COLUMNS = 512
"""The fewest whose rows take two warps and fill them."""


def main() -> None:
    found: dict[str, str] = {}
    execute = Launcher.execute

    def record(self: Launcher, kernel: str, *arguments: object) -> None:
        found[kernel] = self.ptx
        execute(self, kernel, *arguments)

    Launcher.execute = record
    (tutorial,) = load_subjects(ROOT / "kernels" / "layer_norm_published_tutorial_newer_triton.py")
    with machine.session():
        x, weight, bias = (torch.ones(s, dtype=torch.float16) for s in ((1, COLUMNS), (COLUMNS,), (COLUMNS,)))
        y = tutorial(x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_())
        y.backward(torch.ones_like(y))
    STORED.write_text(
        f"// Triton {triton.__version__}, sm_90, float16, {COLUMNS} columns\n{plain(found[KERNEL])}"
    )


def plain(ptx: str) -> str:
    """Leave out what only a debugger reads, and where this checkout lies."""
    code = ptx.split("\t.section", maxsplit=1)[0].replace(f"{ROOT}/", "")
    return re.sub(r'(\.file\s+\d+\s+)"[^"]*?(kernels/|[^/"]*")', r'\1"\2', code).rstrip() + "\n"


if __name__ == "__main__":
    main()
