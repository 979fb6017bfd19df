"""Proposes a declaration for a kernel that has none, from its signature and its behaviour."""

from __future__ import annotations

import math
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from verifier.audit.read_claim import ReadClaim, read_claim
from verifier.audit.request import SelectionError
from verifier.checks.support.session import gradient_names
from verifier.commands.describing.calling import MEANINGS, Calling, callings
from verifier.commands.describing.claims import (
    KAPPAS,
    THE_FORM,
    fitting,
    guesses,
    loses_large_means,
    parameters,
    settled,
)
from verifier.commands.describing.found_function import found_function, origin
from verifier.commands.describing.further_results import further_results
from verifier.commands.describing.launched_language import launched_language
from verifier.commands.describing.limits import DIM, limits, refused_dimension
from verifier.commands.describing.operators import by_welford
from verifier.commands.describing.own_meaning import EPS, fitting_text, skeleton, specifications
from verifier.commands.describing.smoke import refuted
from verifier.commands.describing.trials import (
    DTYPES,
    LARGE,
    LARGEST,
    PROMISED,
    Trials,
    accepts,
    errors,
    executed,
    finite,
    holds,
    ordinary,
    plausible,
    recognised,
    session_of,
)
from verifier.commands.describing.what_comes_back import what_comes_back
from verifier.execution import Runner
from verifier.execution.backends import backend, default_backend
from verifier.ops import Op, op, ops
from verifier.records.subject import Language, Subject

