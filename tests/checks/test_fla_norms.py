"""Norms of flash-linear-attention raise no alarm, forward and backward."""

import importlib.util

import pytest
from checks_support import must_be_right

from verifier.subjects.libraries import library_files
from verifier.subjects.load_file import load

pytestmark = [
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("fla", "einops")),
        reason="fla-core and einops are not installed (they come with the extra dev)",
    ),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
]
NORMS = {s.name.removeprefix("fla_"): s for s in load(library_files()["fla"]).subjects}


@pytest.mark.parametrize(
    ("name", "check", "dtype"),
    [
        ("layer_norm", "gradient", "float16"),
        ("add_layer_norm", "gradient", "bfloat16"),
        ("add_rms_norm", "gradient", "float16"),
        ("l2_norm", "gradient", "float16"),
        ("rms_norm_gated_silu", "gradcheck", "float32"),
        ("layer_norm_gated_silu", "gradient", "bfloat16"),
    ],
)
def test_a_norm_of_fla_is_right_in_every_case(name, check, dtype):
    must_be_right(NORMS[name], check, dtype)


def test_known_defects_are_those_of_the_kernels_that_a_norm_uses():
    """An empty batch is divided among no programs; backward passes load weight with undefined lanes.

    Of long rows the gradient of a residual in float32 is rounded to the input's dtype.
    Those of Mamba 2's norms have as many programs without rows.
    """
    ids = {name: tuple(d.id for d in s.known_defects) for name, s in NORMS.items()}
    of_mamba = {name for name in ids if name.startswith(("layernorm_fn", "rmsnorm_fn"))}
    strided = {"softmax", "softmax_backward", "qk_rmsnorm_of_queries", "qk_rmsnorm_of_keys"}
    assert ids.pop("l2_norm") == ()
    assert {ids[name] for name in strided} == {("strides-not-read",)}
    assert ids["layernorm_fn_gate_first"] == ("undefined-lanes-of-gate",)
    assert {ids[name] for name in of_mamba - {"layernorm_fn_gate_first"}} == {("undefined-lanes",)}
    added = {"add_layer_norm", "add_rms_norm"}
    assert {ids[name] for name in added} == {("no-rows", "undefined-lanes", "residual-through-input")}
    assert {ids[name] for name in set(ids) - strided - of_mamba - added} == {("no-rows", "undefined-lanes")}
