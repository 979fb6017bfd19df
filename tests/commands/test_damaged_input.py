"""Damaged input is answered in one line with status 2, and costs no other file its report."""

import contextlib
import copy
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from audited_kernels import KERNELS, QUICK
from hypothesis import given, settings
from hypothesis import strategies as st

from verifier.cases.recipe import Recipe, build
from verifier.cases.saved_case import read_case
from verifier.execution import trial_import
from verifier.ops import op
from verifier.records import case as cases
from verifier.records.case import CaseError
from verifier.subjects.load_file import LoadError, load


@pytest.fixture
def file(kernel_file):
    return str(kernel_file(KERNELS))


def right_case():
    from verifier.records.subject import Claim, Subject

    def norm(input, weight=None, bias=None, eps=1e-5):
        return input

    subject = Subject(
        function=norm, name="good", path=Path("kernel.py"), op="layer_norm", language="torch",
        dtypes=("float32",), claim=Claim(),
    )  # fmt: skip
    made = build(op("layer_norm"), subject, "float32", Recipe(rows=2, columns=3), gradients=False)
    assert made is not None
    return made


def document_of(case, kernel="kernel.py"):
    return {
        **cases.to_document(case),
        "subject": {"path": str(kernel), "name": "good"},
        "check": "forward_error",
        "backend": "eager",
    }


DOCUMENT = document_of(right_case())


# Cases


def nested(depth):
    return "[" * depth + "]" * depth


def large_tensor(folder):
    """A case whose tensor lies in a sparse file of 20 GB."""
    document = copy.deepcopy(DOCUMENT)
    document["tensors"]["input"] = {"dtype": "float32", "shape": [2, 3], "file": "x.bin"}
    with (folder / "x.bin").open("wb") as file:
        file.truncate(20 << 30)
    return document


def tensor_of(folder, shape, file):
    document = copy.deepcopy(DOCUMENT)
    document["tensors"]["input"] = {"dtype": "float32", "shape": shape, "file": file}
    return document


DAMAGED = {
    "nested too deep": (lambda f: nested(200_000), "nested too deep"),
    "nested too deep inside": (
        lambda f: json.dumps(DOCUMENT)[:-1] + ', "x":' + nested(200_000) + "}",
        "too deep",
    ),
    "cut short": (lambda f: json.dumps(DOCUMENT)[:300], "cannot be read"),
    "no text": (lambda f: "\0\1", "cannot be read"),
    "a large tensor": (large_tensor, "has 21474836480 bytes"),
    "a tensor in a pipe": (lambda f: os.mkfifo(f / "p") or tensor_of(f, [2, 3], "p"), "a pipe"),
    "a tensor that links to itself": (
        lambda f: (f / "l").symlink_to("l") or tensor_of(f, [2, 3], "l"),
        "symbolic",
    ),
    "a tensor on a device": (
        lambda f: (f / "d").symlink_to("/dev/zero") or tensor_of(f, [2, 3], "d"),
        "a device",
    ),
    "a tensor elsewhere": (lambda f: tensor_of(f, [2, 3], "/etc/passwd"), "nvalid name"),
    "a tensor of a large shape": (
        lambda f: (f / "s").touch() or tensor_of(f, [1 << 40, 1 << 40], "s"),
        "has 48",
    ),
    "another number of rows": (lambda f: {**DOCUMENT, "rows": 7}, "says 7 x 3, but its tensors are 2 x 3"),
    "another op": (lambda f: {**DOCUMENT, "op": "batch_norm"}, "says 2 x 3, but its tensors are 3 x 2"),
    "no op": (lambda f: {**DOCUMENT, "op": "beauty"}, "no op 'beauty'"),
    "no check": (lambda f: {**DOCUMENT, "check": "beauty"}, "beauty"),
    "no backend": (lambda f: {**DOCUMENT, "backend": ["x"]}, "which check"),
    "a layout that fills the earth": (
        lambda f: {**DOCUMENT, "layouts": {"input": {"storage_offset": 1 << 50}}},
        "spans",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_case_is_one_line(name, command, tmp_path):
    make, said = DAMAGED[name]
    made = make(tmp_path)
    (tmp_path / "case.json").write_text(made if isinstance(made, str) else json.dumps(made))
    (tmp_path / "kernel.py").write_text("raise AssertionError('imported for nothing')")
    status, out, error = command("replay", "case.json")
    assert (status, out, error.count("\n")) == (2, "", 1), error
    assert said in error


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (os.mkfifo, "a pipe"),
        (lambda path: path.symlink_to(path.name), "symbolic"),
        (lambda path: path.symlink_to("/dev/zero"), "a device"),
        (lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 20 << 30), "bytes"),
        (lambda path: path.mkdir(), "a folder"),
    ],
)
@pytest.mark.parametrize("word", ["replay", "explain"])
def test_a_case_that_is_no_file_of_a_case_s_size_is_not_read(word, make, said, command, tmp_path):
    make(tmp_path / "case.json")
    status, out, error = command(word, "case.json")
    assert (status, out, error.count("\n")) == (2, "", 1), error
    assert said in error