MOST_READ = 3
"""Algorithms, the likeliest, of which one may be read from the compiled code; each takes a second or two."""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A declaration with what speaks for it.

    calling: how the function is called with the op's arguments. specification: of op "unknown", as text;
    skeleton: whether it is still to be written.
    """

    calling: Calling
    language: Language
    dtypes: tuple[str, ...]
    variance: str | None = None
    formula: Mapping[str, str | None] = field(default_factory=dict)
    saved_dtype: str | None = None
    accumulates: str = "float32"
    specification: str | None = None
    differentiable: bool = True
    gradients: tuple[str, ...] | None = None
    domain: tuple[str, ...] = ()
    growth: Mapping[float, float] = field(default_factory=dict)
    skeleton: bool = False
    remarks: tuple[str, ...] = ()


def describe(path: Path, function: str | None = None) -> str:
    """Return a proposed declaration for a function of a Python file, as text to paste.

    Raises:
        LoadError: the file does not load.
        SelectionError: it has no such function, or several and none is named; or it cannot be run.

    """
    found = found_function(path, function)
    with tempfile.TemporaryDirectory(prefix="norm-verifier-") as folder:
        trials = Trials(path=path, found=found, folder=Path(folder))
        proposal = _propose(trials)
        lines = _declaration(trials, proposal)
        doubts = [] if proposal.skeleton else refuted(trials, lines, proposal.calling, Runner)
    if proposal.calling.plain:
        head = f"Paste this above {trials.signature}; correct what you know better."
    else:
        head = (
            f"Paste this at the end of {path.name}, below {trials.signature}; correct what you know better."
        )
    remarks = (*doubts, *proposal.remarks, *origin(path, found.function))
    return "\n".join((*_comment(head), *lines, *(line for one in remarks for line in _comment(one))))


def _declaration(trials: Trials, proposal: Proposal) -> list[str]:
    """Return the declaration as it is pasted, with the adapter that it declares, if there is one."""
    calling, name = proposal.calling, f"{trials.name}_as_{proposal.calling.op}"
    dtypes = ", ".join(f'"{d}"' for d in proposal.dtypes) + ("," if len(proposal.dtypes) == 1 else "")
    words = [f'op="{calling.op}"']
    before: list[str] = []
    if proposal.specification is not None:
        name = f"{trials.name}_checked"
        before = [*proposal.specification.splitlines(), "", ""]
        words.append(f"specification={_specification_name(trials)}")
    words.append(f'language="{proposal.language}"')
    if proposal.variance is not None:
        named = [] if proposal.variance == THE_FORM else [f'variance="{proposal.variance}"']
        words += [*named, f'accumulates="{proposal.accumulates}"']
    if proposal.variance == THE_FORM and not any(proposal.formula.values()):
        words.append('formula="canonical"')
    if any(proposal.formula.values()):
        words.append(f"formula={_formula_text(proposal.formula)}")
    if proposal.saved_dtype is not None:
        words.append(f'saved_dtype="{proposal.saved_dtype}"')
    words.append(f"dtypes=({dtypes})")
    if len(calling.returns) > 1:
        words.append(f"returns=({', '.join(repr(n) for n in calling.returns)})".replace("'", '"'))
    if proposal.domain:
        words.append(f"domain=Domain({', '.join(proposal.domain)})")
    if not proposal.differentiable:
        words.append("differentiable=False")
    elif proposal.gradients is not None:
        words.append(f"gradients=({', '.join(repr(n) for n in proposal.gradients)},)".replace("'", '"'))
    return [
        *_imports(calling, own=proposal.specification is not None),
        f"from verifier import {'Domain, ' if proposal.domain else ''}subject",
        "",
        "",
        *before,
        "@subject(",
        *(f"    {word}," for word in words),
        ")",
        *([] if calling.plain else calling.source(name, trials.called).splitlines()),
    ]


def _imports(calling: Calling, *, own: bool) -> list[str]:
    """Return the import statements of an adapter and of a specification, with the line that ends them."""
    wanted = set() if calling.plain else set(calling.imports())
    wanted |= {"import torch"} if own else set()
    return [*sorted(wanted), ""] if wanted else []


def _formula_text(formula: Mapping[str, str | None]) -> str:
    """Return the forms as the declaration has them: one name, or one for each dtype that has one."""
    named = {dtype: form or "canonical" for dtype, form in formula.items()}
    text = repr(named) if len(set(named.values())) > 1 else repr(next(iter(named.values())))
    return text.replace("'", '"')


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, width=100, initial_indent="# ", subsequent_indent="#   ")


_TREES = (
    "trees: not declared, so that bounds hold for any order of the sums and are weak. Of a block of 256 "
    "threads that shares a row: trees=tree(lanes=256); of tiles: trees=tile(block=1024, threads=128)."
)
_DOMAIN = (
    "domain: results for inputs of %g are wrong, as where squares overflow; the declaration promises inputs "
    "up to %s: correct that if you know better"
)
_AUTOGRAD = (
    "differentiable: where autograd differentiates torch operators one by one, gradients have another order "
    'of operations than the canonical form: formula="autograd" says so; differentiable=False demands none.'
)


def _propose(trials: Trials) -> Proposal:
    """Find the op by signature and by value, then what may be claimed of it."""
    readings = [(o, c) for o in _by_closeness(trials.function) for c in callings(trials.function, o)]
    own = _own_readings(trials.function)
    if not readings and not own:
        raise SelectionError(
            f"{trials.signature} behaves like no op known here (tried: none has these arguments)"
        )
    firsts = [trials.subject(calling, "triton") for _, calling in readings[:3]] + [
        trials.subject(calling, "triton") for calling in own[:2]
    ]
    language, how = launched_language(trials.function, firsts, Runner)
    name, missing = default_backend(trials.subject(readings[0][1] if readings else own[0], language))
    if name is None:
        raise SelectionError(f"nothing here can run it: {missing}")
    with Runner(name) as runner:
        place = _Place(
            trials=trials, language=language, runner=runner, remarks=(f"language {language}: {how}",)
        )
        tried: dict[str, str] = {}
        for the_op, reading in readings:
            calling, seen = _read(place, reading)
            if seen[0]:
                return _as_op(place, calling, seen)
            tried.setdefault(the_op.name, seen[2])
        return _as_own(place, own, tried)


@dataclass(frozen=True, kw_only=True)
class _Place:
    """What is described, where it runs, and what is known of it so far."""

    trials: Trials
    language: Language
    runner: Runner
    remarks: tuple[str, ...]

    def subject(self, calling: Calling) -> Subject:
        """Return the function, called in one way."""
        return self.trials.subject(calling, self.language)


Seen = tuple[str, dict[str, float], str]


def _read(place: _Place, calling: Calling) -> tuple[Calling, Seen]:
    """Call in one way, then as what comes back says; return the way that worked, and what was seen."""
    seen = recognised(place.subject(calling), place.runner)
    for other in _otherwise(place, calling) if not seen[0] else ():
        again = recognised(place.subject(other), place.runner)
        if again[0]:
            return other, again
        seen = again
    return calling, seen


def _otherwise(place: _Place, calling: Calling) -> Iterator[Calling]:
    """Yield the way that what comes back suggests: the first of several results, or one left in the input."""
    if calling.style != "returned":
        return
    back = what_comes_back(place.subject(calling), place.runner)
    if back is not None and back.things > 1:
        yield calling.picking(0)
    elif back is not None and back.nothing:
        yield calling.in_place()


def _as_op(place: _Place, calling: Calling, seen: Seen) -> Proposal:
    """Return a proposal for a function that gives an op's results."""
    trials, language, runner, the_op = place.trials, place.language, place.runner, op(calling.op)
    found, ulps, obstacle = seen
    trial = trials.subject(calling, language)
    required = [
        n
        for n, default in calling.takes.items()
        if default is not None and _is_needed(trial, runner, n, found)
    ]
    if required:
        calling = calling.requiring(*required)
        trial = trials.subject(calling, language)
    dimension = refused_dimension(trial, runner, found) if DIM in calling.takes else ""
    if dimension:
        calling = calling.fixing(DIM, "-1")
        trial = trials.subject(calling, language)
    wide = found == "float32"
    dtypes = [d for d in DTYPES if accepts(trial, runner, d)]
    growth = {k: errors(trial, runner, ordinary(trial, found, k))[0] for k in KAPPAS if wide}
    backward, given = _connected(place, calling, dtypes[0])
    trial = trial.differing(gradients=given)
    curve = {k: v.get("output", math.nan) for k, v in growth.items()}
    names, what = guesses(the_op, curve)
    operator = by_welford(trial, runner, dtypes[0]) if the_op.needs_variance else None
    if operator is not None and "welford" in names:
        names = ("welford", *(n for n in names if n != "welford"))
        what += f"torch's {operator} ran, which computes it by Welford's updates on a CPU; "
    read = read_claim(trial, runner, dtypes[0], names=names[:MOST_READ], gradients=False)
    if isinstance(read, ReadClaim) and the_op.needs_variance:
        names = (read.algorithm, *(n for n in names if n != read.algorithm))
        what += f"{read.text}; {settled(read, runner, dtypes[0])}"
    form = read.subject.claim.formula if isinstance(read, ReadClaim) else None
    form = form if isinstance(form, str) else None
    fit = fitting(trial, runner, names, dtypes, form, backward=backward)
    kept = limits(trial, runner, dtypes[0], Runner)
    if names_of_results := further_results(trials, calling, language, runner, dtypes[0]):
        calling = calling.returning("output", *names_of_results)
    declared = trial.differing(
        variance=fit.variance,
        differentiable=backward,
        saved_dtype=fit.saved_dtype,
        accumulates=fit.accumulates,
    )
    remarks = [*place.remarks, *_of_calling(calling, required)]
    if dimension:
        remarks.append(f"dim: any but the last is refused ({dimension}), so that the declaration has none")
    remarks.append(
        f"op {the_op.name}: ordinary data gives it within {ulps['output']:.3g} ulp"
        + ("" if wide else f" of {found}; it takes no float32 ({obstacle})")
    )
    remarks.append(f"variance: {what}{fit.why}")
    remarks += _of_gradients(given, backward=backward)
    if backward and not fit.gradients:
        remarks.append(
            "gradients: no form of the op keeps its bounds on a few of them; an audit will show where"
        )
    if backward and language == "torch" and "autograd" in the_op.forms:
        remarks += [] if "autograd" in fit.formula.values() else [_AUTOGRAD]
    promised: tuple[str, ...] = ()
    lost = the_op.needs_variance and loses_large_means(fit.variance)
    uncentred = not the_op.needs_mean or not the_op.needs_variance or fit.variance == THE_FORM
    if wide and not lost and not holds(trial, runner, LARGE):
        largest = next((size for size in PROMISED if holds(trial, runner, size)), PROMISED[-1])
        words = f"{largest:g}".replace("e+0", "e").replace("e+", "e")
        promised = (f"max_abs={words}", *(() if uncentred else ("max_kappa=1e3",)))
        remarks.append(_DOMAIN % (LARGE, " and ".join(promised)))
    remarks += [*kept.remarks, *parameters(declared, runner, fit.formula)]
    remarks.append(_TREES)
    return Proposal(
        calling=calling,
        language=language,
        dtypes=tuple(dtypes),
        variance=fit.variance,
        formula=fit.formula,
        saved_dtype=fit.saved_dtype,
        accumulates=fit.accumulates,
        differentiable=backward,
        gradients=given,
        domain=(*promised, *kept.words),
        growth=curve,
        remarks=tuple(remarks),
    )


