"""Every CUDA kernel compiles for every dtype and every architecture that it names."""

import re
from pathlib import Path

import pytest

from verifier import load, source

KERNELS = Path(__file__).parents[2] / "kernels"
ARCHITECTURES = (80, 90, 100)
CLUSTERS = "layer_norm_clusters_cuda"  # clusters begin with the second of these
HALVES = ("__half", "__nv_bfloat16", "float", "double")
PUBLISHED = ("thread_per_row", "warp_per_row", "warp_shared", "block_per_row", "block_many_rows")


def layer_norms():
    for stem, variance in (("textbook", "Textbook"), ("two_pass", "TwoPass"), ("welford", "Welford")):
        for t in HALVES:
            head = f"{variance}, {t}, {t}, {t}, false, 2, true"
            yield f"layer_norm_{stem}_cuda", f"layer_norm_warp<{head}, 8, 32, 1, true>"
            yield f"layer_norm_{stem}_cuda", f"layer_norm_shared<{head}>"
            yield f"layer_norm_{stem}_cuda", f"layer_norm_streamed<{head}>"
    yield (
        "layer_norm_welford_cuda",
        "layer_norm_warp<Welford, __half, float, float, true, 2, false, 4, 8, 2, false>",
    )


def softmaxes():
    for stem, kind in (("softmax", "Softmax"), ("log_softmax", "LogSoftmax")):
        for t in HALVES:
            yield f"{stem}_cuda", f"softmax_warp<{kind}, {t}, 2, true, 8, 32, 1, true>"
            yield f"{stem}_cuda", f"softmax_shared<{kind}, {t}, 2, true>"
            yield f"{stem}_cuda", f"softmax_streamed<{kind}, {t}, 1, false>"
            yield f"{stem}_cuda", f"softmax_backward<{kind}, {t}, 2, true, true>"
            yield f"{stem}_cuda", f"softmax_backward<{kind}, {t}, 1, false, false>"


def backwards():
    for t in HALVES:
        yield "layer_norm_backward_cuda", f"layer_norm_backward_cached<{t}, {t}, 2, true, 8>"
        yield "layer_norm_backward_cuda", f"layer_norm_backward_streamed<{t}, float, 1, false>"
        yield "layer_norm_backward_cuda", f"join_parts<{t}, {'double' if t == 'double' else 'float'}>"
    for step in PUBLISHED:
        for t in ("__half", "float"):
            columns = ", 4" if step == "block_many_rows" else ""
            yield f"layer_norm_backward_published_{step}_cuda", f"layer_norm_backward<{t}{columns}>"


def clusters():
    for t in HALVES:
        for blocks in (1, 2, 8):
            yield CLUSTERS, f"layer_norm_forward<{t}, {t}, 2, true, 512, 4, {blocks}, 1, 2>"
            yield CLUSTERS, f"layer_norm_backward<{t}, float, 1, false, 256, 16, {blocks}, 2>"
        yield CLUSTERS, f"join_parts<{t}, {'double' if t == 'double' else 'float'}>"


ALL = (*layer_norms(), *softmaxes(), *backwards(), *clusters())


def oldest(stem):
    """Return the architecture with which a kernel begins."""
    return ARCHITECTURES[stem == CLUSTERS]


def template(stem, expression):
    """Return the kernel without its dtypes: what the entries that differ in nothing else have in common."""
    return stem, re.sub("|".join(HALVES), "T", expression)


def compilations():
    """Yield every entry on the oldest architecture, and each template once on each of the others.

    Newer architectures add instructions and take none away. Their dtypes take turns.
    """
    groups = {}
    for stem, expression in ALL:
        yield stem, expression, oldest(stem)
        groups.setdefault(template(stem, expression), []).append(expression)
    for turn, ((stem, _), expressions) in enumerate(groups.items()):
        newer = [architecture for architecture in ARCHITECTURES if architecture > oldest(stem)]
        for shift, architecture in enumerate(newer):
            yield stem, expressions[(turn + shift) % len(expressions)], architecture


COMPILATIONS = tuple(compilations())


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(("stem", "expression", "architecture"), COMPILATIONS)
def test_it_compiles(stem, expression, architecture):
    compiled = source(KERNELS / f"{stem}.py").kernel(expression).compile(architecture)
    assert f".entry {compiled.entry}(" in compiled.ptx
    assert compiled.cubin
    # A row kept in "registers" that lies in local memory would be a row kept in global memory.
    assert "__local_depot" not in compiled.ptx


def test_every_template_and_every_dtype_meets_every_architecture():
    for architecture in ARCHITECTURES:
        met = [(stem, expression) for stem, expression, a in COMPILATIONS if a == architecture]
        there = [entry for entry in ALL if architecture >= oldest(entry[0])]
        assert {template(*entry) for entry in met} == {template(*entry) for entry in there}
        assert all(any(t in expression for _, expression in met) for t in HALVES)
    assert {(stem, expression) for stem, expression, a in COMPILATIONS if a == oldest(stem)} == set(ALL)


def test_every_cuda_source_is_compiled_here():
    assert {stem for stem, _ in ALL} == {file.stem for file in KERNELS.glob("*_cuda.cu")}


@pytest.mark.parametrize("file", sorted(KERNELS.glob("*_cuda.cu")), ids=lambda f: f.stem)
def test_a_declaration_stands_beside_every_source(file):
    (subject,) = load(file.with_suffix(".py")).subjects
    assert subject.language == "cuda"
    assert subject.name == file.stem
