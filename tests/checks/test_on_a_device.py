"""Wrappers that ask for their device, that name it, or that launch nothing on it."""

from pathlib import Path

import pytest
import torch
from checks_support import FAULTY, cases_of, examination, failures, machine, planted

from verifier.audit import tally
from verifier.audit.rules import line_verdict
from verifier.execution import call_subject
from verifier.execution.backends import backend
from verifier.records.verdict import Line, Outcome, Verdict

pytest.importorskip("triton", reason="the machine plays Triton kernels; Triton is not installed")

NAMED = FAULTY / "device_named_triton.py"
ALLOCATION = 'torch.empty(x.shape, dtype=x.dtype, device="cuda")  # the bug'
OWN = "torch.empty(x.shape, dtype=x.dtype, device=x.device)"
BUILT = torch.version.cuda is not None
LAUNCH = "_forward[(x.numel() // columns,)](x, y, w, b, columns, float(eps), BLOCK=block)"
SIDE = f"""side = torch.cuda.Stream(device=x.device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            {LAUNCH}
        torch.cuda.current_stream().wait_stream(side)"""


def judged(subject, check, count=3, place="machine", **changes):
    """Return the outcomes of the first cases, judged on the machine as its child process does."""
    found = []
    with machine(strict=True):
        examining = examination(subject, check, "float32", place)
        for case in cases_of(subject, check, "float32", count, **changes):
            found += examining.judge(case)[0]
    return found


def verdicts(outcomes):
    return {outcome.verdict for outcome in outcomes}


# -- the device a wrapper names ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "allocation",
    [
        OWN,
        'torch.empty(x.shape, dtype=x.dtype, device=torch.device("cuda", x.get_device()))',
        'torch.empty(x.shape, dtype=x.dtype, device=f"cuda:{x.device.index}")',
        "torch.empty(x.shape, dtype=x.dtype, device=x.get_device())",
        "torch.empty(x.shape, dtype=x.dtype).to(x.device)",
        "x.new_empty(x.shape)",
    ],
)
def test_a_wrapper_may_name_the_device_of_its_inputs(allocation):
    right = planted({ALLOCATION: allocation}, NAMED)
    assert verdicts(judged(right, "device", 1)) == {Verdict.PASS}


def test_a_guard_of_the_inputs_device_makes_the_current_one_theirs():
    guard = (
        "with torch.cuda.device(x.device):\n        y = torch.empty(x.shape, dtype=x.dtype, device='cuda')"
    )
    right = planted({f"y = {ALLOCATION}": guard}, NAMED)
    assert verdicts(judged(right, "device", 1)) == {Verdict.PASS}


@pytest.mark.parametrize("name", ['"cuda"', '"cuda:0"', 'torch.device("cuda", 0)', "0"])
def test_a_device_of_its_own_fails_whatever_it_is_called(name):
    wrong = planted({ALLOCATION: ALLOCATION.replace('"cuda"', name)}, NAMED)
    (outcome,) = failures(judged(wrong, "device", 1))
    assert "empty(device='cuda:0')" in outcome.message


# -- the path of a GPU ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "question",
    [
        'x.device.type == "cuda"',
        "x.is_cuda",
        "x.get_device() >= 0",
        'x.device == torch.device("cuda", torch.cuda.current_device())',
        '"cuda" in x.type()',
        'str(x.device).startswith("cuda")',
        "not x.is_cpu",
    ],
)
def test_a_bug_on_the_path_of_a_gpu_is_found(question):
    changes = {ALLOCATION: OWN, "float(eps)": f"0.5 if {question} else float(eps)"}
    wrong = planted(changes, NAMED)
    assert failures(judged(wrong, "forward_error", 2, hazards=("ordinary",), shapes=((3, 8),), eps=(1e-5,)))


