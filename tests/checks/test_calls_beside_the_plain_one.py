"""Modes of torch, choices of gradients and repeated calls: what each demand catches, and what is right."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from checks_support import (
    FAULTY,
    KERNELS,
    SUPPORT,
    cases_of,
    examination,
    failures,
    faulty,
    machine,
    outcomes_of,
    passes,
    planted,
    subject_of,
)

from verifier import Domain, KnownDefect
from verifier.cases.plan import Plan
from verifier.checks import check, modes, partial_gradients, repeated_calls
from verifier.checks.support.attempts import EVALUATION, FEW_SHAPES, Attempt, Attempts, key
from verifier.checks.support.attempts import outcomes_of as judged
from verifier.checks.support.session import Session
from verifier.execution import Runner
from verifier.execution.backends import backend
from verifier.execution.call_subject import execute
from verifier.ops import op
from verifier.records.observation import Observation
from verifier.records.verdict import Verdict
from verifier.subjects.load_file import load

RIGHT = SUPPORT / "right_kernel.py"
CAUGHT = {
    "version_read_in_inference_mode": modes.INFERENCE,
    "bias_forgotten_without_grad": "under torch.no_grad",
    "means_by_products_under_autocast": modes.AUTOCAST,
    "weight_rounded_under_autocast": modes.AUTOCAST,
    "eps_raised_under_autocast_to_float16": modes.AUTOCAST_TO_HALF,
    "sums_in_default_dtype": "with bfloat16 as default dtype",
    "columns_lost_in_deterministic_mode": modes.DETERMINISTIC,
    "partials_of_132_processors_triton": "with 148 multiprocessors",
    "rows_lost_by_one_processor_triton": "with 1 multiprocessor",
    "unwritten_bias_without_grad_triton": "under torch.no_grad",
    "gradient_of_bias_only_with_weight": "where bias alone requires a gradient",
    "gradient_of_residual_only_with_input": "where residual alone requires a gradient",
    "gradient_of_one_lost_in_long_rows_triton": "where weight alone requires a gradient",
    "gradients_of_unused_output_taken_for_none": "where new_residual alone is used",
    "adds_to_the_last_sums": repeated_calls.SECOND,
    "output_buffer_shared": repeated_calls.LATER,
    "statistics_kept_on_function": repeated_calls.BOTH,
    "weight_converted_once": repeated_calls.CHANGED,
    "statistics_of_input_remembered": repeated_calls.CHANGED,
    "input_saved_unseen": "where input was changed in place before the backward pass",
    "statistics_read_again_in_backward": "where running_mean was changed in place before the backward pass",
    "bias_forgotten_in_long_rows_without_grad_triton": "under torch.no_grad",
    "eps_larger_in_many_rows_under_autocast_triton": modes.AUTOCAST,
    "rows_lost_by_small_devices_triton": "with 1 multiprocessor",
    "weight_left_out_of_lone_gradient_triton": "where input alone requires a gradient",
    "eps_larger_in_first_call_triton": repeated_calls.FIRST,
    "buffer_of_first_call_kept_triton": repeated_calls.AFTER,
    "weight_saved_unseen": "where weight was changed in place before the backward pass",
}
SHAPES = {
    "gradient_of_one_lost_in_long_rows_triton": ((1, 2049),),
    "bias_forgotten_in_long_rows_without_grad_triton": ((1, 4097),),
    "eps_larger_in_many_rows_under_autocast_triton": ((3000, 3),),
    "rows_lost_by_small_devices_triton": ((2001, 3),),
    "weight_left_out_of_lone_gradient_triton": ((1001, 3),),
    "eps_larger_in_first_call_triton": ((2, 1536),),
    "buffer_of_first_call_kept_triton": ((4097, 3),),
}
"""Where a fault shows that is not in every row."""
SMALL = ((4, 33),)
LARGE = {"max_rows": 1 << 13, "max_elements": 1 << 14}
"""What a plan allows where these are asked for."""
CHECK_OF = {stem: m.NAME for m in (modes, partial_gradients, repeated_calls) for stem in m.CATCHES}
OTHERS = ("context", "determinism", "finite", "global_state", "claim")
"""Checks of this kind that kernels of this language meet; the basic ones are asked in tests/audit."""
SEEN_FIRST = {("eps_larger_in_first_call_triton", name) for name in (*OTHERS, "modes", "partial_gradients")}
"""Whichever check calls first sees what is wrong in a first call: these are asked about other shapes."""


def against(outcomes):
    return [*failures(outcomes), *(o for o in outcomes if o.verdict is Verdict.REFUSED)]


def test_each_faulty_kernel_shows_one_demand():
    assert CAUGHT.keys() == CHECK_OF.keys()


def seen_in(stem, check_name, count):
    """Judge a faulty kernel where its language runs, by `repeated_calls` in a process of its own."""
    if not stem.endswith("_triton"):
        return outcomes_of(faulty(stem), check_name, count=count)
    shapes = SMALL if (stem, check_name) in SEEN_FIRST else SHAPES.get(stem, SMALL)
    if check_name == "repeated_calls":
        return judged_by_children(faulty(stem), "machine", count, shapes)
    with machine(strict=True, poison=0xFF) as place:
        return outcomes_of(faulty(stem), check_name, place=place, count=count, shapes=shapes, **LARGE)


def judged_by_children(subject, place, count, shapes):
    """Return outcomes of `repeated_calls`, which asks for fresh processes."""
    examining = examination(subject, "repeated_calls", None, place)
    with Runner(place) as examining.runner:
        cases = cases_of(subject, "repeated_calls", count=count, shapes=shapes, **LARGE)
        return [outcome for case in cases for outcome in examining.judge(case)[0]]


@pytest.mark.parametrize("stem", CAUGHT)
def test_the_demand_that_a_faulty_kernel_breaks_is_named(stem):
    found = against(seen_in(stem, CHECK_OF[stem], 1))
    assert any(CAUGHT[stem] in o.message for o in found), [o.message for o in found]


@pytest.mark.parametrize("stem", CAUGHT)
def test_no_other_check_sees_it(stem):
    asked = {*OTHERS, "modes", "partial_gradients", "repeated_calls"} - {CHECK_OF[stem]}
    subject = faulty(stem)
    skipped = {n for n in asked if check(n).skips(subject, op(subject.op), subject.dtypes[0], "machine")}
    few = 1 if stem in SHAPES else 2  # a second case leaves weights out: of many rows one case is enough
    for name in sorted(asked - skipped):
        assert not against(seen_in(stem, name, few)), name


@pytest.mark.parametrize("name", ["modes", "partial_gradients", "repeated_calls"])
def test_everything_that_must_be_tried_is_tried_in_one_case(name):
    subject = subject_of(RIGHT)
    if name == "repeated_calls":
        found = judged_by_children(subject, "eager", 1, SMALL)
    else:
        found = outcomes_of(subject, name, count=1)
    assert {t for o in passes(found) for t in o.tried} == {*check(name).must_be_tried(subject)}
    assert {o.verdict for o in found} == {Verdict.PASS}


@pytest.mark.parametrize("inside", [True, False])
def test_of_small_shapes_first_calls_are_made_in_the_first_or_in_all_where_that_one_may_be_left_out(inside):
    subject = subject_of(RIGHT)
    limited = subject.differing(domain=Domain(min_columns=0 if inside else 100))
    found = judged_by_children(limited, "eager", 1, FEW_SHAPES[1:])
    assert not against(found)
    tried = {t for o in found for t in o.tried}
    assert (repeated_calls.FIRST in tried, repeated_calls.AFTER in tried) == (not inside, not inside)


def test_a_smaller_call_that_ends_in_an_error_is_no_failure_of_the_larger_one(tmp_path):
    (tmp_path / "long_alone.py").write_text(
        RIGHT.read_text().replace(
            "    return _LayerNorm.apply",
            "    if input.shape[-1] < 20:\n        raise KeyError(20)\n    return _LayerNorm.apply",
        )
    )
    found = judged_by_children(subject_of(tmp_path / "long_alone.py"), "eager", 1, SMALL)
    assert not against(found)
    assert [o.message for o in found if repeated_calls.AFTER in o.tried] == [
        "the smaller case ends in an error: KeyError: 20"
    ]


def test_halves_are_tried_in_float32_under_autocast_too():
    found = outcomes_of(subject_of(RIGHT), "modes", "float16", count=1)
    assert [o.tried for o in passes(found)][-1] == (modes.SINGLE,)


def test_an_argument_that_is_not_taken_is_not_changed():
    softmax = subject_of(KERNELS / "softmax_torch.py")
    wanted = repeated_calls.must_be_tried(softmax)
    assert "where input was changed in place before the backward pass" in wanted
    assert not any("weight" in words for words in wanted)
    assert partial_gradients.must_be_tried(softmax) == ["where no argument requires a gradient"]


# -- each mode and each device by itself ---------------------------------------------------------------


def cast_to(dtype):
    """Whether torch casts to a dtype, on the CPU and on a GPU."""
    devices = ("cpu", "cuda")
    return all(torch.is_autocast_enabled(d) and torch.get_autocast_dtype(d) == dtype for d in devices)


SWITCHED_OFF = {
    "by keywords": lambda: torch.set_autocast_enabled(device_type="cuda", enabled=False),
    "with one keyword": lambda: torch.set_autocast_enabled("cuda", enabled=False),
    "in the old way": lambda: torch.set_autocast_enabled(False),
    "as a context": lambda: torch.autocast("cuda", enabled=False).__enter__(),
}


@pytest.mark.parametrize("way", SWITCHED_OFF)
def test_however_a_kernel_switches_autocast_off_on_a_gpu_the_machine_casts_no_more(way):
    with modes._autocast():
        SWITCHED_OFF[way]()
        assert not torch.is_autocast_enabled("cpu")
        torch.set_autocast_dtype(device_type="cuda", dtype=torch.float16)
        assert torch.get_autocast_dtype("cpu") == torch.float16
        torch.set_autocast_enabled("cuda", True)
        assert cast_to(torch.float16)
    assert not torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cuda")


FLAGS = {
    "under torch.no_grad": lambda: not torch.is_grad_enabled() and not torch.is_inference_mode_enabled(),
    modes.INFERENCE: torch.is_inference_mode_enabled,
    modes.AUTOCAST: lambda: cast_to(torch.bfloat16),
    modes.AUTOCAST_TO_HALF: lambda: cast_to(torch.float16),
    "with float64 as default dtype": lambda: torch.get_default_dtype() == torch.float64,
    "with bfloat16 as default dtype": lambda: torch.get_default_dtype() == torch.bfloat16,
    modes.DETERMINISTIC: torch.are_deterministic_algorithms_enabled,
}


@pytest.mark.parametrize("mode", modes.MODES)
def test_what_is_wrong_in_one_mode_alone_is_seen_and_named_there_alone(mode):
    right = subject_of(RIGHT)

    def wrong(input, weight=None, bias=None, eps=1e-5):
        out = right.function(input, weight, bias, eps)
        return out * 1.01 if FLAGS[mode]() else out

    found = against(outcomes_of(replace(right, function=wrong), "modes", "float32", count=1))
    assert {t for o in found for t in o.tried} - {modes.SINGLE} == {mode}


@pytest.mark.parametrize("choice", partial_gradients.must_be_tried(subject_of(RIGHT)))
def test_what_is_wrong_where_one_choice_of_gradients_is_made_is_seen_and_named_there_alone(choice):
    right = subject_of(RIGHT)

    def wrong(input, weight=None, bias=None, eps=1e-5):
        given = {"input": input, "weight": weight, "bias": bias}
        asked = [name for name, tensor in given.items() if tensor is not None and tensor.requires_grad]
        words = f"where {' and '.join(asked)} alone" if asked else "where no argument"
        out = right.function(input, weight, bias, eps)
        return out * 1.01 if choice.startswith(words) else out

    found = against(outcomes_of(replace(right, function=wrong), "partial_gradients", "float32", count=1))
    assert {t for o in found for t in o.tried} == {choice}


@pytest.mark.parametrize("number", modes.PROCESSORS.values())
def test_what_is_wrong_on_a_device_of_one_size_alone_is_seen_and_named_there_alone(number):
    pytest.importorskip("triton", reason="the kernel is Triton's; Triton is not installed")
    changes = {
        "tl.maximum(tl.num_programs(0), 2)": "tl.num_programs(0)",
        "x.numel() // columns, columns": f"x.numel() // columns - (programs == {number}), columns",
    }
    wrong = planted(changes, FAULTY / "rows_lost_by_one_processor_triton.py")
    with machine(strict=True, poison=0xFF) as place:
        found = against(outcomes_of(wrong, "modes", place=place, count=1, shapes=((4, 33),)))
        assert {t for o in found for t in o.tried} == {w for w, n in modes.PROCESSORS.items() if n == number}
        assert not against(outcomes_of(wrong, "forward_error", place=place, count=1, shapes=((4, 33),)))


# -- other bits ------------------------------------------------------------------------------------


def attempt(subject, factor, name="output", unsteady=()):
    """Return session and observation of a demand whose result is the plain one times a factor."""
    (case,) = cases_of(subject, "modes", "float32", count=1, shapes=((4, 33),))
    session = Session(
        subject=subject,
        case=case,
        backend="eager",
        setting=backend("eager").setting(subject, "float32"),
        run=lambda *_, **__: None,
    )
    plain = execute(subject, case, backend=backend("eager")).outputs[name]
    tried = Attempt(demand="sideways", differing={name: "bits differ: in one of 2 elements"})
    return session, Observation(
        status="ok",
        outputs={key("sideways", name): plain * factor},
        found=Attempts(tried=(tried,), unsteady=unsteady),
    )


def test_other_bits_within_the_bound_are_right():
    (outcome,) = judged(*attempt(subject_of(RIGHT), 1 + 2**-23), same_code=True)
    assert (outcome.verdict, outcome.tried) == (Verdict.PASS, ("sideways",))


def test_other_numbers_are_wrong():
    (outcome,) = judged(*attempt(subject_of(RIGHT), 1.01), same_code=False)
    assert outcome.verdict is Verdict.FAIL
    assert outcome.message.endswith(", sideways")


@pytest.mark.parametrize(
    ("same_code", "unsteady", "verdict", "doubtful"),
    [
        (True, (), Verdict.FAIL, False),
        (False, (), Verdict.UNDECIDED, True),
        (True, ("output",), Verdict.UNDECIDED, False),
    ],
)
def test_without_a_bound_other_bits_are_wrong_only_where_calls_repeat_them(
    same_code, unsteady, verdict, doubtful
):
    subject = subject_of(RIGHT).differing(variance=None)
    (outcome,) = judged(*attempt(subject, 1 + 2**-23, unsteady=unsteady), same_code=same_code)
    assert (outcome.verdict, outcome.doubtful, outcome.output) == (verdict, doubtful, "output")
    assert outcome.message.startswith("output sideways: bits differ: in one of 2 elements")


def test_without_the_guarantee_of_equal_bits_eager_calls_need_not_have_them():
    subject = subject_of(RIGHT).differing(variance=None, guarantees=frozenset())
    (outcome,) = judged(*attempt(subject, 1 + 2**-23), same_code=True)
    assert (outcome.verdict, outcome.doubtful) == (Verdict.UNDECIDED, False)


# -- what torch itself refuses -----------------------------------------------------------------------


def raising(text):
    def raises(input, weight=None, bias=None, eps=1e-5):
        if torch.are_deterministic_algorithms_enabled():
            raise RuntimeError(text)
        return subject_of(RIGHT).function(input, weight, bias, eps)

    return raises


TEXT = (
    "f does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms(True)'"
)


@pytest.mark.parametrize(
    ("guarantees", "text", "refused"),
    [((), TEXT, False), (("determinism",), TEXT, True), ((), "no", True)],
)
def test_only_an_algorithm_that_torch_lacks_excuses_an_error(guarantees, text, refused):
    subject = replace(subject_of(RIGHT), function=raising(text), guarantees=frozenset(guarantees))
    found = outcomes_of(subject, "modes", count=1)
    assert (Verdict.REFUSED in {o.verdict for o in found}) == refused
    assert not failures(found)


# -- how many cases ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["modes", "partial_gradients", "repeated_calls"])
def test_a_line_has_no_more_cases_than_tell_something_new(name):
    line = examination(subject_of(RIGHT), name).run()
    assert 0 < line.counts.total() <= check(name).plan(subject_of(RIGHT), op("layer_norm")).most
    assert not line.untried
    assert Plan().most is None


@pytest.mark.parametrize("name", ["modes", "partial_gradients", "repeated_calls"])
def test_weights_are_left_out_in_a_case_and_a_norm_that_trains_evaluates_in_another(name):
    first, second = cases_of(subject_of(RIGHT), name, count=2)
    assert ("weight" in first.given, "weight" in second.given) == (True, False)
    line = examination(subject_of(KERNELS / "batch_norm_torch.py"), name, "float32").run()
    assert not line.untried
    assert EVALUATION in check(name).must_be_tried(subject_of(KERNELS / "batch_norm_torch.py"))


# -- compiled kernels --------------------------------------------------------------------------------

SAVED = "ctx.save_for_backward(input, weight, mean, rstd)"
READ = "x, weight, mean, rstd = ctx.saved_tensors"
MEAN = "torch.empty(rows, dtype=statistics, device=input.device)"
PLANTED = {
    "modes": (
        {MEAN: MEAN.replace("dtype=statistics, ", "")},
        "with bfloat16 as default dtype",
    ),
    "partial_gradients": (
        {"ctx.needs_input_grad[1:3]": "ctx.needs_input_grad[:2]"},
        "where weight alone requires a gradient",
    ),
    "repeated_calls": (
        {
            SAVED: f"{SAVED}; _LayerNorm.kept = mean, rstd",
            READ: f"{READ}; mean, rstd = _LayerNorm.kept",
        },
        repeated_calls.BOTH,
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_it_is_seen_in_a_compiled_kernel_and_the_check_of_gradients_sees_nothing(name):
    pytest.importorskip("triton", reason="the kernels are Triton's; Triton is not installed")
    changes, words = PLANTED[name]
    wrong = planted(changes, KERNELS / "layer_norm_two_pass_triton.py")
    with machine(strict=True) as place:
        found = failures(outcomes_of(wrong, name, "float32", place, count=1))
        assert any(words in o.message for o in found), [o.message for o in found]
        assert not against(outcomes_of(wrong, "gradient", "float32", place, count=1, shapes=((4, 33),)))


SLOPE = """
from verifier import subject


