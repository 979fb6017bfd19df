"""Mutations change one place of a kernel and nothing of its declaration; an audit kills what it sees."""

import ast
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from verifier.audit.mutation import cuda_text, kills, python_source
from verifier.audit.mutation.alike import alike
from verifier.audit.mutation.family import copied, family, mutations
from verifier.audit.mutation.in_sources import ran, used
from verifier.audit.mutation.kills import BUILD, Fate, Kill, Question, fate, lines_in_order
from verifier.audit.mutation.mutants import Ending, Mutants, document, lines_of, run_mutants, status_of
from verifier.audit.mutation.mutation import Mutation
from verifier.checks import checks
from verifier.records.reach import Reach, SourcePlace
from verifier.subjects.load_file import load_subjects
from verifier.subjects.source_map import source_map

TRITON = '''
"""A kernel; x + 1 stands in its docstring."""
import triton
import triton.language as tl

LIMIT = 1 + 1

def depth(columns):
    return columns // 32 + 5

@triton.jit
def _kernel(x, y, columns, eps, BLOCK: tl.constexpr):
    """Doubles x < y."""
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < columns, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    total += value
    total = tl.max(tl.cast(total, tl.float32), axis=1)
    tl.debug_barrier()
    tl.store(y + at, value / tl.sqrt(tl.sum(total, axis=0) + eps), mask=at < columns)

def wrapper(input, output):
    part = torch.zeros(4, dtype=torch.float32)
    _kernel[(triton.cdiv(5, 2),)](input, output, input.contiguous().stride(0), BLOCK=-(-4 // 1))
    return output, part

@subject(op="layer_norm", trees=depth)
def norm(input):
    return wrapper(input, input)
'''
CUDA = """
#include <cuda_fp16.h>
#define TWO (1 + 1)
// a + b
__global__ void add(const float *x, float *y, int n) {  /* n < 5 */
    int i = blockIdx.x;
    float sum = 0.0f;
    if (i < n) sum += x[i] * 2;
    __syncthreads();
    y[i] = rsqrtf(sum + eps) - 1e-5f;
    printf(" + ");
    double wide = x[i];
    y[i + n] = merge(sum, i) + static_cast<float>(wide);
}
"""


def changes(found):
    return {(m.kind, m.before.strip(), m.after.strip()) for m in found}


def test_mutations_of_triton_change_one_place_each_and_leave_python(tmp_path):
    path = tmp_path / "kernel.py"
    path.write_text(TRITON)
    found = python_source.mutations(path)
    expected = {
        ("operator", "+", "-"),
        ("operator", "/", "*"),
        ("comparison", "<", "<="),
        ("constant", "0.0", "1.0"),
        ("constant", "4", "5"),
        ("accumulation", "+=", "="),
        ("mask", ", other=0.0", ""),
        ("mask", ", mask=at < columns", ""),
        ("dtype", ", dtype=torch.float32", ""),
        ("cast", ".to(tl.float32)", ""),
        ("copy", ".contiguous()", ""),
        ("stride", "0", "-1"),
        ("axis", "1", "0"),
        ("cast", "tl.cast(total, tl.float32)", "(total)"),
        ("name", "float32", "float16"),
        ("name", "zeros", "empty"),
        ("eps", "+ eps", ""),
        ("barrier", "tl.debug_barrier()", "pass"),
        ("tail", "triton.cdiv(5, 2)", "((5) // (2))"),
        ("exchange", "input, output", "output, input"),
        ("exchange", "output, part", "part, output"),
    }
    assert expected <= changes(found)
    assert any(m.kind == "store" and m.after == "pass" for m in found)
    assert any(m.kind == "eps" and m.after.endswith("(tl.sum(total, axis=0)) + eps)") for m in found)
    assert any(m.kind == "rounding" for m in found)
    for mutation in found:
        text = mutation.applied(TRITON)
        assert text != TRITON
        ast.parse(text)
        assert mutation.within in {"_kernel", "wrapper", "norm"}
        assert mutation.in_kernel == (mutation.within == "_kernel")
        assert text.splitlines()[mutation.line - 1] != TRITON.splitlines()[mutation.line - 1]
    assert "1 + 1" in found[0].applied(TRITON)


