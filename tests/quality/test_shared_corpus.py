"""On one corpus of cases the right kernels never fail, and every mutant that must fail does."""

from pathlib import Path

import pytest

from strategies.values import Values
from verifier.cases.recipe import Recipe, build
from verifier.checks.support.output_verdict import judge
from verifier.checks.support.truth import Truth
from verifier.execution.backends import backend
from verifier.execution.call_subject import execute
from verifier.ops import op
from verifier.records.verdict import Verdict
from verifier.subjects.load_file import builtin_folder, load_subjects

TESTS = Path(__file__).parents[1]
FAULTY = TESTS / "faulty_kernels"
RIGHT = (builtin_folder() / "layer_norm_torch.py", TESTS / "support" / "right_kernel.py")

INPUTS = (
    Values(),
    Values(hazard="cancellation", strength=2),
    Values(hazard="near_constant_row", strength=2),
    Values(hazard="one_outlier", strength=3),
    Values(hazard="lognormal"),
    Values(scale=-9),
)
CORPUS = tuple(
    Recipe(rows=rows, columns=columns, input=values, weight=Values(seed=7), bias=Values(seed=8), eps=eps)
    for (rows, columns), eps in (((4, 33), 1e-5), ((2, 256), 1e-5), ((3, 5), 1e-3), ((1, 1001), 1e-5))
    for values in INPUTS
)
"""Short rows and long ones, with a tail and without; large means, outliers, and variances that eps rules."""

MUTANTS = {
    "ddof = 1, a divisor of N - 1": "variance_over_n_minus_one",
    "a divisor of N + 1": "divisor_n_plus_one",
    "eps outside the root": "eps_outside_root",
    "eps forgotten": "eps_forgotten",
    "a dropped tail element": "tail_dropped",
    "half sums declared as float32": "half_sums_declared_single",
    "a missing weight": "weight_missing",
    "Welford claimed of a textbook kernel": "welford_claimed_textbook_computed",
}


def verdicts(subject, dtype):
    """Return the verdict on the output of every case of the corpus that lies in the subject's domain."""
    place, found = backend("eager"), []
    for recipe in CORPUS:
        case = build(op(subject.op), subject, dtype, recipe, gradients=False)
        if subject.domain is not None and subject.domain.excludes(case):
            continue
        seen = execute(subject, case, backend=place)
        assert seen.status == "ok", seen.message
        truth = Truth(subject=subject, case=case, setting=place.setting(subject, dtype))
        found += [outcome.verdict for outcome in judge(truth, seen, ("output",))]
    return found


@pytest.mark.parametrize("path", RIGHT, ids=lambda path: path.stem)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_right_kernel_fails_nowhere(path, dtype):
    (subject,) = load_subjects(path)
    found = verdicts(subject, dtype)
    assert Verdict.FAIL not in found
    assert found.count(Verdict.PASS) > len(CORPUS) * 3 // 4


@pytest.mark.parametrize("stem", MUTANTS.values(), ids=MUTANTS)
def test_a_mutant_fails(stem):
    (subject,) = load_subjects(FAULTY / f"{stem}.py")
    for dtype in subject.dtypes:
        assert Verdict.FAIL in verdicts(subject, dtype), dtype


@pytest.mark.parametrize("stem", MUTANTS.values(), ids=MUTANTS)
def test_without_its_bug_a_mutant_fails_nowhere(stem, tmp_path):
    """Only the planted line makes it fail: the declaration and the rest of the file are right."""
    text = (FAULTY / f"{stem}.py").read_text(encoding="utf-8")
    for old, new in REPAIRS[stem].items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    (tmp_path / f"{stem}.py").write_text(text, encoding="utf-8")
    (subject,) = load_subjects(tmp_path / f"{stem}.py")
    for dtype in subject.dtypes:
        found = verdicts(subject, dtype)
        assert Verdict.FAIL not in found, dtype
        assert Verdict.PASS in found


REPAIRS = {
    "variance_over_n_minus_one": {"max(x.shape[-1] - 1, 1)": "x.shape[-1]"},
    "divisor_n_plus_one": {"(x.shape[-1] + 1)": "x.shape[-1]"},
    "eps_outside_root": {"(torch.sqrt(variance) + eps)": "torch.sqrt(variance + eps)"},
    "eps_forgotten": {"torch.sqrt(variance)": "torch.sqrt(variance + eps)"},
    "tail_dropped": {"x.shape[-1] // 4 * 4 or x.shape[-1]": "x.shape[-1]"},
    "half_sums_declared_single": {"x = input.detach()": "x = input.detach().float()"},
    "weight_missing": {"    out = out if bias": "    out = out * weight\n    out = out if bias"},
    "welford_claimed_textbook_computed": {
        "_mean_in_order(x.square()) - mean.square()": "_mean_in_order((x - mean).square())"
    },
}
