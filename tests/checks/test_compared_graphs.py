"""Recorded kernels are the computation that they declare, or the first term that differs is named."""

from collections import Counter
from pathlib import Path

import pytest
from checks_support import KERNELS, planted
from triton_release import ALL_LANES_STORE, since

pytest.importorskip("triton", reason="recorded are Triton's kernels; Triton is missing")

from verifier.arithmetic.graph.normal_form import Normaliser
from verifier.cases.recipe import Recipe, Values, build
from verifier.checks.support import compared_graphs
from verifier.checks.support.compared_graphs import Agreement, Disagreement, compared
from verifier.execution.backends import backend
from verifier.execution.record_graph import record
from verifier.machine import session
from verifier.ops import op
from verifier.subjects.load_file import builtin_files, load

FAULTY = Path(__file__).parents[1] / "faulty_kernels"
OF_FOUR = 7 if since("3.8") else 8
"""The depth of a sum over a warp whose lanes have four elements each: they are added by halves, before in
turn."""


def found_of(path, dtype, columns, *, gradients=False, first="", **changes):
    subject = load(path).subjects[0].differing(**changes)
    recipe = Recipe(rows=2, columns=columns, input=Values(seed=0))
    case = build(op(subject.op), subject, dtype, recipe, gradients=gradients)
    with session():
        recording = record(subject, case, backend=backend("machine"), gradients=gradients)
    assert recording.seen.status == "ok", recording.seen.message
    return compared(recording.graph, op(subject.op), subject, case, gradients=gradients, first=first)


def built_in(name):
    (file,) = (file for file in builtin_files() if file.stem == name)
    return file


@pytest.mark.parametrize(
    ("name", "dtype", "columns", "gradients", "claims", "depths"),
    [
        ("layer_norm_two_pass_triton", "float16", 100, False, "EZ", [OF_FOUR, OF_FOUR]),
        ("layer_norm_two_pass_triton", "float32", 33, True, "EZC", [6, 6, 6, 6, 1, 1]),
        ("layer_norm_textbook_triton", "bfloat16", 33, False, "EZ", [6, 6]),
        ("rms_norm_triton", "float32", 33, False, "EZ", [6]),
        ("layer_norm_two_pass_cuda", "float32", 100, False, "EZ", [8, 8]),
        ("layer_norm_textbook_cuda", "float16", 100, False, "EZC", [8, 8]),
    ],
)
def test_a_kernel_is_what_it_declares(name, dtype, columns, gradients, claims, depths):  # noqa: PLR0917 (parameters)
    found = found_of(built_in(name), dtype, columns, gradients=gradients)
    assert isinstance(found, Agreement), found.why
    assert found.claims == claims
    assert [order.depth for order in found.orders] == depths
    assert not found.vanished.size


@pytest.mark.parametrize(
    ("name", "dtype", "columns"),
    [
        ("variance_off_by_one_ulp_triton", "float32", 33),
        ("reads_neighbour_row_triton", "float32", 33),
        ("squares_summed_in_half_triton", "float16", 33),
        ("masked_lanes_counted_triton", "float32", 33),
        ("reciprocals_of_reciprocals_triton", "float32", 33),
    ],
)
def test_a_faulty_kernel_differs(name, dtype, columns):
    found = found_of(FAULTY / f"{name}.py", dtype, columns)
    assert not isinstance(found, Agreement)
    assert found.why


def test_the_first_difference_is_named_with_its_line():
    found = found_of(built_in("layer_norm_two_pass_triton"), "float32", 5, variance="textbook")
    assert not isinstance(found, Agreement)
    assert found.why.startswith("nothing sums the 5 terms like mul.f32(input:f32[0], input:f32[0])")
    found = found_of(FAULTY / "masked_lanes_counted_triton.py", "float32", 33)
    assert "masked_lanes_counted_triton.py:18 of 33 of them takes mul.f32(div.f32(" in found.why
    assert found.why.endswith("as well, 31 times")
    found = found_of(FAULTY / "variance_off_by_one_ulp_triton.py", "float32", 33)
    assert "1.0000001192092896" in found.why
    assert "variance_off_by_one_ulp_triton.py" in found.why


