"""What a kernel computes is read from compiled code only where it is proved, and judged by it with care."""

import pytest
from triton_release import ALL_LANES_STORE

from strategies.values import Values
from verifier import Trees
from verifier.audit.budget import Budget
from verifier.audit.certifying import of_subject
from verifier.audit.examination import Examination
from verifier.audit.read_claim import ReadClaim, read_claim, silent, with_read_claim
from verifier.audit.request import BUDGETS
from verifier.audit.rules import line_verdict
from verifier.audit.run_audit import audit, select
from verifier.audit.trial import Trial
from verifier.cases.recipe import Recipe, build
from verifier.commands.describe import describe
from verifier.commands.describing import claims
from verifier.execution import Runner
from verifier.ops import op
from verifier.records.certificate import Refusal
from verifier.records.verdict import Verdict
from verifier.subjects.load_file import LoadError, builtin_folder, load_subject

GUESSES = ("textbook", "two_pass", "welford")


def found_in(subject, dtype="float32", **asked):
    with Runner("machine") as runner:
        return read_claim(subject, runner, dtype, **asked)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("layer_norm_two_pass_triton", "two_pass"),
        ("layer_norm_textbook_triton", "textbook"),
        ("layer_norm_welford_triton", "welford"),
        ("rms_norm_triton", None),  # none of the guesses
    ],
)
def test_the_algorithm_is_that_of_the_code_whatever_is_guessed(name, read):
    declared = load_subject(builtin_folder() / f"{name}.py", name)
    found = found_in(silent(declared).differing(trees=Trees()), names=GUESSES, gradients=False)
    assert (found.algorithm if isinstance(found, ReadClaim) else None) == read
    assert read is None or found.depth in {7, 8}  # by the release of Triton
    if read == "welford":  # where each lane has the mean that it merged
        assert found.subject.claim.variance_options == ({"per_lane_means": True} if ALL_LANES_STORE else {})


@pytest.mark.parametrize(
    ("name", "dtype", "form"),
    [
        ("softmax_triton", "float16", "recomputed"),
        ("rms_norm_triton", "bfloat16", "canonical"),
        ("causal_softmax_triton", "float32", "canonical"),  # called without a mask
    ],
)
def test_the_form_is_read_from_both_passes(name, dtype, form):
    declared = load_subject(builtin_folder() / f"{name}.py", name)
    found = found_in(silent(declared).differing(trees=Trees()), dtype)
    assert (found.subject.claim.formula, found.backward) == (form, True)


WRONG = """
import torch
import triton
import triton.language as tl
from verifier import subject

ALLOWED = (torch.float32,)

@triton.jit
def kernel(x, y, columns, eps, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    start = tl.program_id(0) * columns
    value = tl.load(x + start + at, mask=at < columns, other=0.0).to(tl.float32)
    d = tl.where(at < columns, value - tl.div_rn(tl.sum(value), tl.cast(columns, tl.float32)), 0.0)
    y_ = d * tl.rsqrt(tl.div_rn(tl.sum(d * d), tl.cast(columns - MINUS, tl.float32)) + eps)
    tl.store(y + start + at, y_, mask=at < columns)

@subject(op="layer_norm", differentiable=False)
def norm(input, eps=1e-5):
    assert input.dtype in ALLOWED, "no such dtype"
    dense = input.contiguous()
    y, columns = torch.empty_like(dense), input.shape[-1]
    if y.numel():
        kernel[(y.numel() // columns,)](dense, y, columns, eps, BLOCK=triton.next_power_of_2(columns))
    return y
"""


@pytest.mark.parametrize(("minus", "read"), [("0", "two_pass"), ("1", None)])
def test_no_algorithm_is_read_from_another_variance(minus, read, kernel_file):
    path = kernel_file(WRONG.replace("MINUS", minus), head="")
    found = found_in(load_subject(path, "norm"), names=GUESSES)
    assert (found.algorithm if isinstance(found, ReadClaim) else None) == read


def test_a_proposal_says_what_was_read(kernel_file, monkeypatch):
    for count in ("COMPILED_CASES", "COMPILED_GRADIENT_CASES"):
        monkeypatch.setattr(claims, count, 2)
    text = describe(kernel_file(WRONG.replace("MINUS", "0"), head="")).replace("\n#   ", " ")
    assert (
        "two_pass was read from the compiled code at 2x128, for all inputs of that shape with which every"
        in text
    )
    settled = 'at 2x128 it has divide_by_n="division", mean_contraction="none", clamp=False and statistics 7'
    assert settled in text
    assert 'variance="two_pass"' in text
    assert "refuted" not in text