def test_a_wrapper_may_launch_on_a_side_stream():
    right = planted({ALLOCATION: OWN, LAUNCH: SIDE}, NAMED)
    outcomes = judged(right, "forward_error", 2, hazards=("ordinary",), shapes=((3, 8),))
    assert verdicts(outcomes) == {Verdict.PASS}


def test_memory_of_the_host_is_refused_as_by_tritons_launcher():
    wrong = planted({ALLOCATION: "torch.empty(x.shape, dtype=x.dtype)"}, NAMED)
    outcomes = judged(wrong, "forward_error", 1, hazards=("ordinary",), shapes=((3, 8),))
    assert [o.verdict for o in outcomes] == [Verdict.REFUSED]
    assert "cannot be accessed from Triton (cpu tensor?)" in outcomes[0].message


def test_liger_is_audited_with_the_partial_sums_of_a_gpu(tmp_path):
    """One partial sum for each multiprocessor; on a CPU there would be one, and all of them the first."""
    pytest.importorskip("liger_kernel", reason="liger-kernel is not installed (it comes with the extra dev)")
    from liger_kernel.ops import layer_norm

    text = Path(layer_norm.__file__).read_text(encoding="utf-8")
    declaration = """
from verifier import Domain, subject


@subject(op="layer_norm", language="triton", variance="two_pass", dtypes=("float32",),
         domain=Domain(layouts=("contiguous",), optional=False))
def liger(input, weight, bias, eps=1e-5):
    return LigerLayerNormFunction.apply(input, weight, bias, eps)
"""
    source = tmp_path / "liger.py"
    source.write_text(text + declaration, encoding="utf-8")
    for changed in ({}, {"_DW.sum(dim=0)": "_DW[0]"}):
        subject = planted(changed, source)
        plan = {"hazards": ("ordinary",), "shapes": ((5, 8),), "eps": (1e-5,)}
        failed = {outcome.output for outcome in failures(judged(subject, "gradient", 1, **plan))}
        assert failed == ({"grad_weight"} if changed else set())


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param("torch.device(0)", marks=pytest.mark.skipif(BUILT, reason="a build for CUDA names one")),
        "torch.cuda.default_generators[0]",
        # As torch's C++ raises it where a build for CUDA meets no driver: by no statement of the subject.
        '(i for i in ()).throw(RuntimeError("CUDA error: CUDA driver version is insufficient"))',
        "torch.cuda.CUDAGraph()",
        "try:\n        torch.cuda.CUDAGraph()\n    except Exception:\n        pass",
    ],
)
def test_what_the_machine_cannot_answer_is_undecided(asked):
    unsure = planted({ALLOCATION: f"{OWN}\n    {asked}"}, NAMED)
    (outcome,) = judged(unsure, "forward_error", 1, hazards=("ordinary",), shapes=((3, 8),))
    assert outcome.verdict is Verdict.UNDECIDED
    assert outcome.message.startswith("the machine lacks")


# -- nothing launched ------------------------------------------------------------------------------------

FALLBACK = "y = torch.nn.functional.layer_norm(x, x.shape[-1:], w, b, eps)"


def test_a_refused_launch_is_none():
    caught = LAUNCH.replace("x.numel() // columns,", "1, 70000")  # more rows of blocks than a device takes
    lines = f"try:\n            {caught}\n        except Exception:\n            {FALLBACK}"
    refused = planted({ALLOCATION: OWN, LAUNCH: lines}, NAMED)
    outcomes = judged(refused, "forward_error", 1, shapes=((3, 8),))
    assert [(o.verdict, o.message) for o in outcomes] == [(Verdict.UNDECIDED, call_subject.NOT_LAUNCHED)]


@pytest.mark.parametrize(
    "check", ["forward_error", "formula", "influence", "determinism", "memory", "gradcheck", "running_bound"]
)
def test_a_wrapper_that_launches_nothing_is_undecided(check):
    idle = planted({ALLOCATION: OWN, LAUNCH: FALLBACK}, NAMED)
    outcomes = judged(idle, check, 1, shapes=((3, 8),))
    assert [(o.verdict, o.message) for o in outcomes] == [(Verdict.UNDECIDED, call_subject.NOT_LAUNCHED)]