@subject(op="softmax_backward", language="torch", dtypes=("float32",), returns=("grad_input",))
def slope(grad_output, output):
    KEEP
    return output * (grad_output - (grad_output * output).sum(-1, keepdim=True))
"""


@pytest.mark.parametrize(
    ("line", "verdicts"), [("pass", {Verdict.PASS}), ("output._version", {Verdict.PASS, Verdict.REFUSED})]
)
def test_a_backward_pass_without_an_input_is_called_in_inference_mode(line, verdicts, kernel_file):
    (slope,) = load(kernel_file(SLOPE.replace("KEEP", line), head="")).subjects
    found = outcomes_of(slope, "modes", "float32", count=2)
    assert {one.verdict for one in found} == verdicts


def test_a_backward_pass_of_which_no_result_is_declared_is_no_pass(kernel_file):
    text = SLOPE.replace("KEEP", "pass").replace(', returns=("grad_input",)', "")
    (slope,) = load(kernel_file(text, head="")).subjects
    (found, *_) = outcomes_of(slope, "gradient", "float32", count=1)
    assert found.verdict is Verdict.FAIL
    assert "softmax_backward gives grad_input: no result could be judged" in found.message


TWO_KERNELS = Path(__file__).parents[1] / "audit" / "reach_kernels" / "two_kernels_triton.py"
OF_MANY_ROWS = {"float(eps), BLOCK=32": "float(eps) + (x.numel() // columns > 100), BLOCK=32"}


@pytest.mark.parametrize("changes", [{}, OF_MANY_ROWS], ids=["right", "wrong"])
def test_what_is_wrong_in_every_mode_is_found_at_the_rows_that_modes_alone_may_have(changes):
    """All modes have the bits of the plain call, so that comparing them finds nothing."""
    subject = planted(changes, TWO_KERNELS)
    with machine(strict=True, poison=0xFF) as place:
        found = outcomes_of(subject, "modes", place=place, count=2, shapes=(modes.MANY_ROWS,))
        known = replace(
            subject, known_defects=(KnownDefect(id="of-many-rows", check="gradient", reason="known"),)
        )
        told = outcomes_of(known, "modes", place=place, count=1, shapes=(modes.MANY_ROWS,))
    assert passes(found)
    assert all(outcome.message.endswith("in the plain call") for outcome in failures(found))
    assert bool(failures(found)) == bool(changes)
    assert not failures(told)  # where it is declared, that check tells it
