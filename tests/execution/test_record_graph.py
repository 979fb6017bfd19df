"""The recorded expressions of a kernel give every bit of its runs on other inputs."""

import pytest

pytest.importorskip("triton", reason="recorded are Triton's kernels; Triton is missing")

from verifier.cases.recipe import Recipe, Values, build
from verifier.execution.backends import backend
from verifier.execution.call_subject import execute
from verifier.execution.record_graph import bits_of, record
from verifier.machine import session
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
    ],
)
def test_replay_gives_every_bit_of_another_run(name, dtype, gradients):
    subject, place = subject_of(name), backend("machine")
    one, other = (case_of(subject, dtype, seed, gradients) for seed in (0, 1))
    with session() as opened:
        recording = record(subject, one, place=place, gradients=gradients)
        seen = execute(subject, other, place=place, gradients=gradients)
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
    assert len(recording.kernels) >= 1
