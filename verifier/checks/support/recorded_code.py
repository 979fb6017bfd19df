"""Records a case in a child, with products fused and not, and says what of it holds for other inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from verifier.arithmetic.graph.device_functions import with_functions
from verifier.arithmetic.graph.graph import LEAVES, Graph
from verifier.arithmetic.graph.opcodes import opcode
from verifier.arithmetic.graph.support import unknown_leaves
from verifier.checks.support.calls_between import changed_between
from verifier.checks.support.session import gradient_names, mismatch
from verifier.checks.synchronization import SANITIZERS, watched_runs
from verifier.execution.backend import Backend
from verifier.execution.call_subject import execute
from verifier.execution.child_process import Runner
from verifier.execution.preloaded import preload
from verifier.execution.record_graph import NO_EXPRESSION, RecordedGraph, bits_of, recorded_graph
from verifier.machine.model import MaskedFill
from verifier.ops import op
from verifier.records.case import Case
from verifier.records.certificate import OWN_FAILURE, Refusal
from verifier.records.observation import Observation
from verifier.records.subject import Subject

preload([__name__])
MODES = ("off", "on")
"""Whether products are fused into sums where ptxas may do so."""
WATCHED = SANITIZERS | {"equal_stores", "shared_bounds"}
"""What is looked for: also races that show on other inputs alone, and accesses between shared variables."""
RUNS = "the kernel runs to its end, without a race or a stray write"
AS_DEMANDED = "results have the shape and dtype that the op demands"
LAST_LANE = "what is stored does not depend on which lane is last"
COPIES = "lanes that are copies of each other may store different numbers in one place of shared memory"
LANES = "nothing depends on what a load gives lanes that its mask leaves out"


class RefusedError(Exception):
    """Something was not shown."""

    def __init__(self, stage: str, why: str) -> None:
        """Say what could not be shown, and what stood in the way."""
        super().__init__(why)
        self.refusal = Refusal(stage=stage, why=why)


@dataclass(frozen=True, kw_only=True)
class Recordings:
    """What a child recorded, by whether products are fused.

    tuned: kernels whose configuration a tuner chose. undefined: loads that leave lanes undefined.
    processors: whether the wrapper asked how many multiprocessors the device has. unlike: in what calls with
    the same arguments differ, or what of their results they share.
    """

    by_mode: Mapping[str, RecordedGraph]
    tuned: tuple[str, ...]
    undefined: tuple[str, ...]
    processors: bool
    unlike: str = ""


def recordings(subject: Subject, case: Case, *, backend: Backend, gradients: bool) -> Observation:
    """Run a case, again with every access watched, then record it in each mode; runs in the child.

    Where ptxas may fuse nothing, the modes are one, and it is recorded once.
    """
    asked, found = backend.asked_processors(), dict[str, RecordedGraph]()
    with backend.tuned() as tuning:
        with backend.varied(contraction=MODES[0]):
            first = seen = execute(subject, case, backend=backend, gradients=gradients)
            if why := _without_memory(first):
                return replace(first, status="undecided", message=why, outputs={})
            unlike = ""
            if gradients and subject.differentiable and first.status == "ok" and not first.damage:
                unlike = changed_between(subject, case, first, backend=backend)
            if first.status == "ok" and not first.damage:
                for seen in watched_runs(
                    subject, case, backend=backend, gradients=gradients, sanitize=WATCHED
                ):
                    unlike = unlike or _shared(first, seen) or _different(first, seen)
            undefined = backend.unfilled()
        for mode in MODES:
            if seen.status != "ok" or seen.damage:
                return seen
            if mode != MODES[0] and not found[MODES[0]].fusible:  # it is the same program
                found[mode] = found[MODES[0]]
                continue
            with backend.varied(contraction=mode):
                seen = recorded_graph(
                    subject, case, backend=backend, gradients=gradients, before=found.get(MODES[0])
                )
            if seen.status != "ok":
                return seen
            found[mode] = seen.found_as(RecordedGraph)
            if found[mode].graph is found[MODES[0]].graph:  # nothing is fused
                unlike = unlike or _different(first, seen)
        known = Recordings(
            by_mode=found,
            tuned=tuple(kernel.function for kernel in tuning.met),
            undefined=undefined,
            processors=backend.asked_processors() > asked,
            unlike=unlike,
        )
    return seen if seen.status != "ok" else replace(seen, found=known, outputs=first.outputs)


def _without_memory(seen: Observation) -> str:
    """Say which result is no tensor of elements in memory: sparse, known to be zero, or negated when read.

    Or holds floats of less than two bytes, which no expression is recorded of.
    """
    for name, tensor in seen.outputs.items():
        if tensor is not None and tensor.is_floating_point() and tensor.element_size() < 2:
            return f"{name} is held in {str(tensor.dtype).removeprefix('torch.')}, which is not followed"
        if tensor is not None and (
            tensor.layout is not torch.strided or tensor._is_zerotensor() or tensor.is_neg()
        ):
            return f"{name} has elements that lie nowhere in memory"
    return ""


def _shared(first: Observation, second: Observation) -> str:
    """Say which result of one call lies where one of the next call does."""
    before = {} if second is first else first.outputs
    places = {t.untyped_storage().data_ptr() for t in before.values() if t is not None and t.numel()}
    for name, tensor in second.outputs.items():
        if tensor is not None and tensor.numel() and tensor.untyped_storage().data_ptr() in places:
            return f"the next call writes {name} where results of the call before lie"
    return ""


def _different(first: Observation, later: Observation) -> str:
    """Say which result of a plain call has other bits than a later one with the same arguments."""
    for name, tensor in later.outputs.items() if later.status == "ok" else ():
        other = first.outputs.get(name)
        same = other is tensor if other is None or tensor is None else _same_bits(other, tensor)
        if not same:
            return f"{name} is not what it was in a call before, with the same arguments"
    return ""


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if not one.is_floating_point():
        return one.dtype == other.dtype and torch.equal(one, other)
    return one.dtype == other.dtype and np.array_equal(bits_of(one), bits_of(other))


def filled(subject: Subject, case: Case, *, backend: Backend, gradients: bool) -> Observation:
    """Record a case with NaN in all lanes that a load's mask leaves out; runs in the child."""
    with backend.varied(masked_fill=MaskedFill(number="nan")):
        seen = recorded_graph(subject, case, backend=backend, gradients=gradients)
    if seen.status != "ok":
        return seen
    one = seen.found_as(RecordedGraph)
    known = Recordings(by_mode={MODES[0]: one}, tuned=(), undefined=backend.unfilled(), processors=False)
    return replace(seen, found=known)


