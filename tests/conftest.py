"""What all tests share: Hypothesis profiles, a helper for plugins, kernel files, runners, a compiler.

Fixtures import what they need: the process that workers wait for to be started has no use for torch.
"""

import gc
import os
import textwrap
from pathlib import Path

import pytest
from hypothesis import settings
from warm_python import WarmPython
from xdist.scheduler import WorkStealingScheduling

from strategies.profiles import register_profiles
from verifier.records.garbage import keep_freed_memory

pytest_plugins = ["pytester"]

MOST_MAPPED = 16 * 2**30
LEFT = [0]
"""From how many mapped bytes on garbage is collected again: what a collection left, and a GiB."""

FEW = 8
"""Cases of a line where a command is asked for what it says."""

register_profiles()
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give each worker a stretch of the tests, not every second one: what it translated, it meets again."""
    return WorkStealingScheduling(config, log) if config.getvalue("dist") == "load" else None


def pytest_collection_finish():
    """Spare the collector of garbage what lives to the end: torch, Triton and thousands of tests."""
    gc.collect()
    gc.freeze()
    keep_freed_memory()
    gc.set_threshold(50_000, 20, 100)  # by default it looks after every 700 new objects


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown():
    """Let go of huge tensors that only garbage holds: a process cannot fork that maps more than there is."""
    if mapped() > max(MOST_MAPPED, LEFT[0]):
        gc.collect()
        LEFT[0] = mapped() + MOST_MAPPED // 16  # what stays after all would be looked for after every test


def mapped():
    """Return how many bytes this process maps."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish():
    """Let the interpreter take down at its end what was frozen: bindings count what is left."""
    gc.unfreeze()
    gc.set_threshold(700, 10, 10)


HEAD = """
import torch
from verifier import Domain, KnownDefect, subject, tree

DECLARED = dict(op="layer_norm", language="torch", variance="two_pass", accumulates="float32",
                dtypes=("float32",), differentiable=False)

def right(input, weight, bias, eps):
    x = input.to(torch.float64) if input.dtype == torch.float64 else input.float()
    mean = x.mean(-1, keepdim=True)
    rstd = 1 / torch.sqrt((x - mean).square().mean(-1, keepdim=True) + eps)
    out = (x - mean) * rstd
    out = out if weight is None else out * weight
    return (out if bias is None else out + bias).to(input.dtype)

"""


@pytest.fixture(scope="session")
def warm_python(tmp_path_factory):
    """What runs Python programs without a start of their own."""
    process = WarmPython(tmp_path_factory.mktemp("warm"), Path(__file__).parents[1])
    yield process
    process.close()


@pytest.fixture(scope="session", autouse=True)
def _servers_are_forked(request):
    """Fork what forks workers, or children of a backend with options; a program would import all anew."""
    from verifier.execution import preloaded
    from verifier.execution.backends import backend

    class Forked(preloaded.Preloaded):
        def __init__(self, name, options, **about):
            self.forked = name is None or (bool(options) and backend(name).copied)
            super().__init__(name, options, **about)

        def _execute(self, control):
            if not self.forked:
                return super()._execute(control)
            return request.getfixturevalue("warm_python").serve(self, control)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preloaded, "Preloaded", Forked)
        yield


@pytest.fixture
def runner():
    from in_process import InProcess

    return InProcess("eager")


@pytest.fixture
def no_child(monkeypatch):
    """Let audits, replays and descriptions run subjects in this process."""
    from in_process import InProcess

    from verifier.audit import replay, run_audit
    from verifier.commands import cost_of_dtype, describe

    monkeypatch.setattr(run_audit, "_runners", {})
    for module in (run_audit, replay, describe, cost_of_dtype):
        monkeypatch.setattr(module, "Runner", InProcess)


@pytest.fixture
def kernel_file(tmp_path):
    """Return a function that writes a kernel file of the given body after common beginnings."""

    def write(body, name="kernel.py", folder=None, head=HEAD):
        path = (folder or tmp_path) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(head + textwrap.dedent(body), encoding="utf-8")
        return path

    return write


@pytest.fixture
def subjects_of(kernel_file):
    """Return a function from the body of a kernel file to its subjects by name."""
    from verifier.subjects.load_file import load_subjects

    def load(body, **options):
        return {s.name: s for s in load_subjects(kernel_file(body, **options))}

    return load


@pytest.fixture(scope="session")
def compiler():
    """Skip, with the reason, where NVRTC is not installed."""
    from verifier.subjects import nvrtc

    try:
        return nvrtc.version()
    except nvrtc.MissingCompilerError as missing:
        pytest.skip(str(missing))


@pytest.fixture
def cache_folder(tmp_path, monkeypatch):
    """Give the test an empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "norm-verifier" / "cuda"


@pytest.fixture
def command(no_child, monkeypatch, capsys, tmp_path):
    """Return a function that runs the command in this process: (status, output, error).

    What a search finds is asked elsewhere: here one of a budget of cases has few.
    """
    from verifier.audit.request import BUDGETS
    from verifier.commands.command_line import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(BUDGETS, "quick", FEW)

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["norm-verifier", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        written = capsys.readouterr()
        return ended.value.code or 0, written.out, written.err

    return run
