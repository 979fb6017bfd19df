"""What recording and certifying one kernel costs, measured in a process of its own; prints a line of JSON.

    python benchmarks/graph_costs.py FILE SUBJECT DTYPE

plain, recorded: processor seconds of a run at 2 x 4096 and of one that records it, forward and, where there
is a backward pass, with gradients; the least of five, in turns. certificate: processor seconds of a
certificate there, of the process of the machine too, after one in which all is compiled; the least of two.
slowness: how many times as long as on the machine that limits are meant for, where it took `USUAL` seconds, a
plain forward pass of `layer_norm_two_pass_triton` took before and after it, since a machine that is shared is
fast and slow by turns, and another one is neither; certificates are in seconds of that machine. memory: the
most bytes that a fresh process held (`ru_maxrss`) that records the kernel at 2 x 65536, Python, torch and
Triton among them; base: what they hold before.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from verifier.checks.support.certificate_at_shape import certified
from verifier.commands.explain import case_for
from verifier.execution import Runner
from verifier.execution.backends import backend
from verifier.execution.call_subject import execute
from verifier.execution.process_tree import use
from verifier.execution.record_graph import record, recorded_graph
from verifier.machine import session
from verifier.ops import op
from verifier.records.case import Case
from verifier.records.certificate import Certificate
from verifier.records.subject import Subject
from verifier.subjects.load_file import load_subject

ROWS, COLUMNS, WIDE = 2, 4096, 65536
MEMORY_FIELD = "memory"
ROUNDS = 5
TIMED, USUAL = "layer_norm_two_pass_triton", 2.6e-3


def main(path: str, name: str, dtype: str, what: str = "", gradients: str = "") -> None:
    """Print what was measured; what: "memory" alone, in the process that is measured."""
    torch.set_num_threads(1)
    subject = load_subject(path, name)
    if what == MEMORY_FIELD:
        print(json.dumps(memory(subject, dtype, gradients=bool(gradients))))
        return
    found: dict[str, object] = {"kernel": name, "dtype": dtype}
    has = subject.differentiable and bool(op(subject.op).differentiable)
    for way in (False, True) if has else (False,):
        case = case_for(subject, dtype, ROWS, COLUMNS, 0.0, 0, recorded=True)
        arguments = [sys.executable, __file__, path, name, dtype, MEMORY_FIELD, *(["yes"] if way else [])]
        child = subprocess.run(arguments, capture_output=True, text=True, check=False)
        wide = json.loads(child.stdout) if child.returncode == 0 else {}
        found["gradients" if way else "forward"] = {
            **recording(subject, case, gradients=way),
            **certificate(subject, case, gradients=way),
            **wide,
        }
    print(json.dumps(found))


def recording(subject: Subject, case: Case, *, gradients: bool) -> dict[str, float]:
    """Return processor seconds of a plain run and of one that records."""
    place = backend("machine")
    plain, recorded = [], []
    with session():
        for _ in range(ROUNDS + 1):
            plain.append(_seconds(lambda: execute(subject, case, backend=place, gradients=gradients)))
            recorded.append(_seconds(lambda: record(subject, case, backend=place, gradients=gradients)))
    return {"plain": min(plain[1:]), "recorded": min(recorded[1:])}  # the first ones compile


def certificate(subject: Subject, case: Case, *, gradients: bool) -> dict[str, object]:
    """Return processor seconds of a certificate, where nothing is left to compile."""
    found = []
    with Runner("machine", case_seconds=600.0) as runner:
        given = certified(subject, case, runner=runner, gradients=gradients)
        for _ in range(2):
            slow, before = _slowness(), use(os.getpid()).seconds
            certified(subject, case, runner=runner, gradients=gradients)
            seconds = use(os.getpid()).seconds - before
            slow = (slow + _slowness()) / 2
            found.append((seconds / slow, slow))
    seconds, slow = min(found)
    refused = "" if isinstance(given, Certificate) else given.stage
    return {"certificate": seconds, "slowness": slow, "refused": refused}


def memory(subject: Subject, dtype: str, *, gradients: bool) -> dict[str, int]:
    """Return the most bytes that this process has held before and after it records a wide case."""
    place, before = backend("machine"), _most()
    case = case_for(subject, dtype, ROWS, WIDE, 0.0, 0, recorded=True)
    with session():
        seen = recorded_graph(subject, case, backend=place, gradients=gradients)
    assert seen.status == "ok", seen.message
    return {MEMORY_FIELD: _most(), "base": before}


def _most() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _slowness() -> float:
    kernels = Path(__file__).parents[1] / "kernels"
    subject = load_subject(kernels / f"{TIMED}.py", TIMED)
    case = case_for(subject, "float16", ROWS, COLUMNS, 0.0, 0, recorded=True)
    with session():
        runs = [
            _seconds(lambda: execute(subject, case, backend=backend("machine"), gradients=False))
            for _ in range(ROUNDS + 1)
        ]
    return min(runs[1:]) / USUAL


def _seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


if __name__ == "__main__":
    main(*sys.argv[1:])