def _of_calling(calling: Calling, required: list[str]) -> Iterator[str]:
    """Say how the function is called, where that is not plain."""
    if calling.names:
        yield f"arguments: {calling.names}"
    if left := [name for name in calling.left_out() if MEANINGS.get(name) in {"residual", "gate"}]:
        yield f"not checked: {' and '.join(left)}, left at the default"
    if calling.picked is not None:
        yield "results: the first is the output; the others are not checked"
    if len(calling.returns) > 1:
        yield f"results: {', '.join(calling.returns)}"
    if calling.style == "in_place":
        yield "results: they replace the input, of which the adapter makes a copy"
    if required:
        yield f"required: {' and '.join(required)}, since results without it are wrong"


def _of_gradients(given: tuple[str, ...] | None, *, backward: bool) -> Iterator[str]:
    """Say which gradients do not come back."""
    if not backward:
        yield "differentiable: no backward pass is connected to the output"
    elif given is not None:
        yield (
            f"gradients: only those of {' and '.join(given)} come back; the other arguments get None, as "
            "frozen ones may. If that is a mistake, leave out gradients= and an audit finds it"
        )


def _is_needed(trial: Subject, runner: Runner, name: str, dtype: str) -> bool:
    """Return whether the results are right only with an optional tensor."""
    if name not in op(trial.op).optional:
        return False
    case = ordinary(trial, dtype, 0.0, without=name)
    return (
        case is not None and case.tensors.get(name) is None and not plausible(errors(trial, runner, case)[0])
    )


