"""Liger's norms are certified as they are: for all inputs of a shape, with quotients fused and not."""

import importlib.util

import pytest
from checks_support import machine_runner

from verifier.checks.support.certificate_at_shape import certified
from verifier.commands.explain import case_for
from verifier.records.certificate import Certificate
from verifier.subjects.libraries import library_files
from verifier.subjects.load_file import load

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("liger_kernel") is None,
        reason="liger-kernel is not installed (it comes with the extra dev)",
    ),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
]
NORMS = {s.name.removeprefix("liger_"): s for s in load(library_files()["liger"]).subjects}


@pytest.fixture(scope="module")
def runner():
    with machine_runner() as opened:
        yield opened


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("layer_norm", "float16"),
        ("rms_norm_llama", "bfloat16"),
        ("rms_norm_gemma", "float32"),
    ],
)
def test_a_norm_of_liger_is_certified_forward(runner, name, dtype):
    found = certified(NORMS[name], case_for(NORMS[name], dtype, 3, 33, 0.0, 0), runner=runner)
    assert isinstance(found, Certificate), found.why
    fused = found.proofs[1]
    assert "C" in fused.claims  # mean / N + eps: the last product of the quotient is fused
    assert "divfma.full.f32" in fused.approximate
    assert found.support["output"]["input"] == "its row"


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("rms_norm_llama", "float16"),  # products of two halves are those of float32, rounded again
        ("rms_norm_gemma", "float32"),
        ("rms_norm_gemma_offset", "bfloat16"),
        ("fused_add_rms_norm_llama", "bfloat16"),
    ],
)
def test_rms_norms_of_liger_are_certified_with_their_gradients(runner, name, dtype):
    norm = NORMS[name]
    found = certified(norm, case_for(norm, dtype, 4, 33, 0.0, 0), runner=runner, gradients=True)
    assert isinstance(found, Certificate), found.why
    assert {"grad_input", "grad_weight"} <= {*found.outputs}
    canonical = norm.differing(formula="canonical")  # sum(xhat * g) is in none of them
    refused = certified(canonical, case_for(norm, dtype, 4, 33, 0.0, 0), runner=runner, gradients=True)
    assert not isinstance(refused, Certificate)


@pytest.mark.parametrize(("dtype", "limit"), [("float32", 60), ("float16", None)])
def test_its_gradients_are_certified_with_torchs_sums_over_rows_in_any_order(runner, dtype, limit):
    norm = NORMS["layer_norm"]
    found = certified(norm, case_for(norm, dtype, 140, 33, 0.0, 0), runner=runner, gradients=True)
    assert isinstance(found, Certificate), found.why
    assert {"grad_input", "grad_weight", "grad_bias"} <= {*found.outputs}
    assert any(assumed.startswith("torch.sum") for assumed in found.assumptions)
    over_rows = [one for proof in found.proofs for one in proof.sums if one.terms == 140]
    # Two rows a program, of 132: 70 parts in any order, and no tree is declared.
    assert {(one.depth, one.declared) for one in over_rows} == {(70, None)}
    assert {order.sha256 for one in over_rows for order in one.orders} == {None}
    # Lanes beyond the row multiply mean and rstd, and their product with 0.
    assert {proof.within for proof in found.proofs} == {limit}
    assert [found.speaks_of(2.0**power) for power in (60, 61)] == [True, limit is None]
    assert ("no element of an argument exceeds" in found.statement) == (limit is not None)