def test_mutations_of_cuda_leave_comments_strings_and_directives(tmp_path):
    path = tmp_path / "kernel.cu"
    path.write_text(CUDA)
    found = cuda_text.mutations(path)
    assert changes(found) == {
        ("comparison", "<", "<="),
        ("accumulation", "+=", "="),
        ("operator", "*", "+"),
        ("operator", "+", "-"),
        ("operator", "-", "+"),
        ("constant", "2", "3"),
        ("constant", "0.0f", "1.0f"),
        ("constant", "1e-5f", "2e-05f"),
        ("barrier", "__syncthreads();", ";"),
        ("store", "y[i] = rsqrtf(sum + eps) - 1e-5f;", ";"),
        ("eps", "+ eps", ""),
        ("eps", "rsqrtf(sum + eps)", "(rsqrtf(sum) + eps)"),
        ("dtype", "sum += x[i] * 2", "sum = __half2float(__float2half_rn(sum + (x[i] * 2)))"),
        ("name", "rsqrtf", "sqrtf"),
        ("name", "blockIdx.x", "blockIdx.y"),
        ("operator", "+", "-"),
        ("store", "y[i + n] = merge(sum, i) + static_cast<float>(wide);", ";"),
        ("rounding", "rsqrtf(sum + eps) - 1e-5f", "(rsqrtf(sum + eps) - 1e-5f) * 0.9990234375f"),
        (
            "rounding",
            "merge(sum, i) + static_cast<float>(wide)",
            "(merge(sum, i) + static_cast<float>(wide)) * 0.9990234375f",
        ),
        ("dtype", "double", "float"),
        ("cast", "static_cast<float>", ""),
        ("exchange", "sum, i", "i, sum"),
    }
    assert {m.within for m in found} == {"add"}
    assert all(m.in_kernel for m in found)


def test_sums_of_cuda_are_rounded_to_half_where_the_file_or_its_headers_know_halves(tmp_path):
    path = tmp_path / "kernel.cu"
    outer = tmp_path / "outer.cuh"
    without = CUDA.replace("#include <cuda_fp16.h>", "")
    path.write_text(without)
    assert not [m for m in cuda_text.mutations(path) if "half" in m.after]
    path.write_text(f'#include "outer.cuh"\n{without.replace("if (i < n) sum", "for (; i < n; i += 2) sum")}')
    outer.write_text('#include "inner.cuh"\n')
    (tmp_path / "inner.cuh").write_text("#include <cuda_fp16.h>\n")
    (rounded,) = [m for m in cuda_text.mutations(path) if "half" in m.after]
    assert rounded.before == "sum += x[i] * 2"


@pytest.mark.parametrize(
    ("call", "after"),
    [
        ("1.0f / sqrtf(a[i] * (b + c) + eps)", "(sqrtf(a[i] * (b + c)) + eps)"),
        ("work.inverse_root(clamped(x) + work.eps)", "(work.inverse_root(clamped(x)) + work.eps)"),
        ("larger(x, y + eps)", None),
        ("rsqrtf(x + eps * y)", None),
    ],
)
def test_eps_of_cuda_is_added_behind_roots_alone(tmp_path, call, after):
    path = tmp_path / "kernel.cu"
    path.write_text(f"__global__ void f(float *y, int i) {{\n    y[i] = {call};\n}}\n")
    found = [m.after for m in cuda_text.mutations(path) if m.kind == "eps" and m.after]
    assert found == ([] if after is None else [after])


def test_a_source_that_has_changed_meanwhile_is_not_mutated_elsewhere(tmp_path):
    path = tmp_path / "kernel.cu"
    path.write_text(CUDA)
    with pytest.raises(ValueError, match="has changed"):
        cuda_text.mutations(path)[0].applied(CUDA.replace("int i", "long i"))


def test_a_family_is_what_a_kernel_uses_and_no_more(tmp_path):
    for name, text in {
        "norm.py": '"""See other.py."""\nBASE = "base.py"\nimport helper\n',
        "norm.cu": '#include "tiers.cuh"\n// #include "unused.cuh"\n',
        "base.py": "",
        "helper.py": "",
        "other.py": "",
        "tiers.cuh": "",
        "unused.cuh": "",
    }.items():
        (tmp_path / name).write_text(text)
    names = {file.name for file in family(tmp_path / "norm.py")}
    assert names == {"norm.py", "norm.cu", "base.py", "helper.py", "tiers.cuh"}
    (tmp_path / "copy").mkdir()
    assert copied(tmp_path / "norm.py", tmp_path / "copy").parent == tmp_path / "copy"
    assert {file.name for file in (tmp_path / "copy").iterdir()} == names


KERNEL = """
@subject(**DECLARED)
def norm(input, weight=None, bias=None, eps=1e-5):
    if input.shape[-1] > 10**6:
        return input + 2
    return right(input, weight, bias, eps)
"""


@pytest.fixture
def asked(monkeypatch):
    from in_process import InProcess

    monkeypatch.setattr(kills, "Runner", lambda place, **_: InProcess(place))
    return Question(cases=6, checks=("forward_error",))