def line_of(path, check="forward_error", dtype="float32", cases=6):
    with Runner("machine") as runner:
        declared = with_read_claim(load_subject(path, "norm"), runner, dtype)
        return Examination(
            subject=declared, check_name=check, dtype=dtype, runner=runner, budget=Budget(cases=cases)
        ).run()


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    """One audit of a right kernel of which the op alone is declared: the report, and its lines."""
    path = tmp_path_factory.mktemp("right") / "kernel.py"
    path.write_text(WRONG.replace("MINUS", "0"), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(BUDGETS, "quick", 10)
        report = audit(select([path], check_names=["forward_error", "formula"]))
    return report, {(one.check, one.dtype): one for one in report.lines}


def test_a_declaration_of_the_op_alone_is_held_to_the_algorithm_of_its_code(audited):
    _, lines = audited
    line = lines["forward_error", "float32"]
    assert (line.variance, line_verdict(line)) == ("two_pass (read)", Verdict.PASS)
    assert line.counts[Verdict.PASS] > 3
    assert line_verdict(lines["formula", "float32"]) is Verdict.PASS


def test_a_dtype_that_is_not_declared_and_refused_is_not_run(audited):
    lines = {dtype: one for (check, dtype), one in audited[1].items() if check == "forward_error"}
    assert set(lines) == {"float16", "bfloat16", "float32"}
    assert "refuses bfloat16: AssertionError: no such dtype" in lines["bfloat16"].skipped
    assert not lines["float32"].skipped


TWO_CODES = WRONG.replace("MINUS", "0").replace(
    "    d = tl.where",
    """    if columns > 256:
        mean = tl.div_rn(tl.sum(value), tl.cast(columns, tl.float32))
        squares = tl.div_rn(tl.sum(value * value), tl.cast(columns, tl.float32)) - mean * mean
        late = (value - mean) * tl.rsqrt(tl.maximum(squares, 0.0) + eps)
        tl.store(y + start + at, late, mask=at < columns)
        return
    d = tl.where""",
)


def test_what_was_read_of_another_shape_makes_no_kernel_wrong(kernel_file):
    """Long rows have the textbook's variance, which loses large means; nobody has said which one it is."""
    declared = load_subject(kernel_file(TWO_CODES, head=""), "norm")
    with Runner("machine") as runner:
        read = with_read_claim(declared, runner, "float32")
        verdicts = {}
        for subject in (read, declared.differing(variance="two_pass")):
            for columns in (64, 1000):
                recipe = Recipe(
                    rows=1, columns=columns, input=Values(hazard="cancellation", strength=3, seed=1)
                )
                case = build(op("layer_norm"), subject, "float32", recipe, gradients=False)
                trial = Trial(subject=subject, check_name="forward_error", dtype="float32", runner=runner)
                ((outcome,), _) = trial.judge(case)
                verdicts[subject.claim.read, columns] = outcome
    assert verdicts["read at 2x128", 64].verdict is Verdict.PASS
    assert verdicts["", 64].verdict is Verdict.PASS
    assert verdicts["", 1000].verdict is Verdict.FAIL
    undecided = verdicts["read at 2x128", 1000]
    assert (undecided.verdict, undecided.doubtful) == (Verdict.UNDECIDED, True)
    assert "two_pass, read at 2x128; of this shape nothing is claimed" in undecided.message


KEPT = WRONG.replace("MINUS", "0").replace(
    "    dense = input.contiguous()",
    """    if not hasattr(input, "dense"):
        input.dense = input.contiguous().clone()
    dense = input.dense""",
)


def test_bits_that_change_between_calls_are_wrong_whatever_was_read(kernel_file):
    """The same code has run on the same numbers: no other algorithm explains it."""
    line = line_of(kernel_file(KEPT, head=""), "repeated_calls", cases=2)
    assert line_verdict(line) is Verdict.FAIL
    (finding,) = line.findings
    assert (
        "changed in place since the last call: bits differ from the plain call's" in finding.outcome.message
    )
    assert line_verdict(line_of(kernel_file(KEPT, head=""), "forward_error", cases=2)) is Verdict.PASS


BEYOND_256 = """    if columns > 256:
        y_ += 0.001
    tl.store(y"""


def test_what_no_rounding_of_the_code_explains_is_wrong_whatever_was_read(kernel_file):
    text = WRONG.replace("MINUS", "0").replace("    tl.store(y", BEYOND_256)
    path = kernel_file(text.replace('op="layer_norm"', 'op="layer_norm", extents=((1, 1000),)'), head="")
    line = line_of(path, cases=8)
    assert line_verdict(line) is Verdict.FAIL
    assert line.findings[0].case.columns > 256
    assert "no rounding of the code that was compiled errs so much" in line.findings[0].outcome.meaning


@pytest.mark.parametrize(
    ("body", "language"),
    [
        ("@subject(op='layer_norm')\ndef norm(input, eps=1e-5):\n    return below(input)\n", "triton"),
        ("@subject(op='layer_norm')\ndef norm(input, eps=1e-5):\n    return input\n", "torch"),
    ],
)
def test_the_language_is_that_of_the_kernels_that_the_code_names(body, language, kernel_file):
    head = "import torch, triton\nfrom verifier import subject\n"
    tail = "\n@triton.jit\ndef kernel(x):\n    pass\n\ndef below(x):\n    kernel[(1,)](x)\n    return x\n"
    found = load_subject(kernel_file(head + body + tail, head=""), "norm")
    assert (found.language, found.claim.mean_contraction) == (
        language,
        "none" if language == "torch" else "mixed",
    )


def test_a_language_that_cannot_be_told_has_to_be_declared(kernel_file):
    text = """
import importlib
from verifier import subject

@subject(op="layer_norm")
def norm(input, eps=1e-5):
    return importlib.import_module("some" + "where").norm(input, eps)
"""
    path = kernel_file(text, head="")
    with pytest.raises(LoadError, match="its language is not declared and cannot be told"):
        load_subject(path, "norm")
    said = kernel_file(text.replace('"layer_norm"', '"layer_norm", language="triton"'), head="", name="b.py")
    assert load_subject(said, "norm").language == "triton"


def test_a_missing_backward_pass_is_no_error_of_the_verifier(kernel_file):
    """Forward the code is proved; that a gradient fails to come contradicts nothing of it."""
    text = WRONG.replace("MINUS", "0").replace(", differentiable=False", "")
    found = of_subject(str(kernel_file(text, head="")), "norm", "float32", ((3, 64),), 0)
    assert [one.gradients for one in found] == [False, True]
    for one in found:
        assert isinstance(one.found, Refusal)
        assert "no backward pass is connected" in one.found.why
        assert not one.contradicted


def test_reading_a_claim_hides_nothing_of_what_an_audit_runs(audited):
    ((functions, known),) = [(one.functions, one.known) for one in audited[0].reach]
    assert (functions, known) == ((1, 1), True)