def leaves(value, path=()):
    """Yield the path of every value of a document."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from leaves(one, (*path, key))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["-0x1p0", "nan"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=150)
@given(st.data())
def test_whatever_is_changed_in_a_case_it_is_read_or_refused(tmp_path_factory, data):
    """Nothing but CaseError: each other exception would be taken for a failure of the verifier itself."""
    document = copy.deepcopy(DOCUMENT)
    where = data.draw(st.sampled_from([p for p in leaves(DOCUMENT) if p]))
    inner = document
    for key in where[:-1]:
        inner = inner[key]
    if data.draw(st.booleans(), label="removed"):
        del inner[where[-1]]
    else:
        inner[where[-1]] = data.draw(JSON)
    path = tmp_path_factory.getbasetemp() / "drawn.json"
    path.write_text(json.dumps(document))
    with contextlib.suppress(CaseError):
        assert isinstance(read_case(path).case.given["input"], torch.Tensor)


@pytest.mark.parametrize("place", ['witness="witnesses/good.json"', 'id="so"'])
def test_a_damaged_witness_is_noted_and_its_search_goes_on(place, runner, subjects_of, tmp_path):
    from verifier.audit.budget import Budget
    from verifier.audit.examination import Examination

    body = f"""
    DEFECT = KnownDefect(check="forward_error", reason="so it is", where=lambda case: False, {place})

    @subject(**{{**DECLARED, "known_defects": (DEFECT,)}})
    def good(input, weight=None, bias=None, eps=1e-5):
        return right(input, weight, bias, eps)
    """
    subject = subjects_of(body)["good"]
    (tmp_path / "witnesses").mkdir()
    (tmp_path / "witnesses" / "good.json").write_text("[" * 200_000)
    line = Examination(
        subject=subject, check_name="forward_error", dtype="float32", runner=runner, budget=Budget(cases=3)
    ).run()
    assert line.counts["PASS"]
    assert any("witness that is damaged" in note and "nested too deep" in note for note in line.notes)


# Kernel files

ENDS = {
    "hangs": ("import time\ntime.sleep(1000)", "line 2: its import does not end"),
    "computes": ("\nwhile True: pass", "line 2: its import does not end"),
    "leaves": ("import os; os._exit(0)", "exit status 0 while it was imported"),
    "crashes": ("import ctypes\nctypes.string_at(0)", "line 2: the process was killed by SIGSEGV"),
    "kills": ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
}


TRIES = """
import json, os, sys
from pathlib import Path
from verifier.execution import trial_import
from verifier.execution.process_tree import children
from verifier.subjects.load_file import LoadError

for path, seconds in json.loads(sys.argv[1]):
    try:
        trial_import.try_out(Path(path), seconds=seconds)
        said = ""
    except LoadError as error:
        said = str(error)
    print(json.dumps([said, children(os.getpid())]))
"""
"""Nothing is tried beside threads, which a test runner has; and these files may end no test."""
AUDITS = """
import sys
from verifier.__main__ import main
from verifier.execution import trial_import

