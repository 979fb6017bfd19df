"""Runs one check on the first cases of its plan, in this process."""

import hashlib
import os
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path

from in_process import InProcess

from verifier import load
from verifier.audit.examination import Examination
from verifier.cases.fixed_list import covering
from verifier.cases.recipe import build
from verifier.checks import check
from verifier.execution.backends import backend
from verifier.machine.device import triton_cache
from verifier.ops import op
from verifier.records.verdict import Verdict

ROOT = Path(__file__).parents[2]
FAULTY = ROOT / "tests" / "faulty_kernels"
KERNELS = ROOT / "kernels"
SUPPORT = Path(__file__).parent
SKELETONS = tuple(sorted(KERNELS.glob("*_skeleton_triton.py")))
"""What the Triton kernels load: it is copied along with them."""
PLANTED = ROOT / ".pytest_cache" / "planted"
"""Where copies lie, run after run: what is compiled is kept by the path of its file."""


class _AsAChild(InProcess):
    """Forgets what an earlier experiment launched before each, as a child of the machine backend does."""

    def run(self, subject, case, **options):
        backend(self.backend).begin()
        return super().run(subject, case, **options)


@contextmanager
def machine_runner():
    """Yield what runs experiments in this process, which plays a device as such a child does."""
    with machine(strict=True, poison=0xFF) as place, _AsAChild(place) as runner:
        yield runner


def subject_of(path):
    """Return the one subject of a file."""
    (subject,) = load(path).subjects
    return subject


def faulty(stem):
    """Return the subject of a faulty kernel."""
    return subject_of(FAULTY / f"{stem}.py")


def planted(changes, source, beside=()):
    """Return the subject of a copy of a kernel file, and of the skeletons, in which texts are replaced.

    beside: stems of kernels that are copied too; the last is the one whose subject is returned.
    """
    files = (source, *(SKELETONS if source.parent == KERNELS else ()))
    texts = {file.name: file.read_text(encoding="utf-8") for file in files}
    for old, new in changes.items():
        assert any(old in text for text in texts.values()), f"{source.name} has no {old!r}"
        texts = {name: text.replace(old, new) for name, text in texts.items()}
    texts |= {f"{stem}.py": (KERNELS / f"{stem}.py").read_text(encoding="utf-8") for stem in beside}
    return subject_of_texts(texts, f"{beside[-1]}.py" if beside else source.name)


def subject_of_texts(texts, name):
    """Return the subject of the file of that name, texts being those of a folder's files by name."""
    folder = PLANTED / hashlib.sha256(repr(sorted(texts.items())).encode()).hexdigest()[:16]
    for file, text in texts.items():
        _put(folder / file, text)
    return subject_of(folder / name)


def _file_of_a_copy(function, known=triton_cache.file_of):
    """Let copies in which other kernels are changed share what is compiled from a kernel that is not.

    Triton's key has its text, its first line and what it calls.
    """
    file = Path(known(function))
    return str(PLANTED / file.name if file.parents[1:2] == (PLANTED,) else file)


triton_cache.file_of = _file_of_a_copy


def _put(file, text):
    """Write a text file unless it is there; other processes may do the same."""
    if file.is_file() and file.read_text(encoding="utf-8") == text:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(f".{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.replace(file)


def planted_log_softmax(changes):
    """Return the subject of log_softmax in Triton whose kernels, those of softmax, are changed."""
    return planted(changes, KERNELS / "softmax_triton.py", ("log_softmax_triton",))


def in_turn(names, dtypes=("float16", "float32")):
    """Pair each name with one dtype, in turn: for kernels beside which nothing is rounded to a dtype."""
    return list(zip(names, cycle(dtypes)))


def examination(subject, check_name, dtype=None, place="eager", **settings):
    """Return an examination that runs in this process."""
    return Examination(
        subject=subject,
        check_name=check_name,
        dtype=dtype or subject.dtypes[0],
        runner=InProcess(place),
        **settings,
    )


def cases_of(subject, check_name, dtype=None, count=10, **changes):
    """List the first cases of the check's plan, restricted by `changes`."""
    plan = replace(check(check_name).plan(subject, op(subject.op)), **changes)
    recipes = islice(covering(subject, plan), 10 * count)
    built = (
        build(op(subject.op), subject, dtype or subject.dtypes[0], r, gradients=plan.gradients)
        for r in recipes
    )
    return list(islice((case for case in built if case is not None), count))


def outcomes_of(subject, check_name, dtype=None, place="eager", count=10, *, until=None, **changes):
    """Return the outcomes of the check on the first cases of its plan, in one list.

    until: ends with the first case that has an outcome of which this holds.
    """
    examining = examination(subject, check_name, dtype, place)
    found = []
    for case in cases_of(subject, check_name, dtype, count, **changes):
        found += (outcomes := examining.judge(case)[0])
        if until is not None and any(map(until, outcomes)):
            break
    return found


def must_be_right(subject, check_name, dtype):
    """Demand that a check of a norm of a library decides its first cases, and finds nothing.

    They have one shape, since each is a compilation.
    """
    with machine() as place:
        found = outcomes_of(subject, check_name, dtype, place, count=2, shapes=((4, 33),))
    verdicts = {o.verdict for o in found}
    assert Verdict.PASS in verdicts
    assert verdicts <= {Verdict.PASS, Verdict.NO_THEOREM}, [o.message for o in found]


def fails(outcome):
    """Return whether an outcome is a failure in numbers."""
    return outcome.verdict is Verdict.FAIL


def fails_in(result):
    """Return what says whether an outcome is a failure of a result."""
    return lambda outcome: fails(outcome) and outcome.output == result


def failures(outcomes):
    """Return those that are bad."""
    return [o for o in outcomes if o.verdict in {Verdict.FAIL, Verdict.CRASH, Verdict.TIMEOUT}]


def passes(outcomes):
    """Return those that passed."""
    return [o for o in outcomes if o.verdict is Verdict.PASS]


@contextmanager
def machine(**settings):
    """Play a device, as the child process of the machine backend does."""
    from verifier.machine import session

    with session(**settings):
        yield "machine"
