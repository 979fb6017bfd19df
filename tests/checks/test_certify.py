"""Certificates: given to kernels that are what they declare, refused with a reason to all others."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton", reason="certified are Triton's kernels; Triton is missing")

from checks_support import KERNELS, SKELETONS, machine_runner, planted, subject_of_texts
from triton_release import supposes_triton

from verifier import tree
from verifier.arithmetic.graph.graph import Builder
from verifier.audit.shape_text import extents, ranged
from verifier.cases.recipe import Recipe, Values, build
from verifier.checks.support.certificate_at_shape import certified
from verifier.checks.support.reached_elements import elements_reached, told_apart
from verifier.checks.support.recorded_code import RefusedError, must_hold_for_all_inputs
from verifier.checks.support.rows_alike import rows_alike
from verifier.execution.record_graph import RecordedGraph
from verifier.ops import op
from verifier.records.certificate import Certificate, Refusal
from verifier.records.subject import Trees
from verifier.subjects.load_file import builtin_files, load

MIXED = {
    ("softmax_cuda", True): ("softmax_tiers_cuda.cuh:50",),  # T11 counts each use of an exponential
}
UNBOUNDED = ("softmax", "welford_triton", "gate", "tanh")
"""Parts of names: no interval is known of exponentials and tangents, nor of the sign of Welford's sums."""
FAULTY = Path(__file__).parents[1] / "faulty_kernels"


@pytest.fixture(scope="module")
def runner():
    with machine_runner() as opened:
        yield opened


_KNOWN = {}


def asked(runner, path, dtype, *, gradients=False, **further):
    """Return the answer for a kernel and a call, which is asked for once."""
    key = repr((path, dtype, gradients, sorted(further.items())))
    if key not in _KNOWN:
        _KNOWN[key] = _asked(runner, path, dtype, gradients=gradients, **further)
    return _KNOWN[key]


def _asked(runner, path, dtype, *, gradients, seed=0, columns=33, eps=1e-5, **changes):
    subject = load(path).subjects[0].differing(**changes)
    recipe = Recipe(rows=3, columns=columns, input=Values(seed=seed), eps=eps)
    case = build(op(subject.op), subject, dtype, recipe, gradients=gradients)
    return certified(subject, case, runner=runner, gradients=gradients)


def built_in(name):
    (file,) = (file for file in builtin_files() if file.stem == name)
    return file


@pytest.mark.parametrize(
    ("name", "dtype", "gradients"),
    [
        ("layer_norm_two_pass_triton", "float16", False),
        ("layer_norm_textbook_cuda", "bfloat16", False),
        ("rms_norm_triton", "float32", True),
        ("rms_norm_tiled_triton", "float16", True),
        ("log_softmax_tiled_triton", "float32", True),
        ("rms_norm_one_plus_weight_triton", "float16", True),
        ("group_norm_triton", "float16", True),
        ("softmax_triton", "bfloat16", True),
        ("layer_norm_backward_cuda", "float16", False),
        ("layer_norm_welford_triton", "float16", True),
        ("layer_norm_welford_cuda", "bfloat16", False),
        ("layer_norm_residual_cuda", "float16", False),
        ("batch_norm_triton", "float32", True),
        ("softmax_cuda", "bfloat16", True),
        ("log_softmax_triton", "float16", True),
        ("log_softmax_cuda", "float32", True),
        ("l2_norm_triton", "float16", True),
        ("layer_norm_silu_gate_triton", "bfloat16", True),
        ("silu_gate_rms_norm_triton", "float16", True),
        ("sigmoid_gate_rms_norm_triton", "bfloat16", True),
        ("silu_gate_layer_norm_triton", "float16", True),
        ("sigmoid_gate_layer_norm_triton", "float32", True),
        pytest.param(
            "dynamic_tanh_triton",
            "float16",
            True,
            marks=supposes_triton("3.9", "libdevice's tanh branches by its argument"),
        ),
        ("poly_norm_triton", "float32", True),
    ],
)
def test_a_certificate_says_what_was_proved_of_the_code(runner, name, dtype, gradients):
    found = asked(runner, built_in(name), dtype, gradients=gradients)
    assert isinstance(found, Certificate), found
    assert [proof.contraction for proof in found.proofs] == ["off", "on"]
    assert all(one.depth <= (one.declared or one.terms) for proof in found.proofs for one in proof.sums)
    assert ("grad_input" in found.outputs) == (gradients or "backward" in name)
    assert found.proofs[0].mixed == MIXED.get((name, gradients), ())
    reaches = [proof.finite_to for proof in found.proofs]
    assert (None in reaches) == any(part in name for part in UNBOUNDED)
    assert None in reaches or f"exceeds 2^{min(reaches)} in magnitude" in found.statement
    assert all(len(digest) == 64 for proof in found.proofs for digest in proof.kernels.values())
    assert json.loads(json.dumps(found.document))["tensors"]["input"]["dtype"] == dtype
    assert len(json.dumps(found.document)) < 16384  # small enough to be checked in beside a kernel
    if "output" in found.support:
        alone = op(found.op).name == "dynamic_tanh"
        assert found.support["output"]["input"] == ("its element" if alone else "its row")
    for bound in (proof.bound for proof in found.proofs if proof.bound is not None):
        assert bound.depth <= (bound.declared_depth or 33)
        assert all(row.variance <= row.declared_variance for row in bound.rows)
    assert (found.proofs[0].bound is not None) == op(found.op).needs_variance


