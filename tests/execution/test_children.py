"""No kernel file's process reaches another's: each has a fresh child, and what it started ends with it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from waiting import gone, until

from verifier.cases.recipe import Recipe, build
from verifier.execution import Runner, child_process
from verifier.execution.preloaded import preloaded
from verifier.execution.process_tree import Use, children, tree
from verifier.ops import op

TELLS = """
import os, sys
@subject(**DECLARED)
def tells(input, weight=None, bias=None, eps=1e-5):
    told = (torch.is_grad_enabled(), torch.get_default_dtype() == torch.float32, torch.empty is original,
            not torch.are_deterministic_algorithms_enabled(), "LEFT" not in os.environ,
            type(sys.stdout).__name__ != "int")
    return torch.tensor(told, dtype=input.dtype)
"""
LEAVES = """
import os, sys
torch.set_grad_enabled(False)
torch.set_default_dtype(torch.float64)
torch.use_deterministic_algorithms(True)
torch.empty = torch.zeros
os.environ["LEFT"] = "1"
sys.stdout = 1
@subject(**DECLARED)
def leaves(input, weight=None, bias=None, eps=1e-5):
    return input
"""
THREADS = """
import os, socket, sys, threading
from multiprocessing.connection import Connection
import torch
from verifier.execution.fork_server import _Server
all_here, wrong, ones = threading.Barrier(8), [], torch.ones(1 << 16)

def first_use():
    all_here.wait()
    try:
        ones + 1
    except RuntimeError as error:
        wrong.append(error)

def child(pipe, backend, told):
    threads = [threading.Thread(target=first_use) for _ in range(8)]
    for one in threads: one.start()
    for one in threads: one.join()
    os._exit(len(wrong))

torch.set_num_threads(1)
ones + 1
server = _Server(Connection(socket.socketpair()[0].detach()), None, child)
lacking = 0
for _ in range(60):
    if (pid := os.fork()) == 0:
        server.become_child(os.dup(2), os.dup(2), None)
    lacking += os.waitpid(pid, 0)[1] != 0
print("copies that lack a pool:", lacking)
"""
FORKS = """
import os, time
@subject(**DECLARED)
def keeps_the_pipe(input, weight=None, bias=None, eps=1e-5):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
    return input

@subject(**DECLARED)
def answers_twice(input, weight=None, bias=None, eps=1e-5):
    if os.fork() == 0:
        return input + 1  # the copy goes on as if it were the child
    time.sleep(0.2)
    return input

@subject(**DECLARED)
def segfaults(input, weight=None, bias=None, eps=1e-5):
    import ctypes
    ctypes.string_at(8)

@subject(**DECLARED)
def good(input, weight=None, bias=None, eps=1e-5):
    return input
"""
WAITS = """
import os, time
@subject(**DECLARED)
def hangs_once(input, weight=None, bias=None, eps=1e-5):
    if not os.path.exists(MARK):
        open(MARK, "w").close()
        time.sleep(600)
    return input

@subject(**DECLARED)
def computes_for_ever(input, weight=None, bias=None, eps=1e-5):
    while True:
        pass

@subject(**DECLARED)
def computes_in_a_process_for_ever(input, weight=None, bias=None, eps=1e-5):
    if os.fork() == 0:
        while True:
            pass
    os.wait()

@subject(**DECLARED)
def takes_a_second(input, weight=None, bias=None, eps=1e-5):
    time.sleep(1)
    return input

def compiles(seconds):
    from verifier.subjects.compiling import marked
    with marked():
        begun = time.process_time()
        while time.process_time() - begun < seconds:
            pass

@subject(**DECLARED)
def is_compiled_first(input, weight=None, bias=None, eps=1e-5):
    compiles(1.5)
    return input

@subject(**DECLARED)
def is_compiled_for_ever(input, weight=None, bias=None, eps=1e-5):
    compiles(600.0)
    return input
