"""Norms of unsloth raise no alarm, forward and backward, with weights that are trained or frozen."""

import importlib.util

import pytest
import torch
from checks_support import must_be_right

from verifier.subjects.libraries import library_files
from verifier.subjects.load_file import load

LOADED = load(library_files()["unsloth"])
NORMS = {s.name.removeprefix("unsloth_"): s for s in LOADED.subjects}
pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(
        bool(LOADED.library.absent), reason="unsloth is not installed (docs/how-to/library.md says how)"
    ),
]


@pytest.mark.parametrize(
    ("name", "check", "dtype"),
    [
        ("rms_norm", "gradient", "float16"),
        ("rms_norm_gemma", "gradient", "bfloat16"),
        ("layer_norm", "gradient", "float32"),
        ("rms_norm_frozen", "gradient", "float16"),
        ("layer_norm_frozen", "gradient", "float16"),
        ("add_rms_norm_inference", "forward_error", "float16"),
    ],
)
def test_a_norm_of_unsloth_is_right_in_every_case(name, check, dtype):
    must_be_right(NORMS[name], check, dtype)


def test_narrow_rows_go_through_kernels_of_several_rows():
    """The package compares them with those of one row first, on numbers that it draws on the device."""
    from verifier.machine import session

    with session(strict=True) as opened:
        x = torch.ones(4, 33, device="cuda", dtype=torch.float16)
        NORMS["rms_norm"].function(x, x[0])
        kernel, grid = opened.launches[-1]
        assert (kernel, grid) == ("_rms_layernorm_forward_rows", (1, 1, 1))
        assert not opened.failed