def test_sums_are_told_apart_by_their_line_and_by_the_results_that_use_them(runner):
    found = asked(runner, built_in("layer_norm_two_pass_triton"), "float32", gradients=True)
    (results, lines) = zip(*[(one.results, one.line) for one in found.proofs[0].sums], strict=True)
    assert set(results) == {
        ("output", "mean", "rstd", "grad_input", "grad_weight"),  # mean
        ("output", "rstd", "grad_input", "grad_weight"),  # variance, which mean does not need
        ("grad_input",),
        ("grad_weight",),
        ("grad_bias",),
    }
    assert {line.partition(":")[0] for line in lines} == {
        "layer_norm_skeleton_triton.py",
        "row_norm_skeleton_triton.py",
    }
    assert found.proofs[0].sums[0].of == "input[0]"
    assert {one.of for one in found.proofs[0].sums} != {"input[0]"}


def test_where_no_tree_is_declared_none_is_said_to_be(runner):
    found = asked(runner, built_in("rms_norm_triton"), "float32", trees=Trees())
    (one,) = found.proofs[0].sums
    assert one.declared is None
    assert one.text.endswith("(no tree is declared)")
    assert found.proofs[0].bound.declared_depth is None
    assert 0 < one.depth < 33 - 1


@pytest.mark.parametrize(
    ("name", "dtype", "infinite"),
    [("softmax_triton", "bfloat16", True), ("rms_norm_triton", "float32", False)],
)
def test_a_statement_is_not_of_no_input_where_a_mask_gives_infinities(runner, name, dtype, infinite):
    """Masked lanes of a softmax compute -inf - m for all inputs: "every value is finite" would be of none."""
    found = asked(runner, built_in(name), dtype, gradients=True)
    assert isinstance(found, Certificate), found
    assert ("infinite constants of the code" in found.statement) is infinite


@pytest.mark.parametrize(
    ("name", "dtype", "fuses"),
    [("layer_norm_two_pass_triton", "float16", True), ("rms_norm_triton", "float32", False)],
)
def test_a_statement_says_whether_products_are_fused_as_they_are_declared(runner, name, dtype, fuses):
    found = asked(runner, built_in(name), dtype)
    assert [proof.way["fuses"] for proof in found.proofs] == [fuses, fuses]
    assert "C" not in found.proofs[0].claims
    assert ("with products fused into sums as the code fuses them" in found.statement) is fuses


@pytest.mark.parametrize("gradients", [False, True])
def test_a_certificate_says_of_which_call_it_is(runner, gradients):
    found = asked(runner, built_in("rms_norm_triton"), "float32", gradients=gradients)
    needed = "input and weight need a gradient" if gradients else "no argument needs a gradient"
    assert needed in found.call
    assert ("torch.no_grad()" in found.call) is not gradients


def graph_of(reads):
    """y[row, column] = x[row, column] + x[reads(row, column)], 3 x 4, zero times where it is another row."""
    builder = Builder()
    rows, columns = np.indices((3, 4))
    own = builder.append("input:input", value=4 * rows + columns)
    other = builder.append("input:input", value=np.asarray(reads(rows, columns)))
    zero = builder.append("literal:f32", value=np.zeros(1, dtype=np.uint64))
    added = builder.append("add.f32", own, builder.append("mul.f32", zero, other))
    return builder.graph({"output": added}, {"input": "f32"})