trial_import.try_out.__kwdefaults__["seconds"] = 2.0  # the right file is imported too
main()
"""


@pytest.fixture
def of_its_own(warm_python, tmp_path):
    """Return a function that runs a program in a process that has one thread."""
    return lambda program, *words: warm_python.run("-c", program, *words, folder=tmp_path)


@pytest.fixture
def tried(of_its_own, tmp_path):
    """Return a function: what is said of each file, and which processes are left; a file may hang for 1 s."""

    def answers(**sources):
        asked = []
        for name, source in sources.items():
            (tmp_path / f"{name}.py").write_text(source)
            asked.append(
                (str(tmp_path / f"{name}.py"), 1.0 if name in ("hangs", "computes", "starts") else 30.0)
            )
        done = of_its_own(TRIES, json.dumps(asked))
        assert done.returncode == 0, done.stderr
        return dict(zip(sources, map(json.loads, done.stdout.splitlines()), strict=True))

    return answers


def test_a_file_that_hangs_or_ends_its_process_is_said_with_its_line(tried):
    answers = tried(**{name: source for name, (source, _) in ENDS.items()})
    for name, (_, said) in ENDS.items():
        message, left = answers[name]
        assert re.search(f"{name}.py: .*{said}", message)
        assert left == []


def test_what_a_file_raises_is_left_to_the_import_itself(tried, tmp_path):
    raises = {
        "value": "raise ValueError('so')",
        "leaves": "import sys; sys.exit(0)",
        "base": "raise BaseException('so')",
        "syntax": "def broken(:",
    }
    answers = tried(right="x = 1", **raises)
    assert set(map(str, answers.values())) == {"['', []]"}
    for name in raises:
        with pytest.raises(LoadError, match=r"line 1: "):
            load(tmp_path / f"{name}.py")


def test_nothing_of_a_trial_is_left(tried, tmp_path):
    said = tmp_path / "said"
    source = f"""import subprocess
started = subprocess.Popen(["sleep", "987"])
open({str(said)!r}, "w").write(str(started.pid))
started.wait()
"""
    message, left = tried(starts=source)["starts"]
    assert "line 4" in message
    assert left == []
    sleeper = Path(f"/proc/{said.read_text()}/cmdline")
    end = time.monotonic() + 10
    while sleeper.exists() and sleeper.read_bytes() and time.monotonic() < end:
        time.sleep(0.01)
    assert not (sleeper.exists() and sleeper.read_bytes())


def test_beside_another_thread_nothing_is_tried(tmp_path):
    (tmp_path / "leaves.py").write_text(ENDS["leaves"][0])
    done = threading.Event()
    waiting = threading.Thread(target=done.wait)
    waiting.start()
    try:
        trial_import.try_out(tmp_path / "leaves.py")
    finally:
        done.set()
        waiting.join()


def test_files_that_cannot_be_loaded_cost_the_others_no_line(file, of_its_own, tmp_path):
    for name, (source, _) in ENDS.items():
        (tmp_path / f"{name}.py").write_text(source)
    (tmp_path / "loop.py").symlink_to("loop.py")
    with (tmp_path / "large.py").open("wb") as large:
        large.truncate(20 << 30)
    bad = ["hangs.py", "leaves.py", "crashes.py", "loop.py", "large.py", "nowhere.py"]
    words = ("audit", *bad, file, "--subject", "good", *QUICK, "--json", "r.json")
    done = of_its_own(AUDITS, *words)
    assert done.returncode == 2, done.stderr
    assert [x.split(": ")[1] for x in done.stderr.splitlines()] == bad
    assert "1 PASS" in done.stdout
    assert "6 files or subjects could not be used" in done.stdout
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["status"], len(report["unusable"]), len(report["lines"])) == (2, 6, 1)
    done = of_its_own(AUDITS, "audit", *bad[1:3])
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 2)


def test_a_declaration_that_names_what_does_not_exist_ends_an_audit_with_its_status(kernel_file, of_its_own):
    """What it was meant to be, nobody judged; the others are."""
    for name, (meant, typo) in {
        "op": ("layer_norm", "layer_nrom"),
        "variance": ("two_pass", "two_pas"),
    }.items():
        source = KERNELS.replace("**DECLARED", f'**{{**DECLARED, "{name}": "{typo}"}}', 1)
        done = of_its_own(AUDITS, "audit", str(kernel_file(source, name=f"{name}.py")), *QUICK)
        assert done.returncode == 2
        assert f"(did you mean {meant}?)" in done.stdout
        assert "2 files or subjects could not be used" in done.stdout  # KERNELS has one, too


def test_a_path_beyond_ascii_is_read_where_the_locale_is_c(kernel_file, tmp_path):
    kernel_file(KERNELS, name="kérnel.py")
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    plain["PYTHONPATH"] = str(Path(trial_import.__file__).parents[2])
    words = [sys.executable, "-m", "verifier", "list", "kérnel.py"]
    ended = subprocess.run(words, cwd=tmp_path, env=plain, capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert b"good" in ended.stdout


def test_a_path_that_is_no_utf_8_is_said(tmp_path):
    path = tmp_path / "k\udcff.py"
    path.write_text("")
    with pytest.raises(LoadError, match=r"k\\udcff.py: the path is not read as UTF-8"):
        load(path)
