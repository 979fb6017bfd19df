"""What a kernel is proved to be at the call of a case: division, contraction, clamp and trees of that code.

The kernels here say one thing at short rows and do another at long ones: nothing may be carried over.
"""

import numpy as np
import pytest

from strategies.values import Values
from verifier.audit import claims_at_cases
from verifier.audit.budget import Budget
from verifier.audit.claims_at_cases import ClaimAtCase, ClaimsAtCases, call_key, claim_at
from verifier.audit.examination import Examination
from verifier.audit.read_claim import with_read_claim
from verifier.audit.rules import line_verdict
from verifier.audit.trial import Trial
from verifier.cases.recipe import Recipe, build
from verifier.checks.support.truth import Truth
from verifier.execution import Runner
from verifier.execution.backends import backend
from verifier.execution.code_against_claim import refined
from verifier.ops import op
from verifier.records.certificate import Refusal
from verifier.records.verdict import Verdict
from verifier.subjects.load_file import builtin_folder, load_subject

KERNEL = """
import torch
import triton
import triton.language as tl
from verifier import subject, tree

@triton.jit
def kernel(x, y, columns, inverse, eps, BLOCK: tl.constexpr, LONG: tl.constexpr):
    at = tl.arange(0, BLOCK)
    start = tl.program_id(0) * columns
    inside = at < columns
    value = tl.load(x + start + at, mask=inside, other=0.0)
    count = tl.cast(columns, tl.float32)
    if LONG:
        LATE
    else:
        EARLY
    tl.store(y + start + at, d * tl.rsqrt(variance + eps), mask=inside)

LIMIT = 100

@subject(op="layer_norm", differentiable=False, dtypes=("float32",)DECLARED)
def norm(input, eps=1e-5):
    dense = input.contiguous()
    y, columns = torch.empty_like(dense), input.shape[-1]
    if y.numel():
        block = triton.next_power_of_2(columns)
        long = columns > LIMIT
        kernel[(y.numel() // columns,)](dense, y, columns, 1.0 / columns, eps, BLOCK=block, LONG=long)
    return y
"""
TWO_PASS = """mean = tl.div_rn(tl.sum(value), count)
        d = tl.where(inside, value - mean, 0.0)
        variance = tl.div_rn(tl.sum(d * d), count)"""
RECIPROCAL = """mean = tl.sum(value) * inverse
        d = tl.where(inside, value - mean, 0.0)
        variance = tl.sum(d * d) * inverse"""
APPROXIMATE = """mean = tl.sum(value) / count
        d = tl.where(inside, value - mean, 0.0)
        variance = tl.sum(d * d) / count"""
IN_TURN = """total = 0.0
        for i in range(0, columns):
            total += tl.load(x + start + i)
        mean = tl.div_rn(total, count)
        d = tl.where(inside, value - mean, 0.0)
        variance = tl.div_rn(tl.sum(d * d), count)"""
TEXTBOOK = """mean = tl.div_rn(tl.sum(value), count)
        d = value - mean
        variance = tl.div_rn(tl.sum(value * value), count) - mean * mean"""
CLAMPED = f"{TEXTBOOK}\n        variance = tl.maximum(variance, 0.0)"
SHORT, LONG = 60, 130


def text_of(early, late, declared=""):
    return KERNEL.replace("EARLY", early).replace("LATE", late).replace("DECLARED", declared)


def case_of(subject, columns, **changes):
    recipe = Recipe(rows=2, columns=columns, input=Values(seed=3), **changes)
    return build(op(subject.op), subject, "float32", recipe, gradients=False)


def claims(path, *columns):
    """Return what is proved at rows of these lengths, of the claim that is read at 128."""
    with Runner("machine") as runner:
        read = with_read_claim(load_subject(path, "norm"), runner, "float32")
        assert read.claim.read == "read at 2x128"
        return [claim_at(read, case_of(read, n), runner, gradients=False) for n in columns]


def seen_in(found):
    assert isinstance(found, ClaimAtCase), found
    claim = found.subject.claim
    return claim.divide_by_n, claim.mean_contraction, claim.clamp


@pytest.mark.parametrize(
    ("early", "late", "short", "long"),
    [
        (TWO_PASS, RECIPROCAL, ("division", "none", False), ("reciprocal", "mixed", False)),
        (RECIPROCAL, TWO_PASS, ("reciprocal", "mixed", False), ("division", "none", False)),
        (CLAMPED, TEXTBOOK, ("division", "none", True), ("division", "none", False)),
        (TEXTBOOK, CLAMPED, ("division", "none", False), ("division", "none", True)),
        # The quotient of div.full is a product, which ptxas may fuse in one use of the mean alone.
        (TWO_PASS, APPROXIMATE, ("division", "none", False), ("division", "mixed", False)),
    ],
)
def test_division_contraction_and_clamp_are_those_of_the_code_that_runs(
    early, late, short, long, kernel_file
):
    at_short, at_long = claims(kernel_file(text_of(early, late), head=""), SHORT, LONG)
    assert (seen_in(at_short), seen_in(at_long)) == (short, long)