def test_what_an_audit_sees_is_killed_and_what_never_ran_survives(kernel_file, asked):
    path = kernel_file(KERNEL)
    assert fate(str(path), None, asked).kills == ()
    found = {(m.within, m.before.strip(), m.after.strip()): m for m in mutations(path)}
    seen = fate(str(path), found["right", "+", "-"], asked)
    assert [(kill.check, kill.dtype) for kill in seen.kills] == [("forward_error", "float32")]
    assert seen.kills[0].message
    unseen = fate(str(path), found["norm", "+", "-"], asked)
    assert unseen.kills == ()
    assert unseen.errors == ()
    assert unseen.ran is False


def test_what_only_other_kernels_use_is_not_mutated(kernel_file):
    path = kernel_file(KERNEL + "\n\ndef of_another_kernel(input):\n    return input + 3\n")
    every = mutations(path)
    kept = used(every, load_subjects(path))
    assert {m.within for m in every} - {m.within for m in kept} == {"of_another_kernel"}
    assert "norm" in {m.within for m in kept}


def test_a_place_that_no_case_reaches_is_told_from_one_that_no_check_sees(subjects_of):
    (subject,) = [s for s in subjects_of(KERNEL).values() if s.name == "norm"]
    statements = {one.place.line: one for one in source_map(subject).statements}
    guarded, last = sorted(statements)[-2:]
    reach = Reach(lines=frozenset({statements[last].place}), recorded=frozenset({"lines"}))

    def at(line):
        return Mutation(file=subject.path, start=0, end=1, before="a", after="b", kind="name", line=line)

    assert ran(at(last), [subject], reach) is True
    assert ran(at(guarded), [subject], reach) is False
    assert ran(at(last), [subject], Reach()) is None  # nothing was recorded


def test_a_mutant_that_cannot_be_loaded_is_killed_by_the_build(kernel_file, asked):
    path = kernel_file(KERNEL)
    text = path.read_text()
    start = text.index("DECLARED = ")
    broken = Mutation(
        file=path, start=start, end=start + 8, before="DECLARED", after="1/0 ", kind="name", line=1
    )
    seen = fate(str(path), broken, asked)
    assert [kill.check for kill in seen.kills] == [BUILD]
    assert "norm-verifier-mutant" not in seen.kills[0].message


def made(**told):
    change = Mutation(
        file=told.pop("file"), start=0, end=1, before="a", after="b", kind="name", line=1, **told
    )
    return lambda **more: Fate(mutation=change, **more)


def test_endings_say_what_is_known(tmp_path):
    in_kernel, in_wrapper = made(file=tmp_path / "k.py", in_kernel=True), made(file=tmp_path / "k.py")
    kill = Kill(check="memory", dtype="float32", message="reads beyond")
    same, other = frozenset({"1"}), frozenset({"2"})
    found = Mutants(path=tmp_path / "k.py", original=Fate(mutation=None, code=same), listed=9)
    expected = {
        Ending.KILLED: in_kernel(kills=(kill,)),
        Ending.SAME_CODE: in_kernel(code=same),
        Ending.OPEN: in_kernel(code=other, errors=("broke",)),
        Ending.SURVIVED: in_kernel(code=other),
    }
    found.fates = list(expected.values())
    assert [found.ending(one) for one in found.fates] == list(expected)
    assert found.ending(in_wrapper(code=same)) is Ending.SURVIVED  # a wrapper can do wrong with the same code
    assert found.ending(in_kernel()) is Ending.SURVIVED  # no code was seen
    assert found.rate == 0.5
    assert status_of(found) == 1
    text = "\n".join(lines_of(found))
    assert "50.0 % killed: 1 killed, 1 same code, 1 survived, 1 open" in text
    assert "open: k.py:1 name: a -> b: broke" in text
    assert document(found)["rate"] == 0.5


def test_exit_statuses(tmp_path):
    killed = made(file=tmp_path / "k.py")(kills=(Kill(check="memory"),))
    fine = Mutants(path=tmp_path, original=Fate(mutation=None), fates=[killed])
    assert status_of(fine) == 0
    assert (
        status_of(
            Mutants(path=tmp_path, original=Fate(mutation=None, kills=(Kill(check="x"),)), fates=[killed])
        )
        == 1
    )
    assert status_of(Mutants(path=tmp_path, original=Fate(mutation=None))) == 3
    assert status_of(Mutants(path=tmp_path, original=Fate(mutation=None), interrupted=True)) == 130