"""


@pytest.fixture
def runner():
    with Runner("eager", case_seconds=20.0) as made:
        yield made


def case_for(subject):
    return build(op("layer_norm"), subject, "float32", Recipe(rows=2, columns=3), gradients=False)


def observed(runner, subject):
    return runner.run(subject, case_for(subject))


def test_what_one_file_sets_for_its_process_does_not_reach_the_next(runner, subjects_of):
    told = subjects_of("original = torch.empty\n" + TELLS, name="tells.py")["tells"]
    alone = observed(runner, told).outputs["output"]
    # Written and named only: the file is loaded in its child alone.
    subject = subjects_of(TELLS, name="leaves.py")["tells"]
    Path(subject.path).write_text(Path(subject.path).read_text().replace(TELLS, LEAVES))
    runner.run(subject, case_for(subject))
    told = subjects_of("original = torch.empty\n" + TELLS, name="later.py")["tells"]
    assert torch.equal(observed(runner, told).outputs["output"], alone)
    assert alone.all()


def test_a_forked_process_that_keeps_the_pipe_hides_no_death_and_does_not_live_on(runner, subjects_of):
    subjects = subjects_of(FORKS)
    assert observed(runner, subjects["good"]).status == "ok"
    server = runner._server._process.pid
    before = set(children(server))  # other runners of this process have children there, too
    assert observed(runner, subjects["keeps_the_pipe"]).status == "ok"
    left = until(lambda: set(children(server)) - before)
    assert left, "the process that was left behind belongs to the server"
    seen = observed(runner, subjects["segfaults"])
    assert (seen.status, seen.message) == ("crashed", "the process was killed by SIGSEGV")
    assert until(lambda: all(map(gone, left)))
    assert set(children(server)) < before


def test_the_threads_of_a_copy_find_their_pool_whichever_of_them_uses_torch_first():
    # Where the pool was not made before, one copy in ten had threads that found none.
    run = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=True)
    assert run.stdout == "copies that lack a pool: 0\n"


def test_an_answer_that_another_process_gives_is_never_taken_for_one(runner, subjects_of):
    subjects = subjects_of(FORKS)
    case = case_for(subjects["good"])
    for name in ("answers_twice", "answers_twice", "good", "good"):
        seen = runner.run(subjects[name], case)
        assert seen.status == "ok"
        assert torch.equal(seen.outputs["output"], case.tensors["input"])


def test_files_that_are_visited_in_turn_keep_their_children_up_to_a_number(runner, subjects_of):
    made = [subjects_of(FORKS, name=f"file{n}.py")["good"] for n in range(child_process.KEPT + 1)]
    for subject in made:
        observed(runner, subject)
    first = [child.pid for child in runner._children.values()]
    assert len(first) == child_process.KEPT
    observed(runner, made[-1])
    assert [child.pid for child in runner._children.values()] == first


def test_the_preloaded_process_has_one_thread_and_no_device(runner, subjects_of):
    observed(runner, subjects_of(FORKS)["good"])
    for backend in ("eager", "machine"):
        server = preloaded(backend, {})
        server._wait_for_start()
        own = Path(f"/proc/{server._process.pid}")
        assert len(list((own / "task").iterdir())) == 1
        assert "nvidia" not in " ".join(str(fd.readlink()) for fd in (own / "fd").iterdir())
    hidden = b"CUDA_VISIBLE_DEVICES=\0"
    assert hidden in (own / "environ").read_bytes(), "what runs on the machine must reach no real device"


COPIED = """
import json, os, sys
import verifier.audit.run_audit
from verifier.execution.preloaded import copy_ahead, preloaded
open_file = open(os.devnull)
copy_ahead("machine", "eager", "interpreter")
from test_children import *
from verifier.execution.preloaded import _started
from verifier.execution.process_tree import Copy
from verifier.subjects.load_file import load_subjects
found = {}
for name in ("machine", "eager"):
    server = preloaded(name, {})
    server._wait_for_start()
    own = Path(f"/proc/{server._process.pid}")
    found[name] = (type(server._process).__name__, len(list((own / "task").iterdir())),
                   os.getsid(server._process.pid) == server._process.pid,
                   os.path.realpath(own / "fd" / str(open_file.fileno())))
subject = next(s for s in load_subjects(sys.argv[1]) if s.name == "good")
runner = Runner("eager")
found["status"] = observed(runner, subject).status
found["interpreter"] = "interpreter" in _started
found["left"] = [one._process.pid for one in _started.values()]
print(json.dumps(found))
"""


def test_a_copy_of_the_verifier_serves_as_well_as_a_program_of_its_own(subjects_of):
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    file = subjects_of(FORKS)["good"].path
    ended = subprocess.run(
        [sys.executable, "-c", COPIED, str(file)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        text=True,
    )
    found = json.loads(ended.stdout)
    assert all(map(gone, found.pop("left")))
    one = ["Copy", 1, True, os.devnull]
    assert found == {"machine": one, "eager": one, "status": "ok", "interpreter": False}


@pytest.mark.parametrize(
    "ahead", ["", "from verifier.execution.preloaded import copy_ahead; copy_ahead('eager')"]
)
def test_a_verifier_that_is_killed_leaves_no_process_behind(ahead, subjects_of, tmp_path):
    subject = subjects_of(FORKS)["keeps_the_pipe"]
    code = f"""
import time
{ahead}
from test_children import *
from verifier.subjects.load_file import load_subjects
subject = next(s for s in load_subjects({str(subject.path)!r}) if s.name == "keeps_the_pipe")
runner = Runner("eager")
observed(runner, subject)
print("ready", flush=True)
time.sleep(600)
"""
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    ) as verifier:
        assert verifier.stdout.readline() == b"ready\n"
        below = tree(verifier.pid)[1:]
        assert len(below) >= 3
        verifier.send_signal(signal.SIGKILL)
    assert until(lambda: all(map(gone, below)))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("computes_for_ever", "no answer within 0.75 seconds of processor time"),
        ("computes_in_a_process_for_ever", "no answer within 0.75 seconds of processor time"),
        ("takes_a_second", "stopped after 0.5 seconds in which it computed nothing"),
        ("is_compiled_for_ever", "no answer within 0.75 seconds of processor time, and 2 of compilers"),
    ],
)
def test_a_limit_is_one_of_processor_time_or_of_time_without_work(name, said, subjects_of):
    subject = subjects_of(f"MARK = ''\n{WAITS}")[name]
    with Runner("eager", case_seconds=0.5) as impatient:
        seen = observed(impatient, subject)
    assert seen.status == "timeout"
    assert said in seen.message


def test_what_compilers_take_is_counted_apart(subjects_of):
    subject = subjects_of(f"MARK = ''\n{WAITS}")["is_compiled_first"]
    with Runner("eager", case_seconds=0.5) as impatient:
        assert observed(impatient, subject).status == "ok"


def test_a_process_that_waits_for_a_processor_is_not_out_of_time(subjects_of, monkeypatch):
    subject = subjects_of(f"MARK = ''\n{WAITS}")["takes_a_second"]
    monkeypatch.setattr(child_process, "use", lambda pid: Use(seconds=0.0, wanting=True))
    with Runner("eager", case_seconds=0.3) as impatient:
        assert observed(impatient, subject).status == "ok"


def test_a_case_that_is_out_of_time_is_run_once_more_in_a_fresh_child(subjects_of, tmp_path):
    subject = subjects_of(f"MARK = {str(tmp_path / 'mark')!r}\n{WAITS}")["hangs_once"]
    with Runner("eager", case_seconds=0.5) as impatient:
        assert observed(impatient, subject).status == "ok"