def test_a_tree_is_that_of_the_code_that_runs(kernel_file):
    at_short, at_long = claims(kernel_file(text_of(TWO_PASS, IN_TURN), head=""), SHORT, LONG)
    assert at_short.subject.claim.trees.statistics.depth(SHORT) <= 8
    assert at_long.subject.claim.trees.statistics.depth(LONG) == LONG - 1
    assert "trees" in load_subject(at_short.subject.path, "norm").claim.assumed
    assert not {"trees", "divide_by_n", "mean_contraction"} & at_short.subject.claim.assumed


def test_another_algorithm_is_not_taken_for_the_one_that_was_read(kernel_file):
    at_short, at_long = claims(
        kernel_file(text_of(TWO_PASS, CLAMPED).replace("100", "200"), head=""), 60, 230
    )
    assert isinstance(at_short, ClaimAtCase)
    assert isinstance(at_long, Refusal)


@pytest.mark.parametrize(
    "name", ["layer_norm_two_pass_triton", "layer_norm_welford_triton", "layer_norm_textbook_triton"]
)
def test_bounds_of_the_op_alone_are_no_larger_than_those_of_the_full_declaration(name):
    declared = load_subject(builtin_folder() / f"{name}.py", name)
    claim = declared.claim
    alone = declared.differing(
        variance_options={},
        variance=None,
        formula=None,
        trees=type(claim.trees)(),
        mean_contraction="mixed",
        divide_by_n="either",
        clamp=False,
        assumed=claim.assumed | {"trees", "mean_contraction", "divide_by_n", "formula"},
    )
    with Runner("machine") as runner:
        read = with_read_claim(alone, runner, "float32")
        recipe = Recipe(rows=2, columns=100, input=Values(seed=3), weight=Values(seed=1))
        case = build(op("layer_norm"), read, "float32", recipe, gradients=True)
        found = claim_at(read, case, runner, gradients=True)
        code = runner.run(declared, case, gradients=True).compiled
    assert isinstance(found, ClaimAtCase)
    assert found.is_of(code)

    def bounds(subject):
        subject, setting = refined(subject, backend("machine").setting(subject, "float32"), code)
        return {n: b.bound for n, b in Truth(subject=subject, case=case, setting=setting).bounds.items()}

    tight, wide, named = bounds(found.subject), bounds(read), bounds(declared)
    assert {"output", "mean", "rstd", "grad_input", "grad_weight"} <= tight.keys()
    for output, bound in named.items():
        assert np.all(tight[output] <= bound), output
    assert np.max(wide["output"]) > 3.0 * np.max(named["output"])


def line_of(path, **options):
    with Runner("machine") as runner:
        return Examination(
            subject=with_read_claim(load_subject(path, "norm"), runner, "float32"),
            check_name="forward_error",
            dtype="float32",
            runner=runner,
            budget=Budget(cases=5, whole=25),
            **options,
        ).run()


def test_a_line_says_how_many_cases_are_held_to_their_own_code(kernel_file, monkeypatch):
    path = kernel_file(text_of(TWO_PASS, RECIPROCAL), head="")
    read = line_of(path)
    assert line_verdict(read) is Verdict.PASS
    (note,) = [one for one in read.notes if "proved anew" in one]
    assert note.startswith("two_pass was proved anew at the calls of ")
    monkeypatch.setattr(claims_at_cases, "_known", type(claims_at_cases._known)())
    monkeypatch.setitem(claims_at_cases.READING_SECONDS, "quick", 0.0)
    monkeypatch.setattr("verifier.audit.examination.READING_SECONDS", claims_at_cases.READING_SECONDS)
    unread = line_of(path)
    (note,) = [one for one in unread.notes if "proved anew" in one]
    assert "at the calls of 0 of " in note
    assert "has no time to read more" in note
    assert read.worst.utilisation > unread.worst.utilisation
    assert line_verdict(unread) is Verdict.PASS


def test_a_later_search_of_the_same_line_reads_nothing(kernel_file, monkeypatch):
    monkeypatch.setattr(ClaimsAtCases, "at", lambda *_: pytest.fail("read"))
    line = line_of(kernel_file(text_of(TWO_PASS, RECIPROCAL), head=""), first=1)
    assert line_verdict(line) is Verdict.PASS
    assert not any("proved anew" in note for note in line.notes)


FICKLE = text_of(TWO_PASS, RECIPROCAL).replace(
    "    dense =",
    "    global LIMIT\n    LIMIT = 10 if input.shape[-1] == 77 else LIMIT\n    dense =",
)