def test_mutants_run_on_workers_and_a_sample_is_the_seed_s(kernel_file):
    path = kernel_file(textwrap.dedent(KERNEL))
    question = Question(cases=3, checks=("forward_error",), seed=1)
    found = run_mutants(path, question, workers=1, sample=2)
    assert len(found.fates) == 2
    assert found.listed > 10
    assert found.original.kills == ()
    assert all(one.seconds > 0 for one in found.fates)


FOLDER = Path(__file__).parents[1] / "faulty_kernels"


def test_only_the_dtypes_that_are_asked_for_are_audited():
    both = load_subjects(FOLDER / "rows_in_32_bits_triton.py")
    assert {d for _, _, d in lines_in_order(both, ("forward_error",))} == {"float16", "float32"}
    alone = lines_in_order(both, ("forward_error",), ("float32", "float64"))
    assert [(name, d) for _, name, d in alone] == [("forward_error", "float32")]
    assert lines_in_order(both, (), ("float64",)) == []


def test_on_a_dtype_that_is_named_every_check_is_asked_as_in_an_audit():
    both = load_subjects(FOLDER / "rows_in_32_bits_triton.py")
    assert both[0].dtypes[0] != "float32"
    assert {name for _, name, _ in lines_in_order(both, (), ("float32",))} == set(checks())


REFUSING = '''
"""A torch subject that refuses what no case has."""
import torch
from verifier import Domain, subject

@subject(op="rms_norm", language="torch", variance="rms", accumulates="float32", dtypes=("float32",),
         domain=Domain(max_columns=64), differentiable=False)
def refusing(input, eps=1e-5):
    if input.dim() > 90:
        raise ValueError("too many dimensions")
    if not input.shape[-1]:
        return input
    return input * torch.rsqrt(input.square().mean(-1, keepdim=True) + eps)
'''


def test_a_refusal_that_no_case_meets_lies_outside_of_the_domain(tmp_path):
    path = tmp_path / "refusing.py"
    path.write_text(REFUSING)
    question = Question(cases=4, checks=("forward_error",))
    found = {(m.line, m.kind, m.after): m for m in mutations(path)}
    constant, comparison = found[9, "constant", "91"], found[9, "comparison", ">="]
    assert constant.refusal == comparison.refusal == (9, 10, 10)
    assert {m.refusal for m in found.values() if m.line > 10} == {None}
    original, survivor = (fate(str(path), one, question) for one in (None, constant))
    every = Mutants(path=path, original=original, listed=1, fates=[survivor])
    assert every.endings() == {Ending.OUTSIDE: 1}
    assert every.rate is None
    assert "outside the declared domain: refusing.py:9 constant: 90 -> 91" in "\n".join(lines_of(every))
    assert document(every)["fates"][0]["ending"] == "outside the declared domain"
    met = replace(survivor, lines=survivor.lines | {SourcePlace("refusing.py", "refusing", 10)})
    assert every.ending(met) is Ending.SURVIVED
    unasked = replace(survivor, lines=frozenset())
    assert every.ending(unasked) is Ending.SURVIVED


SUMMING = FOLDER / "variance_off_by_one_ulp_triton.py"
MASKED = "mask=inside, other=0.0).to(tl.float32)"
WEIGHT, VALUE = f"weight + column, {MASKED}", f"x + row * columns + column, {MASKED}"


@pytest.mark.parametrize(
    ("place", "same"),
    [(WEIGHT, True), (VALUE, False)],
    ids=["a fill of lanes that are not stored", "a fill that is summed in rows of 70 but not of 8"],
)
def test_a_survivor_is_said_to_be_the_original_where_its_results_are_the_same_for_all_inputs(
    tmp_path, place, same
):
    text = SUMMING.read_text(encoding="utf-8")
    assert text.count(place) == 1
    mutant = tmp_path / SUMMING.name
    mutant.write_text(text.replace(place, place.replace("0.0", "1.0")), encoding="utf-8")
    found = alike(SUMMING, mutant, seconds=60.0)
    assert found == ("for all inputs of 2 x 8 and 3 x 70 in float16: the same bits" if same else "")
    change = Mutation(file=mutant, start=0, end=1, before="0.0", after="1.0", kind="constant", line=1)
    told = lines_of(
        Mutants(path=mutant, original=Fate(mutation=None), fates=[Fate(mutation=change, alike=found)])
    )
    assert ("the original's results for all inputs of 2 x 8" in "".join(told)) == same
    assert any("survived" in line for line in told)


def test_of_torch_subjects_nothing_is_said(tmp_path):
    mutant = tmp_path / "refusing.py"
    mutant.write_text(REFUSING)
    assert alike(mutant, mutant, seconds=60.0) == ""