@pytest.mark.parametrize(
    ("reads", "words"),
    [
        (lambda r, c: 4 * r + c, "its element"),
        (lambda r, c: 4 * r + (c + 1) % 4, "its row"),
        (lambda r, c: 4 * ((r + 1) % 3) + c, "its column"),
        (lambda r, c: 4 * ((r + 1) % 3) + (c + 1) % 4, "all elements"),
    ],
)
def test_a_certificate_says_which_elements_a_result_reaches_before_any_rule(reads, words):
    subject = load(built_in("layer_norm_two_pass_triton")).subjects[0]
    case = build(op("layer_norm"), subject, "float32", Recipe(rows=3, columns=4), gradients=False)
    assert elements_reached(graph_of(reads), op("layer_norm"), case) == {"output": {"input": words}}


@pytest.mark.parametrize("name", ["layer_norm_two_pass_triton", "group_norm_triton", "instance_norm_triton"])
def test_what_the_gradient_of_an_entry_may_take_is_told_from_all_else(name):
    subject = load(built_in(name)).subjects[0]
    the_op = op(subject.op)
    case = build(the_op, subject, "float32", Recipe(rows=12, columns=6), gradients=True)
    shape = tuple(case.given["grad_output"].shape)
    index, entries = the_op.flat_index(case, "grad_output", shape), the_op.problem(case).parameter
    if isinstance(entries, str):
        entries = np.broadcast_to(np.arange(6), index.shape)
    labels = [found for _, found in told_apart(the_op, case, "grad_output", shape, ["output", "grad_bias"])]
    for entry in np.unique(entries):
        own = entries == entry
        for taken in (index[own], index[own.any(axis=1)].ravel()):  # of grad_output, and of input
            ends = [(found[taken].min(), found[taken].max()) for found in labels]
            told = [(low <= found) & (found <= high) for found, (low, high) in zip(labels, ends, strict=True)]
            assert np.flatnonzero(np.all(told, axis=0)).tolist() == sorted(taken.tolist())


@pytest.mark.parametrize(
    ("reads", "why"),
    [
        (lambda r, c: 4 * r + (c + 1) % 4, ""),
        (lambda r, c: 4 * ((r + 1) % 3) + (c + 1) % 4, "at 3 rows one reaches elements of input in another"),
        (lambda r, c: 4 * r + (c + (r > 1)) % 4, "at 3 rows one is another expression"),
    ],
)
def test_rows_are_alike_where_each_is_the_same_expression_of_its_own_elements(reads, why):
    subject = load(built_in("layer_norm_two_pass_triton")).subjects[0]
    case = build(op("layer_norm"), subject, "float32", Recipe(rows=3, columns=4), gradients=False)
    assert rows_alike([(case, graph_of(reads))], op("layer_norm")) == {"output": why}


def test_the_bound_is_that_of_the_eps_of_the_call(runner):
    path = built_in("rms_norm_triton")
    small, large = (asked(runner, path, "float16", eps=eps).proofs[0].bound.rows[0] for eps in (0.0, 64.0))
    assert small.variance == large.variance
    assert large.rstd < small.rstd  # an error of the mean square is a small part of eps


def test_a_shallower_tree_than_declared_gives_a_smaller_bound(runner):
    from verifier import Trees, tree

    deep = Trees(statistics=tree(depth=30))
    bounds = [
        asked(runner, built_in("rms_norm_triton"), "float16", **more).proofs[0].bound
        for more in ({}, {"trees": deep})
    ]
    assert [one.depth for one in bounds] == [6, 6]
    assert [one.declared_depth for one in bounds] == [10, 30]
    assert bounds[0].rows[0].variance == bounds[1].rows[0].variance
    assert bounds[0].rows[0].declared_variance < bounds[1].rows[0].declared_variance


def test_data_change_nothing_in_a_certificate(runner):
    one, other = (asked(runner, built_in("rms_norm_triton"), "float16", seed=seed) for seed in (0, 1))
    assert one.proofs == other.proofs


