"""Kernel files are loaded by path, each as a module of its own; errors name the file."""

import inspect
import pickle
import py_compile
import sys
from pathlib import Path

import pytest

from verifier.subjects import load_file
from verifier.subjects.load_file import (
    LoadError,
    NoSubjectError,
    builtin_files,
    builtin_folder,
    is_skeleton,
    load,
    load_subjects,
)

KERNEL = """
@subject(**DECLARED)
def kernel(input, weight=None, bias=None, eps=1e-5):
    "A kernel."
    return right(input, weight, bias, eps)
"""


def test_files_of_one_name_are_different_modules(kernel_file, tmp_path):
    first, second = (load(kernel_file(KERNEL, folder=tmp_path / name)) for name in ("a", "b"))
    assert first.module.__name__ != second.module.__name__
    assert first.subjects[0].function is not second.subjects[0].function
    assert sys.modules[first.module.__name__] is first.module


def test_a_file_is_executed_once(kernel_file):
    path = kernel_file(KERNEL)
    assert load(path).module is load(str(path)).module


def test_a_file_that_has_been_edited_is_executed_again(kernel_file):
    path = kernel_file(KERNEL)
    first = load(path)
    path.write_text(path.read_text().replace("A kernel.", "Another kernel."))
    second = load(path)
    assert (first.subjects[0].summary, second.subjects[0].summary) == ("A kernel.", "Another kernel.")
    assert second.module is not first.module
    assert second.module is load(path).module


def test_sources_help_and_pickles_find_the_kernel(kernel_file):
    loaded = load(kernel_file(KERNEL + "\nclass Record:\n    pass\n"))
    (kernel,) = loaded.subjects
    assert "return right(input" in inspect.getsource(kernel.function)
    assert kernel.summary == "A kernel."
    assert list(kernel.signature) == ["input", "weight", "bias", "eps"]
    record = loaded.module.Record()
    assert type(pickle.loads(pickle.dumps(record))) is loaded.module.Record


def test_a_triton_decorator_finds_its_source(kernel_file):
    pytest.importorskip("triton")
    body = "import triton\n\n@triton.jit\ndef add(x, N: triton.language.constexpr):\n    pass\n" + KERNEL
    loaded = load(kernel_file(body))
    assert "def add" in loaded.module.add.src


def test_the_decorated_kernel_is_callable_like_the_function(kernel_file):
    (kernel,) = load_subjects(kernel_file(KERNEL))
    import torch

    x = torch.randn(3, 5)
    assert torch.equal(kernel(x), kernel.function(x))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def broken(:\n    pass\n", "line 16: SyntaxError"),
        ("import nowhere_to_be_found\n", "line 16: ModuleNotFoundError"),
        ("raise SystemExit(7)\n", "line 16: SystemExit"),
        ("1 / 0\n", "line 16: ZeroDivisionError"),
        ('subject(op="layer_norm", language="basic", dtypes=("float32",))\n', "unknown language 'basic'"),
        ('subject(op="layer_norm", language="torch", dtypes=("float33",))\n', "unknown dtypes 'float33'"),
        ('subject(op="layer_norm", language="torch", dtypes=())\n', "dtypes is empty"),
        ('subject(**DECLARED, guarantees={"speed"})\n', "unknown guarantees 'speed'"),
        ('subject(**DECLARED | {"accumulates": ""})\n', "unknown accumulates ''"),
        ('subject(**DECLARED, mean_contraction="mixd")\n', "unknown mean_contraction 'mixd'; known are none"),
        ('subject(**DECLARED, divide_by_n="reciprocl")\n', "unknown divide_by_n 'reciprocl'"),
        ('subject(**DECLARED, saved_dtype="float33")\n', "unknown saved_dtype 'float33'"),
        ('subject(**DECLARED, gradients="input")(right)\n', "gradients is 'input', not a tuple of names"),
        (
            'subject(**DECLARED, gradients=("input",))(right)\n',
            "gradients=('input',) of right(): differentiable=False says that it has none",
        ),
        (
            'subject(**DECLARED | {"differentiable": True}, gradients=("input", "scale"))(right)\n',
            "gradients has 'scale'; those of right() are input, weight, bias",
        ),
        (
            'subject(**DECLARED | {"op": "layer_norm_backward"}, gradients=("input",))(right)\n',
            "layer_norm_backward is a backward pass itself",
        ),
        ("subject(**DECLARED, trees=sorted)\n", "statistics is the function sorted and no tree: call it"),
        ("subject(**DECLARED, trees=lambda n: n)\n", "the function <lambda> and no tree"),
        ("subject(**DECLARED, trees=())\n", "statistics is () and no tree"),
        (
            "import verifier\nverifier.Trees(columns=verifier.arithmetic.trees.tree.pairwise)\n",
            "no tree: call it, as in pairwise(...)",
        ),
    ],
)
def test_an_error_in_the_file_names_the_file_and_the_line(body, said, kernel_file):
    path = kernel_file(body)
    with pytest.raises(LoadError) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert said in str(caught.value)
    assert not [
        name
        for name in sys.modules
        if name.startswith("norm_verifier_kernel_files.kernel_")
        and getattr(sys.modules[name], "__file__", "") == str(path)
    ]


