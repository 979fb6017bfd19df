"""A function under test as ops that it may be: adapters in files of their own, and errors on single cases."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from strategies.values import Values
from verifier.cases.recipe import Recipe, build
from verifier.checks.support.output_verdict import judge
from verifier.checks.support.session import Session, StoppedError
from verifier.commands.describing.calling import Calling
from verifier.commands.describing.found_function import Found
from verifier.execution import Runner
from verifier.execution.backends import backend
from verifier.ops import op
from verifier.records.case import Case
from verifier.records.observation import Observation
from verifier.records.subject import Claim, Language, Subject
from verifier.subjects.load_file import load

DTYPES = ("float32", "float16", "bfloat16", "float64")
LARGE = 1e30
"""|input| whose squares overflow in float32, but no norm of it does."""
PROMISED = (1e15, 1e12, 1e9, 1e6, 1e3)
"""|input| that a declaration promises where results for `LARGE` are wrong: the first that is right."""
LARGEST = 3e38
"""|input| of which a sum overflows in float32."""
PLAUSIBLE_ULP = 1e4
"""float32 error up to which a result on ordinary data is taken for the op with roundings: 2**-10 relative."""
RECOGNISED_ULP = MappingProxyType(
    {"float32": PLAUSIBLE_ULP, "float16": 8.0, "bfloat16": 4.0, "float64": PLAUSIBLE_ULP}
)
"""The same where only one dtype tells the op: 2**-7 and 2**-5 relative in half, where ops differ by 2**-4."""


@dataclass(frozen=True, kw_only=True)
class Trials:
    """A function of a file, and a folder in which adapters to it are written."""

    path: Path
    found: Found
    folder: Path
    _written: list[Path] = field(default_factory=list)

    def subject(self, calling: Calling, language: Language) -> Subject:
        """Return the function as a subject without a claim, by an adapter where it needs one."""
        function, path, name = self.function, self.path.resolve(), self.name
        if not calling.plain:
            name = f"{self.name}_as_{calling.op}"
            path = self.write("\n".join((*calling.imports(), calling.source(name, self.called), "")))
            function = getattr(load(path).module, name)
        return Subject(
            function=function,
            name=name,
            path=path,
            op=calling.op,
            language=language,
            dtypes=DTYPES,
            claim=Claim(),
        )

    def write(self, text: str) -> Path:
        """Write a file in which the function is known by its name; return its path."""
        path = self.folder / f"trial_{len(self._written)}.py"
        head = (
            "from verifier import Subject, load",
            f"_found = getattr(load({str(self.path.resolve())!r}).module, {self.name!r})",
            f"{self.name} = _found.function if isinstance(_found, Subject) else _found",
        )
        path.write_text("\n".join((*head, text)), encoding="utf-8")
        self._written.append(path)
        return path

    @property
    def name(self) -> str:
        """The function's name in its file, which may be another than its own."""
        return self.found.name

    @property
    def called(self) -> str:
        """The text by which the function is called."""
        return self.found.called

    @property
    def function(self) -> Callable[..., object]:
        """The function itself."""
        return self.found.function

    @property
    def signature(self) -> str:
        """The function with its arguments."""
        return self.found.signature


def recognised(trial: Subject, runner: Runner) -> tuple[str, dict[str, float], str]:
    """Return the first dtype that gives the op's results, or "", their errors, and the first obstacle."""
    obstacle = ""
    for dtype in DTYPES:
        if backend(runner.backend).refuses(trial, dtype):
            continue
        found, why = errors(trial, runner, ordinary(trial, dtype, 0.0))
        if found.get("output", math.inf) < RECOGNISED_ULP[dtype]:
            return dtype, found, obstacle
        if found:  # It ran and is another op: the next dtype would only say so less clearly.
            return "", {}, f"{obstacle}; {dtype}: {why}" if obstacle else why
        obstacle = obstacle or why
    return "", {}, obstacle


def accepts(trial: Subject, runner: Runner, dtype: str) -> bool:
    """Return whether results of a dtype are about right."""
    if backend(runner.backend).refuses(trial, dtype):
        return False
    return plausible(errors(trial, runner, ordinary(trial, dtype, 0.0))[0])


def plausible(found: dict[str, float]) -> bool:
    """Return whether errors are those of roundings."""
    return found.get("output", math.inf) < PLAUSIBLE_ULP


def holds(trial: Subject, runner: Runner, size: float) -> bool:
    """Return whether the result is still right in float32 where the largest input has this size."""
    case = _of_size(trial, size)
    return case is None or plausible(errors(trial, runner, case)[0])


def finite(trial: Subject, runner: Runner, size: float) -> bool:
    """Return whether the result is still finite in float32 where the largest input has this size."""
    case = _of_size(trial, size)
    seen = None if case is None else executed(session_of(trial, runner, case))[0]
    output = None if seen is None else seen.outputs.get("output")
    return output is None or bool(output.isfinite().all())


def _of_size(trial: Subject, size: float) -> Case | None:
    """Return a small case in float32 whose largest input has this size."""
    case = ordinary(trial, "float32", 0.0)
    if case is None:
        return None
    largest = case.given["input"].abs().max()
    return replace(case, tensors={**case.tensors, "input": case.given["input"] * (size / largest)})


def errors(
    trial: Subject, runner: Runner, case: Case | None, *, gradients: bool = False
) -> tuple[dict[str, float], str]:
    """Return the worst row-scaled error of each output on one case, none if it does not run; and in words."""
    if case is None:
        return {}, "its arguments do not fit"
    session = session_of(trial, runner, case)
    seen, why = executed(session, gradients=gradients)
    if seen is None:
        return {}, why
    names = ("output", "grad_input") if gradients else ("output",)
    wrong = session.shape_outcomes(seen, ("output",))
    if wrong:
        return {}, wrong[0].message
    found = {o.output: o.worst.row_ulp for o in judge(session.truth, seen, names) if o.worst}
    return found, f"off by {found['output']:.3g} ulp" if "output" in found else "no output to compare"


def executed(session: Session, *, gradients: bool = False) -> tuple[Observation | None, str]:
    """Return what one call shows, or None and why it does not run."""
    try:
        seen = session.execute(gradients=gradients)
    except StoppedError as stopped:
        return None, stopped.outcome.message
    return (None, session.unlaunched[0]) if session.unlaunched else (seen, "")


def session_of(trial: Subject, runner: Runner, case: Case) -> Session:
    """Return the subject on a case at the runner's place."""
    place = backend(runner.backend)
    return Session(
        subject=trial,
        case=case,
        backend=runner.backend,
        setting=place.setting(trial, case.dtype),
        run=runner.run,
    )


def ordinary(
    trial: Subject, dtype: str, kappa: float, *, eps: float = 1e-5, without: str | None = None
) -> Case | None:
    """Return a small case with ordinary numbers, or rows of a large mean. without: a tensor to leave out."""
    values = Values(hazard="cancellation", strength=round(math.log10(kappa))) if kappa else Values()
    recipe = Recipe(
        rows=4,
        columns=256,
        input=values,
        weight=None if without == "weight" else Values(seed=1),
        bias=None if without == "bias" else Values(seed=2),
        further=(("residual", Values(seed=3)), ("gate", Values(seed=4))),
        eps=eps,
    )
    return build(op(trial.op), trial, dtype, recipe, gradients=True)