def must_be_one_code(found: Recordings) -> None:
    """Raise where another choice than the one recorded may run."""
    for kernel in found.tuned:
        raise RefusedError("one configuration runs", f"a tuner chooses among those of {kernel}")


def must_be_what_each_call_gives(found: Recordings) -> None:
    """Raise where a call depends on those before it, or spoils what they gave."""
    if found.unlike:
        raise RefusedError("each call gives the same, in memory of its own", found.unlike)


def must_have_shape(subject: Subject, case: Case, seen: Observation, *, gradients: bool) -> None:
    """Raise where a result is missing, or has another shape or dtype than the op demands."""
    wanted = op(subject.op).expected(case, subject)
    for name in (*subject.returns, *(gradient_names(subject, op(subject.op)) if gradients else ())):
        known = wanted.get(name)
        if known is not None and (why := mismatch(name, seen.outputs.get(name), known.shape, known.dtype)):
            raise RefusedError(AS_DEMANDED, why)


def must_hold_for_all_inputs(recorded: RecordedGraph, *, paths: bool = False) -> None:
    """Raise unless the expressions are those of every input, and wholly known.

    paths: whether branches that data decide are looked at elsewhere (`only_path`).
    """
    if not any(nodes.size for nodes in recorded.graph.outputs.values()):
        raise RefusedError("there are results to prove", "no result holds a floating-point number")
    for kernel, decision in recorded.decisions:
        raise RefusedError("nothing decides on data", f"{kernel}: {decision}")
    if recorded.asked:
        every = ", and asks for ".join(recorded.asked)
        raise RefusedError("nothing decides on data", f"Python asks for {every}")
    if not paths:
        for name, nodes in recorded.paths.outputs.items():
            for node in nodes[:1]:
                raise RefusedError("nothing decides on data", branch_of(recorded.paths, int(node), name))
    for why in recorded.undefined:
        raise RefusedError("every operation is defined", why)
    for barrier in recorded.parted:
        why = (
            f"{barrier} lets some warps of a block pass without the others: not every race between them shows"
        )
        raise RefusedError(RUNS, why)
    for kernel in recorded.early:
        raise RefusedError(RUNS, f"{kernel} may begin before what was launched before it has ended")
    for name in recorded.elsewhere:
        raise RefusedError(AS_DEMANDED, f"{name} lies on another device than the arguments")
    for name in recorded.overwritten:
        raise RefusedError("arguments are left as they are", f"something else is stored in {name}")
    if recorded.clash:
        raise RefusedError(LAST_LANE, recorded.clash)
    for product in recorded.carried:
        why = f"a sum in the next turn of a loop takes a product: {product}"
        raise RefusedError("products are fused in every turn of a loop or in none", why)
    for operation in recorded.uncovered:
        raise RefusedError("every operation is recorded", f"torch's {operation} is not followed")
    for what, graph in (("a result", recorded.graph), ("what a branch is taken by", recorded.paths)):
        for reason in unknown_leaves(graph):
            raise RefusedError("every operation is recorded", f"{what} reaches an unknown value: {reason}")
    if recorded.unlike:
        why = f"{recorded.unlike} has other bits in the run than its expressions give"
        raise RefusedError("the expressions give what the run gave", why)
    graph, _ = with_functions(recorded.graph, fused=True, marked=True)
    for code in np.unique(graph.operation).tolist():
        if not graph.names[code].startswith(LEAVES) and opcode(graph.names[code]) is None:
            line = graph.lines[int(graph.line[graph.operation == code][0])]
            raise RefusedError("every operation is known", f"{graph.names[code]} {line}".strip())