def trial_of(path, runner):
    subject = with_read_claim(load_subject(path, "norm"), runner, "float32")
    trial = Trial(subject=subject, check_name="forward_error", dtype="float32", runner=runner)
    trial.claims = ClaimsAtCases(subject=subject, runner=runner, seconds=10.0)
    return trial


def test_a_claim_is_not_used_of_other_code_than_was_read(kernel_file):
    """A call with 77 columns has the wrapper launch another kernel from then on, in its own process alone."""
    with Runner("machine") as runner:
        trial = trial_of(kernel_file(FICKLE, head=""), runner)
        outcomes, _ = trial.judge(case_of(trial.subject, SHORT))
        assert [o.verdict for o in outcomes] == [Verdict.PASS]
        assert trial.claims.taken == 1
        runner.run(trial.subject, case_of(trial.subject, 77))
        outcomes, _ = trial.judge(case_of(trial.subject, SHORT))
    assert [o.verdict for o in outcomes] == [Verdict.PASS]
    assert trial.claims.taken == 1
    assert trial.claims.unread == {"other code ran than was read": 1}


def test_what_is_beyond_a_proof_alone_is_no_finding_and_does_not_pass(kernel_file, monkeypatch):
    def too_tight(subject, case, runner, *, gradients):
        found = claim_at(subject, case, runner, gradients=gradients)
        claimed = found.subject.differing(accumulates="float64")
        return ClaimAtCase(subject=claimed, proof=found.proof)

    monkeypatch.setattr(claims_at_cases, "claim_at", too_tight)
    monkeypatch.setattr(claims_at_cases, "_known", type(claims_at_cases._known)())
    with Runner("machine") as runner:
        trial = trial_of(kernel_file(text_of(TWO_PASS, IN_TURN), head=""), runner)
        outcomes, _ = trial.judge(case_of(trial.subject, LONG))
    assert [o.verdict for o in outcomes] == [Verdict.PASS, Verdict.UNDECIDED]
    assert outcomes[1].doubtful
    assert "a bug of the verifier until explained" in outcomes[1].message


def test_calls_differ_by_all_but_values(kernel_file):
    subject = load_subject(kernel_file(text_of(TWO_PASS, TWO_PASS), head=""), "norm")
    plain = case_of(subject, 8)
    other = build(
        op("layer_norm"), subject, "float32", Recipe(rows=2, columns=8, input=Values(seed=9)), gradients=False
    )
    assert call_key(plain) == call_key(other)
    for changed in (case_of(subject, 9), case_of(subject, 8, eps=1e-3)):
        assert call_key(changed) != call_key(plain)


def noted(path):
    with Runner("machine") as runner:
        line = Examination(
            subject=load_subject(path, "norm"),
            check_name="forward_error",
            dtype="float32",
            runner=runner,
            budget=Budget(cases=10, whole=25),
        ).run()
    return line, [note for note in line.notes if "declared tree" in note]


@pytest.mark.parametrize(
    ("depth", "said"),
    [
        (20, "meet 20 addition(s), in the compiled code it meets 7 at 2x128: less deep than declared"),
        (3, "meet 3 addition(s), in the compiled code it meets 7 at 2x128: deeper than declared"),
    ],
)
def test_a_declared_tree_that_is_not_the_compiled_one_is_named_with_both_depths(depth, said, kernel_file):
    declared = f', variance="two_pass", trees=tree(depth={depth})'
    line, notes = noted(kernel_file(text_of(TWO_PASS, TWO_PASS, declared), head=""))
    assert line_verdict(line) is Verdict.PASS
    assert any(said in note for note in notes)
    assert [(one.role, one.compiled, one.declared) for one in line.trees] == [("statistics", 7, depth)]


def test_a_declared_tree_beside_the_op_alone_is_held_against_the_code(kernel_file):
    """The algorithm is read; a tree that the code does not keep to is why nothing is."""
    kept = line_of(kernel_file(text_of(TWO_PASS, TWO_PASS, ", trees=tree(depth=20)"), head="", name="a.py"))
    assert kept.variance == "two_pass (read)"
    broken = line_of(kernel_file(text_of(TWO_PASS, TWO_PASS, ", trees=tree(depth=3)"), head="", name="b.py"))
    assert (broken.variance, line_verdict(broken)) == ("none", Verdict.UNDECIDED)
    said = "a term of a sum of 128 meets 7 additions, 3 are declared"
    assert any(said in note for note in broken.notes)


def test_a_declared_tree_that_is_the_compiled_one_is_not_named(kernel_file):
    line, notes = noted(
        kernel_file(text_of(TWO_PASS, TWO_PASS, ', variance="two_pass", trees=tree(depth=7)'), head="")
    )
    assert not notes
    assert [(one.compiled, one.declared) for one in line.trees] == [(7, 7)]