def _connected(place: _Place, calling: Calling, dtype: str) -> tuple[bool, tuple[str, ...] | None]:
    """Return whether a backward pass is connected, and the arguments whose gradients come back (None: all).

    A kernel that writes its result into a tensor that it is given has no backward pass.
    """
    trial = place.subject(calling)
    case = ordinary(trial, dtype, 0.0) if calling.style == "returned" else None
    if case is None:
        return False, None
    seen, _ = executed(session_of(trial, place.runner, case), gradients=True)
    if seen is None or seen.outputs.get("grad_input") is None:
        return False, None
    names = [n.removeprefix("grad_") for n in gradient_names(trial, op(trial.op))]
    asked = [n for n in names if case.tensors.get(n) is not None]
    given = tuple(n for n in asked if seen.outputs.get(f"grad_{n}") is not None)
    return True, None if len(given) == len(asked) else given


# A function that is no op


def _own_readings(function: Callable[..., object]) -> list[Calling]:
    """Return the ways to call a function as op "unknown": what may be left out is left out first."""
    found = callings(function, ops()["unknown"])
    plain = [c.without_optional("residual", "gate") for c in found]
    every = dict.fromkeys(repr(c) for c in (*plain, *found))
    known = {repr(c): c for c in (*plain, *found)}
    return [known[text].requiring(*known[text].takes) for text in every]


def _specification_name(trials: Trials) -> str:
    return f"{trials.name}_specification"


