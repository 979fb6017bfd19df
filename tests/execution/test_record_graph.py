"""The recorded expressions of a kernel give every bit of its runs on other inputs."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("triton", reason="recorded are Triton's kernels; Triton is missing")

from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.normal_form import Normaliser
from verifier.cases.recipe import Recipe, Values, build
from verifier.checks.support.recorded_code import RefusedError, must_hold_for_all_inputs
from verifier.execution.backends import backend
from verifier.execution.call_subject import execute
from verifier.execution.child_process import Runner
from verifier.execution.record_graph import FORMAT_OF, bits_of, record, recorded_graph
from verifier.machine import session
from verifier.machine.ptx.independence import Decided
from verifier.machine.shadow import graph_nodes
from verifier.ops import op
from verifier.subjects.load_file import builtin_files, load


def subject_of(name):
    (file,) = (file for file in builtin_files() if file.stem == name)
    return load(file).subjects[0]


def case_of(subject, dtype, seed, gradients):
    recipe = Recipe(rows=3, columns=33, input=Values(seed=seed))
    return build(op(subject.op), subject, dtype, recipe, gradients=gradients)


@pytest.mark.parametrize(
    ("name", "dtype", "gradients"),
    [
        ("layer_norm_two_pass_triton", "float16", False),
        ("rms_norm_triton", "float32", False),
        ("layer_norm_welford_triton", "bfloat16", False),
        ("layer_norm_single_block_triton", "bfloat16", True),
        ("rms_norm_triton", "float16", True),
        ("softmax_online_triton", "float32", True),
        ("softmax_triton", "float16", True),
        ("layer_norm_two_pass_cuda", "float16", True),
        ("layer_norm_welford_cuda", "bfloat16", False),
        ("group_norm_tiled_triton", "float32", True),
        ("batch_norm_tiled_triton", "float16", True),
    ],
)
def test_replay_gives_every_bit_of_another_run(name, dtype, gradients):
    subject, place = subject_of(name), backend("machine")
    one, other = (case_of(subject, dtype, seed, gradients) for seed in (0, 1))
    with session() as opened:
        recording = record(subject, one, backend=place, gradients=gradients)
        seen = execute(subject, other, backend=place, gradients=gradients)
        found = recording.replay(other, opened.machine.approximation)
    assert recording.seen.status == "ok", recording.seen.message
    assert not recording.decisions
    assert not recording.asked
    wanted = {n: bits_of(t) for n, t in seen.outputs.items() if t is not None and t.is_floating_point()}
    assert found.keys() == wanted.keys()
    assert [n for n in wanted if found[n] is None or (found[n] != wanted[n]).any()] == []
    assert any((found[n] != bits_of(recording.seen.outputs[n])).any() for n in wanted)  # it is another run
    graph = recording.graph
    assert set(graph.outputs) == set(wanted)
    leaves = {n.removeprefix("input:") for n in graph.names if n.startswith("input:")}
    assert all(graph.formats[n] == FORMAT_OF[str(one.given[n].dtype)] for n in leaves)
    assert len(recording.kernels) >= 1
    terms = SharedTerms()
    Normaliser(terms).normal(graph)
    assert "unknown" not in {terms.names[code] for code in terms.operation[: terms.count]}


def test_expressions_that_do_not_give_what_the_run_gave_are_named(monkeypatch):
    """As if products had been recorded as sums."""
    subject, place = subject_of("rms_norm_triton"), backend("machine")
    one, computed = case_of(subject, "float16", 0, gradients=False), graph_nodes.computed

    def other(name, operands, model):
        return computed("add.f32" if name == "mul.f32" else name, operands, model)

    with session():
        assert recorded_graph(subject, one, backend=place).found.unlike == ""
        monkeypatch.setattr(graph_nodes, "computed", other)
        found = recorded_graph(subject, one, backend=place).found
    assert found.unlike == "output"
    with pytest.raises(RefusedError, match="output has other bits in the run than its expressions give"):
        must_hold_for_all_inputs(found)


def test_graphs_are_those_of_the_recording_before_only_where_nothing_else_was_computed():
    subject, place = subject_of("softmax_triton"), backend("machine")
    one = case_of(subject, "float16", 0, gradients=False)
    with session():
        first = recorded_graph(subject, one, backend=place).found
        again = recorded_graph(subject, one, backend=place, before=first).found
        others = [
            recorded_graph(subject, one, backend=place, before=replace(first, **told)).found
            for told in ({"digest": "of another"}, {"taken": "of another"})
        ]
    assert (again.digest, again.taken, again.nodes) == (first.digest, first.taken, first.nodes)
    assert again.graph is first.graph
    assert again.paths is first.paths
    for other in others:
        assert other.graph is not first.graph
        assert np.array_equal(other.graph.operands, first.graph.operands)


def test_a_child_records_what_its_process_can_prove_of():
    subject = subject_of("rms_norm_triton")
    one = case_of(subject, "float16", 0, gradients=False)
    with Runner(backend="machine") as runner:
        seen = runner.run(
            subject, one, experiment="verifier.execution.record_graph:recorded_graph", gradients=False
        )
    assert seen.status == "ok", seen.message
    found = seen.found
    assert not found.decisions
    assert found.tensors["input"].shape == tuple(one.given["input"].shape)
    assert {n for n in found.graph.names if n.startswith(("input:", "unknown:"))} == {
        "input:input",
        "input:weight",
    }


def test_locks_and_atomics_are_decisions():
    subject, place = subject_of("layer_norm_published_tutorial_newer_triton"), backend("machine")
    with session():
        recording = record(subject, case_of(subject, "float32", 0, True), backend=place, gradients=True)
    assert Decided.ATOMIC in {one.what for _, one in recording.decisions}
    assert recording.conditions  # the branch of the loop that waits for the lock
    assert all(one.location is not None for _, one in recording.decisions)
