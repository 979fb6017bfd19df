"""Looks for the cause of a finding: changes its minimal case in one thing at a time and sees what passes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from strategies.layouts import Layout
from verifier.arithmetic.formats import FORMATS
from verifier.audit import rules
from verifier.audit.shrink import completed, remade
from verifier.audit.trial import Failure, Trial
from verifier.cases.recipe import laid
from verifier.execution.backends import backend
from verifier.ops import from_rows, op
from verifier.records import reach
from verifier.records.case import Case, raw_bytes
from verifier.records.observation import Observation
from verifier.records.subject import PARAMETERS, Subject
from verifier.records.verdict import FailureKey, Finding, Variant, Verdict

MOST_TRIES = 14
"""Cases that are judged for one finding, at most."""
SECONDS = 4.0
"""Time after which no further one is begun."""
MOST_ROWS = 3
"""Rows that are tried one by one; a minimal case rarely has more."""
LEAST_KAPPA = 4.0
"""Of |mean| / std: where it is less, no digits worth mentioning are lost to the mean."""
TELLING_COLUMNS = 7
"""Of ordinary numbers, at least: those of a row of two are exact once they are normalized."""
MOST_COLUMNS = 4096
"""Of a case that is made longer."""
WIDER = {"float16": "float32", "bfloat16": "float32", "float32": "float64"}
"""The format in which the numbers of a narrow one are looked at again."""
FRESH = "fresh memory holds 0"
UNWRITTEN = "memory that was never written is read, or returned"
UNSTEADY = "the result is not the same each time"
BESIDE = "memory beside the arguments"
KEPT_STATE = "what earlier calls have left is used"
MOST_FILLED = 1 << 26
"""Elements that a tensor may span if plain calls are made: what lies between them is filled each time."""
_SOUGHT = {Verdict.FAIL, Verdict.CRASH}
_SEED = 15
"""Of the numbers of rows that have another length than the minimal case."""
_USUAL = "verifier.execution.call_subject:execute"


def explained(trial: Trial, finding: Finding) -> Finding:
    """Return the finding with what makes its case pass, as far as that is found in time."""
    outcome = finding.outcome
    sought = finding.verdict in _SOUGHT and not finding.expected and outcome.output != "declaration"
    sought &= "step_limit" not in {outcome.output, outcome.machine_finding}  # each case would take seconds
    if not sought:
        return finding
    search = _Search(trial=trial, failure=Failure(case=finding.case, outcome=finding.outcome))
    search.run()
    return replace(finding, variants=tuple(search.variants))


@dataclass(kw_only=True)
class _Probe(Trial):
    """A trial that keeps what it sees, and may run on other memory than usual.

    memory: options of the usual experiment that replace the check's own, where it gives a poison.
    steady: whether calls that were the same have given the same bits. fresh: whether new processes answer.
    """

    fresh: bool = False
    memory: Mapping[str, str] = field(default_factory=dict)
    seen: list[Observation] = field(default_factory=list)
    poisons: bool = False
    steady: bool = True
    _asked: list[tuple[Case, Mapping[str, object], dict[str, bytes]]] = field(default_factory=list)

    def _run(self, subject: Subject, case: Case, **options: object) -> Observation:
        usual = options.get("experiment", _USUAL) == _USUAL and options.get("poison") is not None
        self.poisons |= usual
        own = {**(self.memory if usual else {}), **({"fresh": True} if self.fresh else {})}
        seen = super()._run(subject, case, **{**options, **own})
        self.seen.append(seen)
        if options.get("experiment", _USUAL) == _USUAL:
            bits = _bits(seen, "")
            alike = (known for of, asked, known in self._asked if of is case and asked == options)
            self.steady &= next(alike, bits) == bits
            self._asked.append((case, options, bits))
        return seen


@dataclass(frozen=True, kw_only=True)
class _Try:
    """What became of one case: PASS only where the result in question passed, and the results themselves."""

    verdict: Verdict
    results: Mapping[str, bytes]
    poisons: bool = False
    steady: bool = True


@dataclass(kw_only=True)
class _Search:
    """The variants of one failure that have been tried."""

    trial: Trial
    failure: Failure
    variants: list[Variant] = field(default_factory=list)
    _left: int = MOST_TRIES
    _until: float = field(default_factory=lambda: time.monotonic() + SECONDS)

    @property
    def case(self) -> Case:
        """The minimal case."""
        return self.failure.case

    @property
    def key(self) -> FailureKey:
        """What the failure of a variant must share to be the same."""
        return self.failure.key

    def run(self) -> None:
        """Try what is cheap and says most first; what lies in memory leaves no question open."""
        before = self._judged(self.case)
        if before is None or before.verdict in {Verdict.UNDECIDED, Verdict.ERROR}:
            return
        if not before.steady:
            return  # whatever passes then passes by chance
        if before.verdict is Verdict.PASS:
            if not self._unwritten():
                self._add("it is run again", before, shows=UNSTEADY)
            return
        if (
            self._alone()
            or self._layouts()
            or self._dtypes()
            or (self._memory(before) if before.poisons else self._unwritten())
        ):
            self._confirm()
            return
        self._parameters(before)
        if self.case.elements:
            self._rows()
            self._columns()
            self._centred()
        self._wider()
        self._confirm()

    def _confirm(self) -> None:
        """Let nothing be a cause where the minimal case does not fail once more."""
        if not any(variant.passes for variant in self.variants):
            return
        self._left += 1
        again = self._judged(self.case)
        if again is not None and again.verdict is Verdict.PASS:
            self.variants.clear()
            self._add("it is run again", again, shows=UNSTEADY)

    # -- what may be changed ---------------------------------------------------------------------

    def _alone(self) -> bool:
        """Ask a process that has called nothing before, beside all else; return whether that is it."""
        begun, self._left = time.monotonic(), self._left + 1
        tried = self._judged(self.case, fresh=True)
        self._until += time.monotonic() - begun
        passes = tried is not None and tried.verdict is Verdict.PASS
        return passes and self._add("it is the first call of a process", tried, shows=KEPT_STATE)

    def _layouts(self) -> bool:
        """Make each tensor contiguous, then all of them; return whether that is it."""
        case, names = self.case, list(self.case.layouts)
        for name in names:
            others = {n: layout for n, layout in case.layouts.items() if n != name}
            shape, layout = tuple(case.given[name].shape), case.layouts[name]
            strides = layout.strides(shape)
            if strides == Layout().strides(shape):
                strides = ()  # it begins elsewhere, which is all
            tried = self._judged(case.with_layouts(others))
            shows = _misread(layout, strides)
            if self._add(f"{name} is contiguous", tried, tensor=name, strides=strides, shows=shows):
                return True
        if len(names) < 2:
            return False
        return self._add("all tensors are contiguous", self._judged(case.with_layouts({})))

    def _dtypes(self) -> bool:
        """Give weight, bias and a residual the dtype of the input; return whether that is it."""
        case = self.case
        other = {
            n: t
            for n in (*PARAMETERS, *self.trial.op.of_the_sum)
            if (t := case.tensors.get(n)) is not None and t.dtype != case.given["input"].dtype
        }
        if not other:
            return False
        held = {name: t.to(case.given["input"].dtype) for name, t in other.items()}
        tried = self._judged(replace(case, tensors={**case.tensors, **held}))
        words = [f"{name} is {case.dtype}, not {case.dtype_of(name)}" for name in other]
        return self._add(" and ".join(words), tried)

    def _memory(self, before: _Try) -> bool:
        """Fill memory that nobody has written with zeros; return whether a result tells the difference."""
        kinds = (
            ({"poison": "zero", "neighbours": "nan"}, FRESH, UNWRITTEN),
            ({"neighbours": "zero"}, f"{BESIDE} holds 0", f"{BESIDE} is read"),
        )
        for memory, change, shown in kinds:
            tried = self._judged(self.case, memory=memory)
            if tried is None:
                continue
            moved = [name for name, bits in before.results.items() if tried.results.get(name) != bits]
            shows = shown if moved and tried.results and self._is_steady(before) else ""
            if self._add(change, tried, shows=shows, always=True) or shows:
                return True
        return False

    def _unwritten(self) -> bool:
        """Return whether plain calls tell what fresh memory held, where the check makes calls of its own."""
        trial, case, about = self.trial, self.case, self.failure.outcome.output
        gradients = bool(trial.op.differentiable) and trial.subject.differentiable
        gradients &= "grad_output" in case.given
        if any(_spanned(case, name) > MOST_FILLED for name in case.layouts):
            return False
        runs = []
        for poison in ("nan", "nan", "zero", "positive"):
            if not self._may_try():
                return False
            seen = trial.runner.run(trial.subject, case, gradients=gradients, poison=poison, neighbours="nan")
            trial.reach = reach.joined((trial.reach, seen.reach))
            if seen.status != "ok":
                return False
            runs.append(_bits(seen, about))
        first, again, *others = runs
        if first != again or all(other == first for other in others):
            return False
        tried = _Try(verdict=Verdict.UNDECIDED, results=first)
        self._add(FRESH, tried, shows=UNWRITTEN, always=True)
        return True

    def _may_try(self) -> bool:
        """Count one more execution; return whether it is still within number and time."""
        self._left -= 1
        return self._left >= 0 and time.monotonic() < self._until

    def _is_steady(self, before: _Try) -> bool:
        """Return whether the minimal case gives the same bits once more."""
        again = self._judged(self.case)
        return again is not None and again.results == before.results

    def _parameters(self, before: _Try) -> None:
        """Give weight the value 1 and bias the value 0.

        A rounding error may vanish with any change of numbers: ordinary ones have to show the same.
        """
        for name, value in (("weight", 1.0), ("bias", 0.0)):
            old = self.case.tensors.get(name)
            if old is None or not bool(torch.isfinite(old).all()) or bool((old == value).all()):
                continue
            changed = replace(self.case, tensors={**self.case.tensors, name: torch.full_like(old, value)})
            tried = self._judged(changed)
            if tried is not None and tried.verdict is Verdict.PASS and not self._shown_by(name, value):
                continue
            same = tried is not None and tried.results and tried.results == before.results
            self._add(
                f"{name} is {value:g}",
                tried,
                tensor=name,
                shows="its numbers make no difference" if same else "",
            )

    def _rows(self) -> None:
        """Take each row alone: what then passes needs the others."""
        axes = [axis for axis, effect in self._axes() if effect == "rows"]
        lengths = [self._length(axis) for axis in axes]
        count = math.prod(lengths)
        long = [axis for axis, length in zip(axes, lengths, strict=True) if length > 1]
        if len(long) != 1 or count > MOST_ROWS:
            return
        alone = []
        for row in range(count):
            tried = self._judged(self._remade(_sliced(self.case.given, long[0], row)))
            if tried is None or tried.verdict not in {Verdict.PASS, Verdict.UNDECIDED}:
                self._add("each row is alone", tried)
                return
            alone.append(tried)
        self._add("each row is alone", next((t for t in alone if t.verdict is Verdict.PASS), None))

    def _centred(self) -> None:
        """Take the mean off each row: what then passes lost its digits to it."""
        case, the_op = self.case, self.trial.op
        if not LEAST_KAPPA <= case.kappa < math.inf:
            return
        x = case.given["input"]
        rows = torch.from_numpy(np.array(the_op.canonical(case, "input", x.double().numpy())))
        centred = from_rows(the_op, case, "input", rows - rows.mean(dim=1, keepdim=True)).to(x.dtype)
        shows = f"|mean|/std is {case.kappa:.3g} here"
        tried = self._judged(self._remade({**case.given, "input": centred}))
        self._add("the mean of each row is 0", tried, shows=shows)

    def _columns(self) -> None:
        """Try rows whose length is a power of two, and others, where the case's own length is none."""
        axes = [axis for axis, effect in self._axes() if effect == "columns" and self._length(axis) > 1]
        n = self.case.columns
        if len(axes) != 1 or self._length(axes[0]) != n or n & (n - 1) == 0:
            return
        below, above = 1 << (n.bit_length() - 1), 1 << n.bit_length()
        # Even, no power of two, and for an odd length no multiple of 4.
        between = next(
            m
            for m in (n + 1, n - 1, n + 2, n + 3, n + 4)
            if m % 2 == 0 and m & (m - 1) and (m % 4 or not n % 2)
        )
        if above > MOST_COLUMNS or not self._fails(self._of_length(axes[0], n)):
            return
        tried = [self._judged(self._of_length(axes[0], length)) for length in (below, above)]
        other = [one for one in tried if one is None or one.verdict is not Verdict.PASS]
        if other:
            self._add("N is a power of two", other[0])
            return
        if self._fails(self._of_length(axes[0], between)):
            words = f"N is a power of two ({below}, {above}; not {min(n, between)}, {max(n, between)})"
            self._add(words, tried[0])
            return
        # A check that sees less of longer rows would pass at one even length by chance.
        even, odd = between + 4, n + 2
        passes = self._judged(self._of_length(axes[0], even))
        if n % 2 and passes and passes.verdict is Verdict.PASS and self._fails(self._of_length(axes[0], odd)):
            lengths = ", ".join(map(str, sorted((below, above, between, even))))
            self._add(f"N is even ({lengths}; not {n}, {odd})", passes)

    def _wider(self) -> None:
        """Take the same numbers in a wider format, if the subject has one."""
        subject, case, dtype = self.trial.subject, self.case, WIDER.get(self.case.dtype, "")
        place = self.trial.runner.backend
        if dtype not in subject.dtypes or backend(place).refuses(subject, dtype):
            return
        if self.trial.check.skips(subject, self.trial.op, dtype, place):
            return
        kind = getattr(torch, dtype)
        held = {name: t.to(kind) if _is_narrower(t, dtype) else t for name, t in case.given.items()}
        self._add(f"the same numbers are {dtype}", self._judged(self._remade(held, dtype=dtype)))

    # -- cases -----------------------------------------------------------------------------------

    def _axes(self) -> Iterator[tuple[list[tuple[str, int]], str]]:
        """Yield axes that belong together, and what alone grows with them: rows or columns."""
        case = self.case
        the_op, shapes = op(case.op), {name: tuple(t.shape) for name, t in case.given.items()}
        before = laid(the_op, case.tensors, case.scalars)
        for axes in the_op.unordered(case).values():
            longer = {name: list(shape) for name, shape in shapes.items()}
            for name, axis in axes:
                longer[name][axis] *= 2
            empty = {**dict.fromkeys(case.tensors), **{n: torch.empty(s) for n, s in longer.items()}}
            after = laid(the_op, empty, case.scalars)
            grown = (after.rows != before.rows, after.columns != before.columns)
            if axes and grown in {(True, False), (False, True)}:
                yield axes, "rows" if grown[0] else "columns"

    def _length(self, axes: list[tuple[str, int]]) -> int:
        name, axis = axes[0]
        return int(self.case.given[name].shape[axis])

    def _shown_by(self, name: str, value: float) -> bool:
        """Return whether ordinary numbers fail as well, and pass with this value of a parameter."""
        axes = next((axes for axes, effect in self._axes() if effect == "columns"), [])
        long = bool(axes) and self._length(axes) == self.case.columns < TELLING_COLUMNS
        ordinary = self._of_length(axes, TELLING_COLUMNS) if long else self._of_length([], 0)
        if not self._fails(ordinary):
            return False
        full = torch.full_like(ordinary.given[name], value)
        tried = self._judged(replace(ordinary, tensors={**ordinary.tensors, name: full}))
        return tried is not None and tried.verdict is Verdict.PASS

    def _of_length(self, axes: list[tuple[str, int]], length: int) -> Case:
        """Return the case with ordinary numbers, and rows of another length along these axes.

        The numbers of the minimal case show the failure at its own length alone.
        """
        draw, of = torch.Generator().manual_seed(_SEED), dict(axes)
        tensors = {}
        for name, old in self.case.given.items():
            shape = list(old.shape)
            if name in of:
                shape[of[name]] = MOST_COLUMNS if length > 64 else 64
            numbers = torch.randn(shape, generator=draw, dtype=torch.float64)
            if name in of:
                numbers = numbers.narrow(of[name], 0, length)
            if name == "running_var":
                numbers = numbers.abs() + 0.5
            tensors[name] = numbers.to(old.dtype).contiguous()
        return replace(self._remade(tensors), hazard="ordinary")

    def _remade(self, tensors: Mapping[str, torch.Tensor], *, dtype: str | None = None) -> Case:
        """Return the case with other tensors; what the op derives from them follows."""
        start = self.case if dtype is None else replace(self.case, dtype=dtype)
        if op(start.op).derived:
            tensors = completed(self.trial.subject, start, tensors)
        return remade(start, tensors)

    # -- what becomes of them --------------------------------------------------------------------

    def _fails(self, case: Case) -> bool:
        tried = self._judged(case)
        return tried is not None and tried.verdict in _SOUGHT

    def _judged(
        self, case: Case, *, memory: Mapping[str, str] | None = None, fresh: bool = False
    ) -> _Try | None:
        """Judge a case; None if the change leaves the domain, or there is no time left."""
        trial = self.trial
        left = trial.is_outside(case) and not trial.is_outside(self.case)
        if left or not self._may_try():
            return None
        probe = _Probe(
            subject=trial.subject,
            check_name=trial.check_name,
            dtype=case.dtype,
            runner=trial.runner,
            memory=memory or {},
            fresh=fresh,
        )
        outcomes, _ = probe.judge(case)
        trial.reach = reach.joined((trial.reach, probe.reach))
        about = self.failure.outcome.output
        bad = [o for o in outcomes if probe.is_finding(case, o)]
        passed = any(o.verdict is Verdict.PASS and (not about or o.output in {"", about}) for o in outcomes)
        verdict = rules.summed(o.verdict for o in bad) if bad else Verdict.UNDECIDED
        return _Try(
            verdict=Verdict.PASS if passed and not bad else verdict,
            results=_bits(probe.seen[0], about) if probe.seen else {},
            poisons=probe.poisons,
            steady=probe.steady,
        )

    def _add(
        self,
        change: str,
        tried: _Try | None,
        *,
        tensor: str = "",
        strides: tuple[int, ...] = (),
        shows: str = "",
        always: bool = False,
    ) -> bool:
        """Keep a variant that was tried; return whether it passes.

        shows: what that shows; always: even if it fails.
        """
        if tried is None:
            return False
        passes = tried.verdict is Verdict.PASS
        shown = shows if passes or always else ""
        self.variants.append(
            Variant(change=change, verdict=tried.verdict, tensor=tensor, strides=strides, shows=shown)
        )
        return passes