@pytest.mark.parametrize(
    ("check", "instead"),
    [
        ("forward_error", "pass"),
        ("forward_error", f"{FALLBACK}[..., :-1]"),
        ("memory", f"{FALLBACK}; input.detach().mul_(2)"),
        ("formula", "y.zero_()"),
        ("influence", "y.zero_()"),
        ("running_bound", "y.zero_()"),
    ],
)
def test_what_a_wrapper_gets_wrong_without_a_launch_is_found(check, instead):
    wrong = planted({ALLOCATION: OWN, LAUNCH: instead}, NAMED)
    outcomes = judged(wrong, check, 1, hazards=("ordinary",), shapes=((3, 8),))
    assert failures(outcomes)
    assert verdicts(outcomes) == {Verdict.FAIL, Verdict.UNDECIDED}


@pytest.mark.parametrize("check", ["batch_invariance", "metamorphic"])
def test_no_pass_rests_on_a_run_of_another_case_that_launched_nothing(check):
    once = f"""if "ran" not in globals():
            globals()["ran"] = True
            {LAUNCH}
        else:
            {FALLBACK}"""
    plan = {"hazards": ("small_integers",), "shapes": ((3, 8),), "layouts": ("contiguous",), "eps": (1e-5,)}
    for stem, launch in {"always": LAUNCH, "once": once}.items():
        changes = {ALLOCATION: OWN, LAUNCH: launch, "trees=": 'guarantees={"batch_invariance"}, trees='}
        outcomes = judged(planted(changes, NAMED), check, 1, **plan)
        assert (Verdict.PASS in verdicts(outcomes)) == (stem == "always")
        idle = Outcome(verdict=Verdict.UNDECIDED, message=call_subject.NOT_LAUNCHED)
        assert (idle in outcomes) == (stem == "once")


def test_a_launch_of_no_blocks_is_no_launch():
    none = f"{LAUNCH.replace('x.numel() // columns', '0')}; {FALLBACK}"
    idle = planted({ALLOCATION: OWN, LAUNCH: none}, NAMED)
    assert verdicts(judged(idle, "forward_error", 1, shapes=((3, 8),))) == {Verdict.UNDECIDED}


def test_nothing_has_to_be_launched_for_nothing():
    right = planted({ALLOCATION: OWN}, NAMED)
    outcomes = judged(right, "device", 1, shapes=((0, 8),))
    assert Verdict.PASS in verdicts(outcomes)
    (case,) = cases_of(right, "device", "float32", 1, shapes=((0, 8),))
    (full,) = cases_of(right, "device", "float32", 1, shapes=((3, 8),))
    line = Line(subject="s", check="device", dtype="float32", backend="machine", variance="two_pass")
    tally.add(line, case, outcomes, outside=False)
    assert line_verdict(line) is Verdict.PASS
    idle = Outcome(verdict=Verdict.UNDECIDED, message=call_subject.NOT_LAUNCHED)
    tally.add(line, full, [idle], outside=False)
    assert line_verdict(line) is Verdict.UNDECIDED, "a case with nothing to compute makes up for no other"
    tally.add(line, full, outcomes, outside=False)
    assert line_verdict(line) is Verdict.PASS


def test_each_place_that_counts_launches_tells_idle_wrappers():
    """The count is of the process: a check may run a subject several times, in sessions of its own."""
    idle = planted({ALLOCATION: OWN, LAUNCH: FALLBACK}, NAMED)
    assert backend("interpreter").launched(idle) is not None
    assert backend("cuda").launched(idle) is not None
    assert backend("cuda").launched(idle.differing(language="cuda")) is None, "it may be a compiled extension"
    assert backend("eager").launched(idle) is None