def branch_of(graph: Graph, node: int, held: str) -> str:
    """Say by what a branch was taken; held: "true" or "false", as the run found it."""
    line = graph.lines[graph.line[node]]
    asked = graph.names[graph.operation[node]]
    return f"a branch is taken by {asked}{f' at {line}' if line else ''}, which was {held} in the run"


def recorded(subject: Subject, case: Case, *, runner: Runner, gradients: bool) -> Recordings:
    """Return what a child recorded of a case; see `recorded_run`."""
    found = recorded_run(subject, case, runner=runner, gradients=gradients).found
    assert isinstance(found, Recordings)
    return found


def recorded_run(subject: Subject, case: Case, *, runner: Runner, gradients: bool) -> Observation:
    """Return the run of a case in which each product was fused; found: the `Recordings`, of one code.

    Raises:
        RefusedError: the kernel has not run to its end cleanly, a mask is given, or a tuner chooses.

    """
    seen = runner.run(
        subject, case, experiment="verifier.checks.support.recorded_code:recordings", gradients=gradients
    )
    if seen.status != "ok" or not isinstance(seen.found, Recordings):
        why = seen.message or "; ".join(d.text for d in seen.damage) or seen.status
        if seen.status == "error":
            raise RefusedError(OWN_FAILURE, why)
        if why == NO_EXPRESSION:
            raise RefusedError("nothing decides on data", why)
        raise RefusedError(RUNS, why)
    must_have_shape(subject, case, seen, gradients=gradients)
    must_be_one_code(seen.found)
    return seen


def recorded_filled(subject: Subject, case: Case, *, runner: Runner, gradients: bool) -> RecordedGraph:
    """Return what a case computes with NaN in all lanes that a load's mask leaves out.

    Raises:
        RefusedError: it does not run so.

    """
    seen = runner.run(
        subject, case, experiment="verifier.checks.support.recorded_code:filled", gradients=gradients
    )
    if seen.status != "ok" or not isinstance(seen.found, Recordings):
        raise RefusedError(LANES, f"with NaN in them: {seen.message or seen.status}")
    if seen.found.undefined:
        raise RefusedError(LANES, f"those of {seen.found.undefined[0]} cannot be filled")
    return seen.found.by_mode[MODES[0]]