@pytest.mark.parametrize(
    ("name", "gradients", "first", "levels", "ways", "wholes"),
    [
        ("layer_norm_two_pass_triton", False, "", 1, 1, 1),
        (
            "layer_norm_two_pass_triton",
            True,
            "",
            3,
            2,
            2,
        ),  # one claim is admitted for nothing
        ("layer_norm_two_pass_triton", True, "EZC", 1, 1, 1),
        ("layer_norm_welford_triton", True, "", 1, 1, 1),  # it fuses products as no way does
        ("layer_norm_welford_triton", True, "EZF", 2, 21, 1),
        ("rms_norm_triton", True, "", 2, 1, 1),
    ],
)
def test_the_twin_is_built_as_a_whole_once_and_what_ways_share_is_formed_once(  # noqa: PLR0917 (one row)
    name, gradients, first, levels, ways, wholes, monkeypatch
):
    counted = Counter()

    def counting(owner, method):
        original = getattr(owner, method)

        def called(*arguments, **options):
            counted[method] += 1
            return original(*arguments, **options)

        monkeypatch.setattr(owner, method, called)

    counting(compared_graphs._Comparison, "tried")
    counting(compared_graphs._Comparison, "along")
    counting(Normaliser, "normal")
    found = found_of(built_in(name), "float16", 100, gradients=gradients, first=first)
    assert isinstance(found, Agreement), found.why
    # Each level forms the kernel, a few elements of it where fewer claims are asked about;
    # the twin of a way that agrees is formed once more, to be compared.
    assert counted == {"tried": ways, "along": wholes, "normal": levels + wholes}


@pytest.mark.parametrize(
    ("name", "claims"),
    [
        ("layer_norm_welford_triton", "EZFC"),
        ("log_softmax_cuda", "EZFC"),
        ("layer_norm_two_pass_triton", "EZC"),
        ("group_norm_triton", "EZ"),
    ],
)
def test_what_spares_comparing_with_fewer_claims_decides_nothing(name, claims, monkeypatch):
    found = found_of(built_in(name), "float16", 33, gradients=True)
    monkeypatch.setattr(compared_graphs._Comparison, "_fuses_some", lambda *_: False)
    monkeypatch.setattr(compared_graphs, "differ_in_a_few", lambda *_, **__: False)
    compared_whole = found_of(built_in(name), "float16", 33, gradients=True)
    assert (found.claims, found.fired) == (compared_whole.claims, compared_whole.fired)
    assert found.claims == claims


def test_an_element_beside_the_few_that_are_looked_at_first_differs(monkeypatch):
    said = []
    asked = compared_graphs._Comparison.tried
    monkeypatch.setattr(
        compared_graphs._Comparison, "tried", lambda *given: said.append(asked(*given)) or said[-1]
    )
    line = "tl.store(y + row * y_row + column, centred * rstd * w + b, mask=inside)"
    wrong = line.replace("rstd * w", "tl.where(column == 1, rstd * 2.0, rstd) * w")
    file = planted({line: wrong}, KERNELS / "layer_norm_published_series_triton.py").path
    found = found_of(file, "float16", 33)
    assert any(not isinstance(one, Disagreement) for one in said)  # nothing showed at first
    assert isinstance(found, Disagreement)
    assert "output" not in found.results
    assert found.why.startswith("output: add.f32(")  # 2 * rstd is rstd + rstd
    assert "layer_norm_published_series_triton.py:38" in found.why


def test_lanes_keep_means_of_their_own_only_where_the_declaration_says_so():
    kernel = built_in("layer_norm_welford_triton")
    assert isinstance(found_of(kernel, "float32", 300), Agreement)
    found = found_of(kernel, "float32", 300, variance_options={})
    if ALL_LANES_STORE:
        assert isinstance(found, Disagreement)
        assert found.why == "the code has 4 means of a row, of which one is declared"
    else:  # one lane stores the mean that all use
        assert isinstance(found, Agreement)
