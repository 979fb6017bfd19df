"""influence: what each result may and must depend on, and the proof by other values."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from checks_support import (
    FAULTY,
    KERNELS,
    cases_of,
    examination,
    failures,
    faulty,
    machine,
    outcomes_of,
    passes,
    subject_of,
    subject_of_texts,
)

from verifier.checks import check, influence
from verifier.ops import op
from verifier.records.verdict import Verdict

pytest.importorskip("triton", reason="influence is tried on Triton kernels; Triton is not installed")


def influences(stem, dtype="float16", count=2, **changes):
    """Return the outcomes of a faulty kernel in the machine."""
    with machine() as place:
        return outcomes_of(faulty(stem), "influence", dtype, place, count, **changes)


def test_a_row_that_is_read_and_multiplied_by_zero_is_named():
    bad = failures(influences("reads_neighbour_row_triton", shapes=((5, 7),)))
    assert "depends on row" in bad[0].message
    assert {o.output for o in bad} == {"output"}


def test_the_gradient_of_another_column_is_named():
    bad = failures(influences("grad_weight_of_next_column_triton", shapes=((3, 7),)))
    assert {o.output for o in bad} == {"grad_weight", "grad_bias"}
    assert all("depends on entries" in o.message for o in bad)


def test_lost_rows_are_named_with_their_pattern():
    bad = failures(influences("row_lost_from_sums_triton", shapes=((40, 7),)))
    assert {o.output for o in bad} == {"grad_weight", "grad_bias"}
    assert all("does not depend on rows 7, 15, 23, 31, 39" in o.message for o in bad)
    assert all("r % 8 == 7" in o.message for o in bad)


@pytest.mark.parametrize(("dtype", "architecture"), [("float16", 80), ("bfloat16", 90), ("float32", 100)])
def test_a_row_whose_bits_are_changed_as_integers_is_named(dtype, architecture):
    """The sources of a value outlive the operations on its bits."""
    with machine(architecture=architecture) as place:
        subject = faulty("neighbour_row_through_bits_triton")
        bad = failures(outcomes_of(subject, "influence", dtype, place, 2, shapes=((5, 7),)))
    assert "depends on row" in bad[0].message
    assert {o.output for o in bad} == {"output"}


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        (stem, name)
        for stem in ("reads_neighbour_row_triton", "grad_weight_of_next_column_triton")
        for name in ("forward_error", "gradient", "gradcheck")
        if name != "gradient" or faulty(stem).differentiable
    ],
)
def test_no_comparison_of_values_sees_it(stem, name):
    subject = faulty(stem)
    with machine() as place:
        found = outcomes_of(subject, name, "float16", place, 3, hazards=("ordinary",), joint=False)
    assert passes(found)
    assert not failures(found)


@pytest.mark.parametrize("stem", ["layer_norm_single_block_triton", "batch_norm_triton", "group_norm_triton"])
def test_right_kernels_pass(stem):
    """Of every op one passes in tests/kernels; these have rows, channels and groups."""
    with machine() as place:
        found = outcomes_of(subject_of(KERNELS / f"{stem}.py"), "influence", "float16", place, 2)
    assert {o.verdict for o in found} == {Verdict.PASS}


AGAIN = Path(__file__).with_name("rms_norm_rstd_again.py")
AS_IT_IS, OF_ANOTHER = "tl.load(dy + place,", "tl.load(dy + place + tl.where(tl.arange(0, BLOCK) == 0, 1, 0),"


@pytest.mark.parametrize("wrong", [False, True])
def test_a_backward_pass_that_computes_statistics_again_is_judged(wrong):
    """Every entry of input is part of them, and so of every product: grad_output alone tells."""
    text = AGAIN.read_text(encoding="utf-8")
    assert AS_IT_IS in text
    subject = subject_of_texts(
        {AGAIN.name: text.replace(AS_IT_IS, OF_ANOTHER) if wrong else text}, AGAIN.name
    )
    with machine() as place:
        found = outcomes_of(subject, "influence", "float32", place, 3)
    assert {o.verdict for o in found if o.output in {"", "grad_weight"}} == {
        Verdict.FAIL if wrong else Verdict.PASS
    }


# -- what is demanded ------------------------------------------------------------------------------


def case_of(stem, shape, variant=0):
    """Return a case of a kernel's op with gradients."""
    subject = subject_of(KERNELS / f"{stem}.py")
    cases = cases_of(subject, "influence", "float32", 12, shapes=(shape,), layouts=("contiguous",))
    return [case for case in cases if case.scalars.get("training", True)][variant]