def test_a_syntax_error_of_an_imported_helper_keeps_its_own_line(kernel_file, tmp_path, monkeypatch):
    (tmp_path / "helper_with_error.py").write_text("x = 1\ny = (\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LoadError, match=r"line 16: SyntaxError.*helper_with_error\.py, line 2"):
        load(kernel_file("import helper_with_error\n"))


def test_an_error_is_found_again_when_the_file_has_been_mended(kernel_file):
    path = kernel_file("1 / 0\n")
    with pytest.raises(LoadError):
        load(path)
    kernel_file(KERNEL)
    assert load_subjects(path)


@pytest.mark.parametrize(
    ("name", "said"), [("nowhere.py", "no such file"), ("kernel.cu", "declaring .py"), (".", "is a folder")]
)
def test_what_is_no_kernel_file_is_said(name, said, tmp_path):
    (tmp_path / "kernel.cu").write_text("")
    with pytest.raises(LoadError, match=said):
        load(tmp_path / name)


def test_a_file_without_a_subject_is_an_error_only_where_one_is_wanted(kernel_file):
    path = kernel_file("x = 1\n")
    assert load(path).subjects == ()
    with pytest.raises(LoadError, match="declares no subject"):
        load_subjects(path)


def test_a_subject_imported_from_another_file_is_not_audited_twice(kernel_file, tmp_path, monkeypatch):
    kernel_file(KERNEL, name="first_kernel_file.py")
    monkeypatch.syspath_prepend(tmp_path)
    path = kernel_file("from first_kernel_file import kernel\n" + KERNEL.replace("kernel(", "other("))
    assert [s.name for s in load_subjects(path)] == ["other"]


def test_two_subjects_of_one_name_are_an_error_and_not_one_subject(kernel_file):
    body = """
    def make(factor):
        def kernel(input, weight=None, bias=None, eps=1e-5):
            return factor * right(input, weight, bias, eps)
        return subject(**DECLARED)(kernel)

    wrong = make(2)
    good = make(1)
    """
    with pytest.raises(LoadError, match="two subjects are named 'kernel'"):
        load(kernel_file(body))


def test_a_second_name_for_a_subject_is_none(kernel_file):
    assert len(load_subjects(kernel_file(KERNEL + "\nalias = kernel\n"))) == 1


def test_every_built_in_file_declares_a_subject():
    assert builtin_files()
    for file in builtin_files():
        assert load_subjects(file), file


def test_a_skeleton_declares_no_subject_and_is_loaded_by_kernels_or_by_another_skeleton():
    files = list(builtin_folder().glob("*.py"))
    skeletons = [file for file in files if is_skeleton(file)]
    assert skeletons
    sources = {file: file.read_text(encoding="utf-8") for file in files}
    for file in skeletons:
        assert not load(file).subjects
        assert any(file.name in text for other, text in sources.items() if other != file), file
        with pytest.raises(NoSubjectError, match="declares no subject"):
            load_subjects(file)


def test_a_compilation_that_a_full_disk_cut_off_is_not_read(tmp_path):
    file = tmp_path / "kernel.py"
    file.write_text("NUMBER = 1\n", encoding="utf-8")
    cached = Path(py_compile.compile(str(file)))
    cached.write_bytes(cached.read_bytes()[:20])
    assert load(file).module.NUMBER == 1
    cached.unlink()
    copy = file.rename(tmp_path / "another.py")
    assert load(copy).module.NUMBER == 1
    assert not list(cached.parent.iterdir())


BESIDE = """
from helper_beside import scaled

@subject(**DECLARED)
def imports_what_stands_beside(input, weight=None, bias=None, eps=1e-5):
    return scaled(right(input, weight, bias, eps))
"""


def test_a_module_beside_the_file_is_found_and_that_of_another_folder_never_taken_for_it(
    kernel_file, tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(load_file, "_BESIDE", set())
    files = [kernel_file(BESIDE, name=f"{folder}.py", folder=tmp_path / folder) for folder in "ab"]
    for number, file in enumerate(files, start=1):
        (file.parent / "helper_beside.py").write_text(f"def scaled(x):\n    return {number} * x\n")
    try:
        assert load(files[0]).module.scaled(1) == 1
        with pytest.raises(LoadError, match="imports helper_beside, and finds that of another folder"):
            load(files[1])
    finally:
        sys.modules.pop("helper_beside", None)


def test_a_module_of_python_is_imported_though_one_of_its_name_stands_beside(kernel_file, tmp_path):
    file = kernel_file("import fractions\n" + BESIDE.partition("\n\n")[2].replace("scaled", ""))
    (tmp_path / "fractions.py").write_text("raise RuntimeError\n")
    assert load(file).module.fractions.Fraction(1, 2) == 0.5