def _as_own(place: _Place, readings: list[Calling], tried: dict[str, str]) -> Proposal:
    """Return a proposal with a specification: one that the results fit, or one to be written by hand."""
    ran: tuple[Calling, str] | None = None
    name = _specification_name(place.trials)
    for reading in readings:
        for calling in (reading, *_otherwise(place, reading)):
            texts = tuple(specifications(tuple(calling.takes), name))
            fits: list[str] = []
            for dtype in DTYPES:
                found = _meaning(place, calling, texts, dtype)
                ran = (calling, dtype) if ran is None and found is not None else ran
                if found:
                    texts = (found,)
                    fits.append(dtype)
                elif found is not None and not fits:
                    break  # it ran and is something else
            if fits:
                return _with_meaning(place, calling, texts[0], tuple(fits))
    listed = "; ".join(f"{one}: {why}" for one, why in tried.items()) or "none has these arguments"
    told = f"{place.trials.signature} behaves like no op known here (tried: {listed})"
    if ran is None:
        raise SelectionError(told)
    calling, dtype = ran
    return Proposal(
        calling=calling,
        language=place.language,
        dtypes=(dtype,),
        specification=skeleton(tuple(calling.takes), name),
        differentiable=_connected(place, calling, dtype)[0],
        skeleton=True,
        remarks=(
            "specification: to be written (docs/how-to/own-specification.md); as it stands, an audit fails",
            told,
            *place.remarks,
            *_of_calling(calling, []),
        ),
    )


def _with_meaning(place: _Place, calling: Calling, text: str, dtypes: tuple[str, ...]) -> Proposal:
    backward, given = _connected(place, calling, dtypes[0])
    trial = place.subject(calling)
    kept = limits(trial, place.runner, dtypes[0], Runner)
    wide = dtypes[0] == "float32"
    promised = ("max_abs=1e15",) if wide and not finite(trial, place.runner, LARGEST) else ()
    further = further_results(place.trials, calling, place.language, place.runner, dtypes[0])
    if further and "x = x *" not in text:  # x is the sum still
        calling, text = calling.returning("output", *further), text.replace("return y", "return y, x")
    told = [*place.remarks, *_of_calling(calling, [])]
    if promised:
        told.append(_DOMAIN % (LARGEST, promised[0]))
    told.append("op unknown: no op of ours fits; the specification gives the results of ordinary data")
    told += [*_of_gradients(given, backward=backward), *kept.remarks]
    return Proposal(
        calling=calling,
        language=place.language,
        dtypes=dtypes,
        specification=text,
        differentiable=backward,
        gradients=given,
        domain=(*promised, *kept.words),
        remarks=tuple(told),
    )


def _meaning(place: _Place, calling: Calling, texts: tuple[str, ...], dtype: str) -> str | None:
    """Return the text that the results of a dtype fit, "" if none does, None if it does not run."""
    trial = place.subject(calling)
    if backend(place.runner.backend).refuses(trial, dtype):
        return None
    case = ordinary(trial, dtype, 0.0, eps=EPS)
    seen = None if case is None else executed(session_of(trial, place.runner, case))[0]
    output = None if seen is None else seen.outputs.get("output")
    if case is None or output is None or output.dtype != case.given["input"].dtype:
        return None
    return fitting_text(iter(texts), _specification_name(place.trials), case.given, output, dtype) or ""


def _by_closeness(function: Callable[..., object]) -> list[Op]:
    """Return the ops that a function may compute, those with the fewest arguments that it lacks first."""
    fitting_ops = []
    # What is rounded before a norm (a sum with a residual) is not found out: it gets a specification.
    known_ops = (o for o in ops().values() if not o.own and "output" in o.outputs and o.posed is None)
    for one in known_ops:
        read = callings(function, one)
        if read:
            scalars = one.shapes(2, 4, 0)
            known = {*one.tensors, "eps", *(scalars.scalars if scalars else ())}
            fitting_ops.append((len(known) - max(len(c.takes) for c in read), one))
    return [o for _, o in sorted(fitting_ops, key=lambda item: (item[0], item[1].name))]