def test_entries_of_group_norm_sum_the_rows_of_their_channels():
    case = case_of("group_norm_triton", (6, 8))
    entries = influence.entries_of(op("group_norm"), case)
    must, may = influence._demanded(op("group_norm"), case, "rows", "grad_bias", (entries.max() + 1,))
    assert (must == may).all()
    for entry, sources in enumerate(must.tolist()):
        rows = np.nonzero((entries == entry).any(axis=1))[0]
        assert sources == sum(1 << int(row) for row in rows)
    assert 0 < len(rows) < case.rows


def test_entries_of_batch_norm_belong_to_one_row():
    case = case_of("batch_norm_triton", (6, 8))
    must, _ = influence._demanded(op("batch_norm"), case, "rows", "grad_weight", (6,))
    assert must.tolist() == [1 << row for row in range(6)]


def test_a_softmax_has_no_entries():
    assert influence.entries_of(op("softmax"), case_of("softmax_triton", (4, 5))) is None


def test_sources_stand_where_the_rows_do():
    case = case_of("batch_norm_triton", (6, 8))
    sources = influence.sources_of(op("batch_norm"), case, "rows")
    x = sources["input"]
    assert (np.moveaxis(x, 1, 0).reshape(6, -1) == (1 << np.arange(6, dtype=np.uint64))[:, None]).all()
    assert "weight" not in sources
    assert set(influence.sources_of(op("batch_norm"), case, "rows of grad_output")) == {"grad_output"}


@pytest.mark.parametrize(
    ("rows", "words"),
    [((3, 7, 11), "r % 4 == 3"), ((2, 3, 4), "3 rows together"), ((9,), "the last row"), ((1, 2, 5), "")],
)
def test_patterns_of_rows(rows, words):
    found = influence._pattern(rows, 10)
    assert words in found if words else not found


# -- proof -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lacking", [True, False])
def test_sources_that_no_value_confirms_decide_nothing(lacking):
    """A right kernel, a false suspicion: row 0 of output depends on row 0, and not on row 1."""
    subject = subject_of(KERNELS / "layer_norm_two_pass_triton.py")
    wrong = np.zeros((3, 7), dtype=np.bool_)
    wrong[0] = True
    suspicion = influence.Suspicion(
        output="output", kind="rows", source=0 if lacking else 1, lacking=lacking, wrong=wrong, sources=(1,)
    )
    with machine() as place:
        examining = examination(subject, "influence", "float16", place)
        (case,) = cases_of(subject, "influence", "float16", 1, shapes=((3, 7),))
        session = session_of(examining, case)
        doubt = influence._proved(session, suspicion, True)
        assert (doubt.verdict, doubt.doubtful) == (Verdict.UNDECIDED, lacking)
        assert ("lost sight" in doubt.message) is lacking
        true = replace(suspicion, source=1 - suspicion.source)
        assert influence._proved(session, true, True).verdict is Verdict.FAIL


def session_of(examining, case):
    """Return the session in which a check sees a case."""
    from verifier.checks.support.session import Session
    from verifier.execution.backends import backend

    place = examining.runner.backend
    setting = backend(place).setting(examining.subject, case.dtype)
    return Session(
        subject=examining.subject, case=case, backend=place, setting=setting, run=examining.runner.run
    )


def test_memory_between_the_elements_has_a_tag():
    """A right kernel's sources where the input has gaps: none is the gaps'."""
    from strategies.layouts import Layout

    subject = subject_of(KERNELS / "layer_norm_two_pass_triton.py")
    with machine() as place:
        examining = examination(subject, "influence", "float16", place)
        (case,) = cases_of(subject, "influence", "float16", 1, shapes=((3, 7),))
        gapped = case.with_layouts({"input": Layout(row_padding=3), "grad_output": Layout(row_padding=5)})
        session = session_of(examining, gapped)
        outcomes = check("influence").check(session)
        assert {o.verdict for o in outcomes} == {Verdict.PASS}
        read = faulty("reads_before_the_row_triton")
        session = session_of(examination(read, "influence", "float16", place), gapped)
        bad = failures(check("influence").check(session))
    assert any("memory between the elements" in o.message for o in bad)


def test_only_the_machine_follows_sources():
    subject = subject_of(KERNELS / "layer_norm_two_pass_triton.py")
    skips = check("influence").skips
    assert skips(subject, op("layer_norm"), "float16", "machine") is None
    assert "machine" in skips(subject, op("layer_norm"), "float16", "cuda")
    assert "torch" in skips(subject.differing(language="torch"), op("layer_norm"), "float16", "eager")


