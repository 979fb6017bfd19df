"""The account of a narrow dtype shows what it costs: an honest kernel little, a careless one much."""

import math

import pytest

from verifier.checks.support.row_errors import RowErrors
from verifier.commands.cost_of_dtype import COLUMNS, Account, SweptInput, account, account_lines, furthest

pytestmark = pytest.mark.usefixtures("no_child")
KERNELS = """
HALF = {**DECLARED, "dtypes": ("float16", "bfloat16")}

@subject(**HALF)
def wide(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps)

@subject(**HALF)
def narrow(input, weight=None, bias=None, eps=1e-5):
    mean = input.mean(-1, keepdim=True)
    square = (input * input).mean(-1, keepdim=True)
    out = (input - mean) * torch.rsqrt((square - mean * mean).clamp(min=0) + eps)
    return out * weight + bias

@subject(**HALF)
def displaced(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps) + 0.002

@subject(**HALF)
def refuses(input, weight=None, bias=None, eps=1e-5):
    raise ValueError("not today")
"""


OWN = """
def specification(input, weight, eps):
    return input / torch.sqrt((input * input).mean(-1, keepdim=True) + eps) * weight

@subject(op="unknown", specification=specification, language="torch", dtypes=("float16",))
def own(input, weight, eps=1e-5):
    x = input.float()
    return (x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight.float()).to(input.dtype)
"""


@pytest.fixture
def subjects(subjects_of):
    return subjects_of(KERNELS)


def row_of_output(lines):
    """Return the line of the table about the output, below its head."""
    return [line for line in lines if line.split()[:1] == ["output"]][1]


def plain(found):
    return tuple(p for p in found.points if p.kappa == 0 and p.magnitude == 1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_in_fp32_cost_one_rounding_of_the_output(dtype, subjects):
    found = account(subjects["wide"], dtype, "eager")
    worst = found.worst("output", plain(found))
    # One rounding to the dtype, and an error of fp32 that is 2**13 or 2**16 times smaller.
    assert 0.25 < worst < 0.51
    assert all(p.finite for p in found.points)


def test_sums_in_half_cost_more_and_overflow(subjects):
    found = account(subjects["narrow"], "float16", "eager")
    assert found.worst("output", plain(found)) > 1.0
    overflowing = [p.magnitude for p in found.points if not p.finite and p.kappa == 0]
    text = "\n".join(account_lines(subjects["narrow"], "float16", "eager"))
    assert f"overflows (NaN or infinity in some output) from magnitude {min(overflowing):.3g}" in text


def test_kappa_reaches_as_far_as_the_errors_stay_within_the_limits(subjects):
    reach = {}
    for name in ("wide", "narrow"):
        row = row_of_output(account_lines(subjects[name], "float16", "eager"))
        reach[name] = [float(word) if word != "none" else 0.0 for word in row.split()[-3:]]
    assert reach["wide"] == sorted(reach["wide"])
    assert reach["wide"][0] >= 100.0
    assert reach["narrow"][2] < reach["wide"][2]


def test_bits_lost_are_those_beyond_half_an_ulp(subjects):
    row = row_of_output(account_lines(subjects["narrow"], "bfloat16", "eager"))
    worst, lost = float(row.split()[1]), float(row.split()[4])
    # Both are printed with three digits.
    assert abs(lost - math.log2(worst / 0.5)) < 0.01


def test_a_subject_that_runs_on_nothing_is_said_to_be_not_measured(subjects):
    text = "\n".join(account_lines(subjects["refuses"], "float16", "eager"))
    assert "not measured" in text


def test_no_mean_exceeds_the_worst_which_has_the_same_unit(subjects):
    row = row_of_output(account_lines(subjects["displaced"], "float16", "eager"))
    worst, mean, signed = (float(word) for word in row.split()[1:4])
    assert 1.0 < mean <= worst
    assert 1.0 < signed < worst + 0.1  # printed with two digits


def test_a_subject_that_claims_nothing_has_a_mean_error_too(subjects_of):
    row = row_of_output(account_lines(subjects_of(OWN)["own"], "float16", "eager"))
    worst, mean = (float(word) for word in row.split()[1:3])
    assert 0.1 < mean < worst < 0.51


def swept(worst, kappa=0.0, magnitude=1.0, columns=COLUMNS):
    """Return an input of a sweep with an error of its output; None: the output was not measured there."""
    errors = None if worst is None else RowErrors(worst=worst, tail=0, mean=0, signed=0, rounded=0.5)
    outputs = {"output": errors} if errors else {}
    return SweptInput(
        kappa=kappa, magnitude=magnitude, columns=columns, outputs=outputs, finite=True, alternatives={}
    )


def reaches(axis, *points, missing=()):
    found = Account(subject="s", dtype="float16", backend="eager", points=points, missing=missing)
    return furthest(found, "output", 1.0, axis)


def test_nothing_is_trusted_beyond_an_input_without_a_result():
    near, far = swept(0.5), swept(0.5, kappa=1000.0)
    assert reaches("kappa", near, far) == 1000.0
    assert reaches("kappa", near, far, missing=((100.0, 1.0, COLUMNS),)) == 0.0
    assert reaches("kappa", near, far, missing=((100.0, 1.0, 32), (0.0, 2.0, COLUMNS))) == 1000.0
    assert reaches("kappa", near, far, missing=((1000.0, 1.0, COLUMNS),)) == 0.0  # one seed of two
    assert reaches("kappa", near, swept(None, kappa=100.0), far) == 0.0
    assert reaches("columns", swept(0.5, columns=32), near, missing=((0.0, 1.0, 128),)) == 32
    assert reaches("columns", near, missing=((0.0, 1.0, 32),)) is None


def test_magnitudes_are_trusted_from_1_on():
    small, one, large = swept(9.0, magnitude=2.0**-8), swept(0.5), swept(0.5, magnitude=64.0)
    assert reaches("magnitude", small, one, large) == 64.0
    assert reaches("magnitude", swept(0.5, magnitude=2.0**-8), swept(9.0), large) is None
    assert reaches("magnitude", one, large, missing=((0.0, 16.0, COLUMNS),)) == 1.0
