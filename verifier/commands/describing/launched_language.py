"""In which language a kernel is written: what a function launches decides, not the text of its file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from verifier.cases.recipe import Recipe, build
from verifier.execution import Runner
from verifier.execution.backends import backend
from verifier.ops import op
from verifier.records.planned_launches import DryRun
from verifier.records.subject import Language, Subject
from verifier.subjects.language import may_launch
from verifier.subjects.used_functions import used_by

DRY_RUN = "verifier.execution.dry_run:plan_launches"
PLACE = "machine"
"""The backend whose children make dry runs."""
ROWS, COLUMNS = 4, 256


def launched_language(
    function: Callable[..., object], trials: Sequence[Subject], runner_of: type[Runner]
) -> tuple[Language, str]:
    """Return the language of the kernels that a function launches, and how that is known.

    trials: the function as the ops that it may be; the first that goes through a dry run decides.
    """
    used = used_by(function)
    named = may_launch(used)
    if named == "torch":
        return "torch", "nothing that the function comes to launches a kernel"
    why = backend(PLACE).unavailable() or ""
    if not why:
        with runner_of(PLACE) as runner:
            for trial in trials:
                names, files, why = _launched(trial, runner)
                if names:
                    language: Language = (
                        "cuda" if any(Path(f).suffix in {".cu", ".cuh"} for f in files) else "triton"
                    )
                    return language, f"a call launches {' and '.join(names[:2])}"
                if not why:
                    return "torch", "a call launches no kernel"
    return named or "torch", f"that is what the function may launch; a dry run did not end ({why})"


def _launched(trial: Subject, runner: Runner) -> tuple[list[str], tuple[str, ...], str]:
    """Return the kernels of one call, the files that had a part in it, and why it did not end."""
    recipe = Recipe(rows=ROWS, columns=COLUMNS)
    case = build(op(trial.op), trial, trial.dtypes[0], recipe, gradients=False)
    if case is None:
        return [], (), "its arguments do not fit"
    seen = runner.run(trial, case, experiment=DRY_RUN, points=((ROWS, COLUMNS, 0),), gradients=False)
    if seen.status != "ok":
        return [], (), seen.message
    found = seen.found_as(DryRun)
    if not found.planned:
        return [], (), found.ended or "nothing was seen"
    names = sorted(feature for feature in found.planned[0].features if ": " not in feature)
    return names, found.files, found.planned[0].refused
