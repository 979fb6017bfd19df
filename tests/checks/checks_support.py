"""Runs one check on the first cases of its plan, in this process."""

import importlib
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path

from verifier import load
from verifier.backends import backend
from verifier.checks import check
from verifier.examine import Examination
from verifier.ops import op
from verifier.recipes import build, covering
from verifier.runner.execute import answer
from verifier.verdicts import Verdict

ROOT = Path(__file__).parents[2]
FAULTY = ROOT / "tests" / "faulty_kernels"
KERNELS = ROOT / "kernels"


class Inline:
    """A runner without a process of its own: for subjects that harm nobody."""

    def __init__(self, place):
        self.backend = place

    def run(self, subject, case, *, experiment="verifier.runner.execute:execute", **options):
        module, function = experiment.split(":")
        experiment_of = getattr(importlib.import_module(module), function)
        return answer(experiment_of, subject, case, place=backend(self.backend), **options)


def subject_of(path):
    """Return the one subject of a file."""
    (subject,) = load(path).subjects
    return subject


def faulty(stem):
    """Return the subject of a faulty kernel."""
    return subject_of(FAULTY / f"{stem}.py")


def planted(folder, changes, source, beside=()):
    """Return the subject of a copy of a kernel file in which texts are replaced.

    beside: stems of kernels that are copied too; the last is the one whose subject is returned.
    """
    text = source.read_text(encoding="utf-8")
    for old, new in changes.items():
        assert old in text, f"{source.name} has no {old!r}"
        text = text.replace(old, new)
    folder.mkdir(exist_ok=True)
    (folder / source.name).write_text(text, encoding="utf-8")
    for stem in beside:
        copied = (KERNELS / f"{stem}.py").read_text(encoding="utf-8")
        (folder / f"{stem}.py").write_text(copied, encoding="utf-8")
    return subject_of(folder / (f"{beside[-1]}.py" if beside else source.name))


def planted_log_softmax(folder, changes):
    """Return the subject of log_softmax in Triton whose kernels, those of softmax, are changed."""
    beside = ("layer_norm_two_pass_triton", "log_softmax_triton")
    return planted(folder, changes, KERNELS / "softmax_triton.py", beside)


def examination(subject, check_name, dtype=None, place="eager", **settings):
    """Return an examination that runs in this process."""
    return Examination(
        subject=subject,
        check_name=check_name,
        dtype=dtype or subject.dtypes[0],
        runner=Inline(place),
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


def outcomes_of(subject, check_name, dtype=None, place="eager", count=10, **changes):
    """Return the outcomes of the check on the first cases of its plan, in one list."""
    examining = examination(subject, check_name, dtype, place)
    cases = cases_of(subject, check_name, dtype, count, **changes)
    return [outcome for case in cases for outcome in examining.judge(case)[0]]


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
