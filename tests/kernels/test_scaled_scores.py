"""Scores of masked and causal softmaxes are rounded before the largest of them is subtracted."""

import pytest
import torch

from verifier.machine import session
from verifier.subjects.load_file import builtin_files, load_subjects

KERNELS = {
    f.stem: f for f in builtin_files() if f.stem.startswith(("masked_", "causal_")) and "triton" in f.stem
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("number", [2.11106233e14, -2.11106233e13, 1e10])
def test_a_row_of_one_score_is_certain_however_large_it_is(name, number):
    """Fused into score - top, the product left what its rounding loses: exp of that was 0, or infinite."""
    (subject,) = load_subjects(KERNELS[name])
    with session():
        found = subject(torch.full((1, 1, 1, 1), number), scale=0.1)
    assert found.item() == (0.0 if "log" in name else 1.0)