@pytest.mark.parametrize(
    ("name", "stage", "why"),
    [
        ("variance_off_by_one_ulp_triton", "the code is the declared computation", "1.0000001192092896"),
        (
            "reads_neighbour_row_triton",
            "the code is the declared computation",
            "depends on elements",
        ),
        ("reciprocals_of_reciprocals_triton", "the code is the declared computation", "div.full"),
        ("masked_lanes_counted_triton", "the code is the declared computation", "nothing sums the 33 terms"),
        ("barrier_forgotten_cuda", "the kernel runs to its end, without a race or a stray write", "Race"),
        ("barrier_of_each_warp_cuda", "the kernel runs to its end, without a race or a stray write", "Race"),
        (
            "own_results_by_read_only_cache_cuda",
            "the kernel runs to its end, without a race or a stray write",
            "by .nc",
        ),
        ("stride_of_mask_ignored_triton", "nothing decides on data", "a boolean mask"),
        ("wrong_in_third_configuration_triton", "one configuration runs", "_forward"),
        (
            "sums_undefined_lanes_triton",
            "nothing depends on what a load gives lanes that its mask leaves out",
            "with NaN in them",
        ),
    ],
)
def test_a_faulty_kernel_is_refused(runner, name, stage, why):
    found = asked(runner, FAULTY / f"{name}.py", "float32")
    assert isinstance(found, Refusal)
    assert found.stage == stage
    assert why in found.why


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        ("1.0 + tl.exp(-gate)", "1.0 + tl.exp(gate)"),
        ("1.0 + tl.exp(-gate)", "1.0 + tl.exp2(-gate)"),
        ("1.0 + tl.exp(-gate)", "1.0000001 + tl.exp(-gate)"),
        ("1.0 + tl.exp(-gate)", "1.0 + tl.exp2(-gate * 1.4426949)"),  # log2(e) is 1.442695
        ("1.0 + tl.exp(-gate)", "1.0 + tl.exp(-gate.to(tl.float16).to(tl.float32))"),
        ("gate_slope(z, sigmoid, SILU)", "gate_slope(value, sigmoid, SILU)"),
        ("(1.0 - sigmoid)", "(1.0 + sigmoid)"),
        ("sum_hat_g += hat * g", "sum_hat_g += hat * rstd * g"),
        ("product(value, opened)", "product(sigmoid, opened)"),
        ("du * opened", "du * sigmoid"),
    ],
)
def test_another_gate_or_gradient_of_one_is_refused(runner, written, instead):
    assert_refused(runner, "silu_gate_rms_norm_triton", written, instead)


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        ("u = u - mean\n", "u = u + mean\n"),
        ("u = tl.where(inside, u - mean, 0.0)", "u = tl.where(inside, u - 2.0 * mean, 0.0)"),
        ("lanes += u\n", "lanes += u * u\n"),
        ("through += c2", "through -= c2"),
        ("sum_g += g", "sum_g += hat"),
        ("du * value * slope", "(du + c2 * rstd) * value * slope"),
        ("u = u - tl.load(means + row)", "u = u - tl.load(rstds + row)"),
        ("part_db += d\n", "part_db += d * d\n"),
    ],
)
def test_another_mean_of_what_is_gated_is_refused(runner, written, instead):
    assert_refused(runner, "sigmoid_gate_layer_norm_triton", written, instead)


def assert_refused(runner, name, written, instead):
    subject = planted({written: instead}, KERNELS / f"{name}.py")
    recipe = Recipe(rows=2, columns=12, input=Values(seed=0), weight=Values(seed=1), bias=Values(seed=2))
    case = build(op(subject.op), subject, "float32", recipe, gradients=True)
    assert isinstance(certified(subject, case, runner=runner, gradients=True), Refusal)


@pytest.mark.parametrize(
    "root",
    [
        "tl.sum(lanes, axis=0) + eps",
        "1.0 / (tl.sum(lanes, axis=0) + eps)",
        "divide(tl.full((), 1.0, ACCUMULATE), root(tl.sum(lanes, axis=0)))",
        "divide(tl.full((), 1.0, ACCUMULATE), root(tl.sum(lanes, axis=0) / columns + eps))",
    ],
)
def test_a_length_norm_with_another_root_or_none_is_refused(runner, root):
    path = KERNELS / "l2_norm_triton.py"
    (line,) = (text for text in path.read_text().splitlines() if " root(" in text)
    subject = planted({line: f"    rstd = {root}"}, path)
    recipe = Recipe(rows=2, columns=12, input=Values(seed=0))
    case = build(op(subject.op), subject, "float32", recipe, gradients=False)
    assert isinstance(certified(subject, case, runner=runner), Refusal)


@pytest.mark.parametrize(("columns", "claims"), [(8, "EZF"), (33, "EZFC")])
def test_merges_with_gradients_are_certified_by_the_claims_that_are_needed(runner, columns, claims):
    found = asked(runner, built_in("layer_norm_welford_triton"), "float32", gradients=True, columns=columns)
    assert [proof.claims for proof in found.proofs] == [claims, claims]
    assert ("Lemma 2" in found.statement) == ("C" in claims)