# -- sources that are lost ------------------------------------------------------------------------------


def test_lost_sources_are_no_pass(monkeypatch):
    """A right kernel of which an operation on the way is not followed."""
    monkeypatch.setattr(influence, "_lost", lambda counters: "somewhere")
    subject = subject_of(KERNELS / "layer_norm_two_pass_triton.py")
    with machine() as place:
        (case,) = cases_of(subject, "influence", "float16", 1, shapes=((3, 7),))
        (outcome,) = influence.check(session_of(examination(subject, "influence", "float16", place), case))
    assert outcome.verdict is Verdict.UNDECIDED
    assert "somewhere" in outcome.message


def test_integers_that_depend_on_something_are_counted_where_torch_takes_them():
    import torch

    from verifier.machine.shadow.arithmetics import make
    from verifier.machine.shadow.host_operations import HostSlots
    from verifier.machine.shadow.taint_slots import TaintSlots

    slots, x, plain = TaintSlots(make("taint")), torch.ones(3), torch.ones(3, dtype=torch.int32)
    slots.set(x, np.uint64([1, 2, 4]))
    slots.set(plain, np.uint64([0, 0, 0]))
    with HostSlots(slots):
        plain.float()
        assert not slots.counters.uncovered
        x.view(torch.int32).float()
    assert slots.counters.uncovered == {"_to_copy": 1}


def test_unknown_operations_of_torch_in_place_are_counted():
    import torch

    from verifier.machine.shadow.arithmetics import make
    from verifier.machine.shadow.host_operations import HostSlots
    from verifier.machine.shadow.taint_slots import TaintSlots

    slots, x = TaintSlots(make("taint")), torch.ones(3)
    slots.set(x, np.uint64([1, 2, 4]))
    with HostSlots(slots):
        x.mul_(2.0)
        x.zero_()
        assert not slots.counters.uncovered
        slots.set(x, np.uint64([1, 2, 4]))
        x.clamp_(0.0, 1.0)
    assert slots.counters.uncovered == {"clamp_": 1}
    assert "clamp_" in influence._lost(slots.counters)


def test_operations_of_torch_on_lists_are_counted():
    import torch

    from verifier.machine.shadow.arithmetics import make
    from verifier.machine.shadow.host_operations import HostSlots
    from verifier.machine.shadow.taint_slots import TaintSlots

    slots, x = TaintSlots(make("taint")), torch.ones(3)
    slots.set(x, np.uint64([1, 2, 4]))
    with HostSlots(slots):
        torch._foreach_neg([torch.ones(3), torch.zeros(3)])
        torch.cat([torch.ones(3), x])
        torch.stack((x, x))
        assert not slots.counters.uncovered
        torch._foreach_neg([torch.ones(3), x])
    assert slots.counters.uncovered == {"_foreach_neg": 1}


READ = "out += 0.0 * tl.load(neighbour, mask=inside, other=0.0).to(tl.float32)"


@pytest.mark.parametrize(
    ("how", "verdict"),
    [
        ("out = tl.where(next > 3e4, 0.0, out)", Verdict.FAIL),
        ("out = tl.where(next == 12.25, 0.0, out)", Verdict.UNDECIDED),
        ("out = tl.where(next > 3e4, out, out + 0.0)", Verdict.UNDECIDED),
    ],
)
def test_another_row_that_is_only_compared_is_seen_in_recorded_expressions(how, verdict):
    text = (FAULTY / "reads_neighbour_row_triton.py").read_text()
    assert READ in text
    text = text.replace(READ, f"next = tl.load(neighbour, mask=inside, other=0.0).to(tl.float32)\n    {how}")
    with machine() as place:
        subject = subject_of_texts({"reads.py": text}, "reads.py")
        outcomes = outcomes_of(subject, "influence", "float16", place, 1, shapes=((5, 7),))
    assert {o.verdict for o in outcomes} == {verdict}
    assert all("depends on row" in o.message for o in outcomes)


def test_a_pass_says_what_holds_for_all_inputs_of_the_shape():
    for stem, said in (("rms_norm_triton", True), ("layer_norm_published_tutorial_newer_triton", False)):
        with machine() as place:
            found = outcomes_of(
                subject_of(KERNELS / f"{stem}.py"), "influence", None, place, 1, shapes=((3, 7),)
            )
        assert (influence.FOR_ALL in [o.measured for o in found]) == said  # the second takes a lock