def _bits(seen: Observation, about: str) -> dict[str, bytes]:
    """Return the bits of the results that a failure is about; of all if it is about none of them."""
    named = {name: t for name, t in seen.outputs.items() if t is not None}
    chosen = {about: named[about]} if about in named else named
    return {name: raw_bytes(t.reshape(-1)) for name, t in chosen.items()}


def _sliced(
    given: Mapping[str, torch.Tensor], axes: list[tuple[str, int]], row: int
) -> dict[str, torch.Tensor]:
    of = dict(axes)
    return {n: t.narrow(of[n], row, 1).contiguous() if n in of else t for n, t in given.items()}


def _strides(case: Case, name: str) -> tuple[int, ...]:
    return case.layouts[name].strides(tuple(case.given[name].shape))


def _spanned(case: Case, name: str) -> int:
    """Return how many elements lie from the first to the last of a tensor."""
    steps = zip(case.given[name].shape, _strides(case, name), strict=True)
    return sum((length - 1) * stride for length, stride in steps)


def _misread(layout: Layout, strides: tuple[int, ...]) -> str:
    """Say what of a layout a kernel does not follow, given that it is right on contiguous memory.

    strides: none where they are those of contiguous memory.
    """
    if not strides:
        misaligned = f"it is misaligned, at a storage offset of {layout.offset}"
        return misaligned if layout.misaligned else f"its storage offset of {layout.offset} is ignored"
    return f"its stride {strides} is ignored" if len(strides) == 1 else f"its strides {strides} are misread"


def _is_narrower(tensor: torch.Tensor, dtype: str) -> bool:
    held = str(tensor.dtype).removeprefix("torch.")
    return held in FORMATS and FORMATS[held].precision < FORMATS[dtype].precision