def test_a_refusal_names_no_difference_of_fusing_alone(runner):
    written = "        c1, c2 = divide(along_hat, count), divide(plain, count)\n        tl.store"
    subject = planted(
        {written: written.replace("plain, count)", "plain, count - 1.0)")},
        KERNELS / "layer_norm_welford_triton.py",
    )
    case = build(op("layer_norm"), subject, "float16", Recipe(rows=3, columns=33), gradients=True)
    found = certified(subject, case, runner=runner, gradients=True)
    assert isinstance(found, Refusal)
    assert found.why.startswith("grad_input: ")
    assert "fma" not in found.why


def test_sums_deeper_than_declared_are_refused(runner):
    from verifier import Trees, tree

    shallow = Trees(statistics=tree(depth=3))
    found = asked(runner, built_in("rms_norm_triton"), "float32", trees=shallow)
    assert found == Refusal(
        stage="sums are no deeper than declared",
        why="a term of a sum of 33 meets 6 additions, 3 are declared",
    )


def test_what_decides_on_data_is_refused(runner):
    found = asked(runner, FAULTY / "sums_by_atomics_triton.py", "float32", gradients=True)
    assert isinstance(found, Refusal)
    assert found.stage == "nothing decides on data"
    assert "sums_by_atomics_triton.py" in found.why


def test_nothing_is_proved_where_no_result_holds_a_number():
    empty = RecordedGraph(
        graph=Builder().graph({}), decisions=(), asked=(), uncovered=(), kernels=(), launches=(),
        tensors={}, scalars={},
    )  # fmt: skip
    with pytest.raises(RefusedError, match="no result holds a floating-point number"):
        must_hold_for_all_inputs(empty)


@pytest.mark.parametrize("text", ["4096", "0x3", "2x", "ax3"])
def test_a_shape_has_rows_and_columns(text):
    with pytest.raises(ValueError, match="ROWSxCOLUMNS"):
        extents(text)
    assert extents("2x4096") == (2, 4096)


def test_a_range_is_each_of_its_shapes():
    assert ranged("2x3..5") == [(2, 3), (2, 4), (2, 5)]
    assert ranged("2x7") == [(2, 7)]
    assert ranged("1..2x7..8") == [(1, 7), (1, 8), (2, 7), (2, 8)]
    for text in ("2x5..4", "2x5..", "2x..4", "2x1...4", "0..2x3", "..x3"):
        with pytest.raises(ValueError, match="shape"):
            ranged(text)


WIDE = "1.0 + weight.to(skeleton.accumulator(input.dtype)[0])"


@pytest.mark.parametrize(
    "written",
    [
        "(1.0 + weight).to(skeleton.accumulator(input.dtype)[0])",
        "1.0 + weight.bfloat16().to(skeleton.accumulator(input.dtype)[0])",
        f"({WIDE}).to(input.dtype).float()",
        f"({WIDE}).to(torch.float64).float()",
    ],
)
def test_a_conversion_too_many_before_a_launch_is_refused(runner, written):
    path = KERNELS / "rms_norm_one_plus_weight_triton.py"
    files = (path, KERNELS / "rms_norm_triton.py", *SKELETONS)
    texts = {file.name: file.read_text(encoding="utf-8") for file in files}
    assert WIDE in texts[path.name]
    changed = (
        texts[path.name].replace(WIDE, written).replace("\nfrom pathlib", "\nimport torch\nfrom pathlib", 1)
    )
    subject = subject_of_texts({**texts, path.name: changed}, path.name)
    recipe = Recipe(rows=3, columns=33, input=Values(seed=0))
    case = build(op(subject.op), subject, "float16", recipe, gradients=True)
    assert isinstance(certified(subject, case, runner=runner, gradients=True), Refusal)


@pytest.mark.parametrize(("lanes", "merged"), [(128, True), (64, False)])
def test_parts_that_are_merged_in_another_order_than_declared_are_refused(runner, lanes, merged):
    """Its lanes have every 128th element; a bound that names the lanes holds for those alone."""
    declared = Trees(statistics=tree(lanes=lanes, warp=32))
    found = asked(runner, built_in("layer_norm_welford_triton"), "float32", columns=300, trees=declared)
    if merged:
        assert isinstance(found, Certificate), found
    else:
        assert isinstance(found, Refusal), found.statement
        assert (found.stage, found.why[:16]) == ("parts are merged as declared", "of 300 elements ")
