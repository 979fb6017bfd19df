"""Norms of flash-attention raise no alarm but the known ones, forward and backward."""

import importlib.util

import pytest
from checks_support import must_be_right

from verifier.records import witness
from verifier.subjects.libraries import library_files
from verifier.subjects.load_file import load

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
LOADED = load(library_files()["flash_attention"])
NORMS = {s.name.removeprefix("flash_attention_"): s for s in LOADED.subjects}
INSTALLED = pytest.mark.skipif(
    LOADED.library.version is None, reason="flash-attn is not installed (docs/how-to/library.md says how)"
)


@INSTALLED
@pytest.mark.parametrize(
    ("name", "check", "dtype"),
    [
        ("layer_norm", "gradient", "float16"),
        ("add_rms_norm", "gradient", "bfloat16"),
        ("rms_norm_zero_centred", "gradient", "float32"),
        ("layer_norm_linear", "running_bound", "float16"),
    ],
)
def test_a_norm_of_flash_attention_is_right_in_every_case(name, check, dtype):
    must_be_right(NORMS[name], check, dtype)


@pytest.mark.parametrize("name", NORMS)
def test_each_known_defect_has_a_witness_in_each_dtype(name):
    subject = NORMS[name]
    offsets = [] if name.endswith("_linear") else ["offsets-in-32-bits", "rows-in-32-bits"]
    assert [d.id for d in subject.known_defects] == ["undefined-lanes", *offsets]
    for defect in subject.known_defects:
        for dtype in subject.dtypes:
            assert witness.stored(subject, defect, dtype) is not None, (defect.id, dtype)
