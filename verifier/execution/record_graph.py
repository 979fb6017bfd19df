"""Records the expression graph of a case: one run says for all inputs of the shape what is computed.

In the process of the machine `record`; from the process of the audit `recorded_graph`, as the experiment of a
case, gives the same without what only a replay needs, as `Observation.found`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np
import torch

from strategies.layouts import Layout
from strategies.placement import Placed
from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.device_functions import with_functions
from verifier.arithmetic.graph.graph import Bits, Builder, Graph, Ids, distinct
from verifier.arithmetic.graph.normal_form import Normaliser
from verifier.execution.backend import Backend
from verifier.execution.call_subject import execute
from verifier.execution.copies_apart import far_apart
from verifier.execution.settled_nodes import with_settled
from verifier.execution.shadow_run import shadow_session
from verifier.execution.shared_nodes import commuted, digest, live, shared
from verifier.machine.ptx.basic_blocks import build
from verifier.machine.ptx.carried_products import carried
from verifier.machine.ptx.crossing_products import crossing
from verifier.machine.ptx.early_launch import waits_first
from verifier.machine.ptx.independence import DataDecision, decisions
from verifier.machine.ptx.instruction_counts import count_instructions
from verifier.machine.ptx.parser import parsed
from verifier.machine.shadow import arithmetics
from verifier.machine.shadow.emitter_kind import EmitterKind
from verifier.machine.shadow.graph_slots import GraphSlots
from verifier.machine.translate.compile_kernel import compiled
from verifier.records.case import Case
from verifier.records.observation import Observation
from verifier.records.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Mapping

    from verifier.machine.arithmetic.approximation import Approximation
    from verifier.machine.shadow.graph_nodes import Nodes
    from verifier.machine.shadow.graph_registers import TakenBranch


@dataclass(frozen=True, kw_only=True)
class LaidOut:
    """How an argument lies in memory.

    strides: in elements. alignment: the largest power of 2, up to 256, that divides its address.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    alignment: int
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What a recording says beside the expressions.

    decisions: what reads data other than to compute, by kernel, branches apart; asked: host operations by
    which Python learns what data are. The expressions hold for all inputs of the shape only if there is none
    of either, and for those alone on which each branch goes as it went (`conditions`).
    uncovered: torch operations that are not followed; what they give is unknown. kernels: name and SHA-256 of
    the PTX of each kernel that ran. fusible: whether ptxas may fuse a product of any of them into a sum.
    carried: products that ptxas may fuse in some turns of a loop alone, in words. clash: where two lanes may
    store different numbers at once, "" where they store none. copies_differ: whether threads that may be
    copies of each other store different expressions in one place of shared memory. overwritten: arguments in
    which something else is stored in the end, if perhaps the same numbers, those apart that the subject is to
    change. undefined: in words, collectives of which a lane is no member, shuffles of what no data decide
    that read such a lane, and integers that are divided by zero. parted: barriers that some warps of a block
    pass without the others. early: kernels that may begin before what was launched before them has ended, and
    do not wait for it first. elsewhere: results that lie on another device than the arguments.
    """

    decisions: tuple[tuple[str, DataDecision], ...]
    asked: tuple[str, ...]
    uncovered: tuple[str, ...]
    kernels: tuple[tuple[str, str], ...]
    launches: tuple[tuple[str, tuple[int, int, int]], ...]
    tensors: Mapping[str, LaidOut]
    scalars: Mapping[str, object]
    fusible: bool = True
    carried: tuple[str, ...] = ()
    clash: str = ""
    copies_differ: bool = False
    overwritten: tuple[str, ...] = ()
    undefined: tuple[str, ...] = ()
    parted: tuple[str, ...] = ()
    early: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GraphRecording(Recorded):
    """The expressions of all results of one run.

    nodes: as they were computed. outputs: node of every element, by result. model: of the instructions that
    are approximate, as the machine that ran has it. twice: nodes that lanes stored in one place at once, with
    those that stayed there; by_copies: the same of threads that may be copies of each other.
    """

    seen: Observation
    nodes: Nodes
    outputs: Mapping[str, Ids]
    conditions: tuple[TakenBranch, ...] = ()
    model: Approximation | None = None
    twice: tuple[tuple[Ids, Ids], ...] = ()
    by_copies: tuple[tuple[Ids, Ids], ...] = ()

    @property
    def graph(self) -> Graph:
        """The expressions as a table."""
        return Graph(**self.nodes.columns(), outputs=dict(self.outputs), formats=self.formats)

    @property
    def formats(self) -> dict[str, str]:
        """The format of each argument that has one."""
        dtypes = {name: f"torch.{laid.dtype}" for name, laid in self.tensors.items()}
        return {name: FORMAT_OF[dtype] for name, dtype in dtypes.items() if dtype in FORMAT_OF}

    @property
    def taken(self) -> dict[str, Ids]:
        """The predicates by which branches were taken, each once: those that held, and those that did not."""
        return {name: _distinct(self.conditions, name == "true") for name in ("true", "false")}

    def replay(self, case: Case, model: Approximation) -> dict[str, Bits | None]:
        """Compute all results for the tensors of another case of the shape; bits, or None where unknown."""
        given = {name: bits_of(case.given[name]).reshape(-1) for name in self.tensors}
        bits, known = self.nodes.evaluate(given, model)
        return {n: bits[nodes] if known[nodes].all() else None for n, nodes in self.outputs.items()}


@dataclass(frozen=True, kw_only=True)
class RecordedGraph(Recorded):
    """What a recording says, as plain data.

    graph: only what results reach, each distinct expression once. nodes: how many were computed for them.
    digest: of these, as they were computed. paths: the predicates by which branches were taken, each once:
    those that held, as the output "true", and those that did not. taken: a digest of these. unlike: the first
    result of the run of which the expressions, computed on the same inputs, give other bits, "" where there
    is none.
    """

    graph: Graph
    nodes: int = 0
    digest: str = ""
    taken: str = ""
    unlike: str = ""
    paths: Graph = field(default_factory=lambda: Builder().graph({}))


def recorded_graph(
    subject: Subject,
    case: Case,
    *,
    backend: Backend,
    gradients: bool = False,
    before: RecordedGraph | None = None,
) -> Observation:
    """Run a case once; what is found is a `RecordedGraph`, where the subject ran to its end.

    before: of the same case, whose graphs are taken where nothing else was computed.
    """
    if not all(tensor.is_floating_point() for tensor in case.given.values()):
        return Observation(status="undecided", message=NO_EXPRESSION)
    one = record(subject, case, backend=backend, gradients=gradients)
    if one.seen.status != "ok":
        return one.seen
    results, taken = ((live(one.nodes, wanted), wanted) for wanted in (one.outputs, one.taken))
    # All before there is a graph, which takes as much memory as they do.
    unlike, far = _unlike(one, case)
    clash = one.clash or (CLASH if far or _differ(one, one.twice, "EZ")[0] else "")
    copies_differ, several = _differ(one, one.by_copies, "EZ", "EZC")
    digests = [digest(one.nodes, *part, several) for part in (results, taken)]
    if before is not None and digests == [before.digest, before.taken]:
        graph, paths = before.graph, before.paths
    else:
        assert one.model is not None
        graph, asked = shared(one.nodes, (results, taken), one.formats, several)
        paths = with_settled(asked, one.model)
    found = RecordedGraph(
        graph=graph,
        nodes=int(results[0].sum()),
        digest=digests[0],
        taken=digests[1],
        paths=paths,
        decisions=one.decisions,
        asked=one.asked,
        uncovered=one.uncovered,
        kernels=one.kernels,
        launches=one.launches,
        tensors=one.tensors,
        scalars=one.scalars,
        fusible=one.fusible,
        carried=one.carried,
        unlike=unlike,
        clash=clash,
        copies_differ=copies_differ,
        overwritten=one.overwritten,
        undefined=one.undefined,
        parted=one.parted,
        early=one.early,
        elsewhere=one.elsewhere,
    )
    return replace(one.seen, found=found)


def _differ(one: GraphRecording, stored: tuple[tuple[Ids, Ids], ...], *levels: str) -> tuple[bool, Ids]:
    """Say whether two lanes may store different numbers at once: other expressions, whatever they were.

    levels: claims up to which they are to be the same, one after the other. Copies that add the squares of
    two lanes fuse each its own. Returns the nodes, too, that stayed where another stored what is the same up
    to the last level alone.
    """
    none = np.zeros(0, dtype=np.int64)
    if not stored:
        return False, none
    # A pair as one number: there are fewer than 2^31 nodes.
    keys = distinct(np.concatenate([distinct((lost << 32 | kept).ravel()) for lost, kept in stored]))
    pairs = np.stack([keys >> 32, keys & 0xFFFFFFFF], axis=1)
    apart = none
    for chosen in (pairs[:: max(len(pairs) // _FEW, 1)], pairs):
        left, several = _unlike_at_sight(one, chosen, fused="C" in levels[-1])
        differs, unlike = _other(one, left, levels)
        if differs:
            return True, none
        apart = np.concatenate([several, unlike])
    return False, distinct(apart)


def _unlike_at_sight(one: GraphRecording, pairs: Ids, *, fused: bool) -> tuple[Ids, Ids]:
    """Return pairs that are not the same but for the order of operands, and nodes of which either is fused.

    fused: whether those are the same in which either of two products is fused.
    """
    left, several = [], []
    for part in np.array_split(pairs, len(pairs) // _AT_ONCE + 1):
        rest = part[~commuted(one.nodes, *part.T)]  # most are of sums, in which nothing is fused
        alike = commuted(one.nodes, *rest.T, fused=True) if fused else np.zeros(len(rest), dtype=np.bool_)
        left.append(rest[~alike])
        several.append(rest[alike, 1])
    return np.concatenate(left), np.concatenate(several)


def _other(one: GraphRecording, pairs: Ids, levels: tuple[str, ...]) -> tuple[bool, Ids]:
    """Say whether any pair of nodes is of different terms at all levels; return which it is at the first.

    A sum that is fused in one lane and rounded in another is no term that both have.
    """
    apart = np.zeros(0, dtype=np.int64)
    for claims in levels:
        if not pairs.size:
            break
        wanted = {"lost": pairs[:, 0], "kept": pairs[:, 1]}
        (graph,) = shared(one.nodes, [(live(one.nodes, wanted), wanted)], one.formats)
        known, _ = with_functions(graph, fused="C" in claims, marked=True)
        found = Normaliser(SharedTerms(), claims).normal(known)
        same = found.outputs["lost"] == found.outputs["kept"]
        pairs = pairs if found.mixed.size else pairs[~same]
        apart = pairs[:, 1] if claims == levels[0] else apart
    return bool(pairs.size), apart


def _unlike(one: GraphRecording, case: Case) -> tuple[str, bool]:
    """Name a result of which the recorded expressions give other bits than the run that was recorded.

    Say, too, whether copies of threads stored numbers that are no other roundings of those that stayed.
    """
    assert one.model is not None
    given = {name: bits_of(case.given[name]).reshape(-1) for name in one.tensors}
    bits, known = one.nodes.evaluate(given, one.model, pinned=True)
    largest = max((float(t.abs().max()) for t in case.given.values() if t.numel()), default=0.0)
    far = far_apart(one.nodes, one.by_copies, bits, one.formats, largest)
    for nodes, seen in one.nodes.checked:
        if known[nodes].all() and (bits[nodes] != seen).any():
            return "what torch sums", far
    for name, found in {
        n: bits[nodes] if known[nodes].all() else None for n, nodes in one.outputs.items()
    }.items():
        result = one.seen.outputs[name]
        if found is None or result is None:  # unknown values are told elsewhere
            continue
        if ((found != bits_of(result)) & ~result.detach().cpu().isnan().numpy()).any():
            return name, far
    return "", far


@lru_cache(maxsize=256)
def _read(ptx: str, kernel: str, contraction: str) -> tuple[tuple[DataDecision, ...], bool, tuple[str, ...]]:
    """Return what decides on data in a program, whether a product may be fused, and which are carried."""
    program = compiled(ptx, kernel, contraction, False, EmitterKind.GRAPH).program
    module = parsed(ptx)
    fused = build(module, module.functions[kernel], contraction=True)
    words = {
        f"{kernel}: {one.opcode} {one.location or ''}".strip()
        for one in (*carried(program), *crossing(fused))
    }
    return decisions(program), bool(count_instructions(ptx, kernel).contractible), tuple(sorted(words))


def _waits(ptx: str, kernel: str, contraction: str) -> bool:
    return waits_first(compiled(ptx, kernel, contraction, False, EmitterKind.GRAPH).program)


def _distinct(conditions: tuple[TakenBranch, ...], truth: bool) -> Ids:
    found = [one.nodes[one.truth == truth].ravel() for one in conditions]
    return np.unique(np.concatenate([np.zeros(0, np.int64), *found]))


MOST_WAITING = 24 << 20
"""Bytes of prepared waves that wait for the next recording."""
_STREAMS = ("order of several streams",)
"""What is said where launches may run at once: the machine ends each before it begins the next."""
FORMAT_OF = {"torch.float16": "f16", "torch.bfloat16": "bf16", "torch.float32": "f32", "torch.float64": "f64"}
CLASH = "two lanes may store different numbers in one place, and nothing says which stays"
_AT_ONCE = 1 << 17
"""Pairs of nodes that are looked at together, for the memory it takes."""
_FEW = 64
"""Pairs of nodes that are compared before all others."""
NO_EXPRESSION = "a boolean mask decides what is computed, and no expression has it"
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits_of(tensor: torch.Tensor) -> Bits:
    """Bits of a tensor's elements, as uint64 of its shape."""
    size = tensor.element_size()
    words = tensor.detach().cpu().contiguous().view(_WORDS[size]).numpy()
    return words.view(f"u{size}").astype(np.uint64)


def _place(tensor: torch.Tensor) -> tuple[object, ...]:
    """Return where a tensor's elements lie: another tensor's memory may have been given to it."""
    return tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype


def record(subject: Subject, case: Case, *, backend: Backend, gradients: bool = False) -> GraphRecording:
    """Run a case once and record what it computes."""
    tensors: dict[str, LaidOut] = {}
    left: dict[str, tuple[torch.Tensor, Ids]] = {}
    given: dict[str, tuple[torch.Tensor, tuple[object, ...]]] = {}
    with shadow_session(arithmetics.make("graph")) as opened:
        slots = opened.slots
        assert isinstance(slots, GraphSlots)

        def put(
            name: str, layout: Layout, values: torch.Tensor, /, *, guard_elements: int, poison: str
        ) -> Placed:
            with backend.unfollowed():
                placed = layout.place(values, guard_elements=guard_elements, poison=poison)
            tensor = placed.tensor.detach()
            given[name] = placed.tensor, _place(placed.tensor)
            if tensor.is_floating_point() and tensor.numel():
                slots.register(name, tensor)
                left[name] = tensor, slots.get(tensor)
            address = tensor.data_ptr() or 256
            tensors[name] = LaidOut(
                shape=tuple(tensor.shape),
                strides=tuple(tensor.stride()),
                alignment=min(address & -address, 256),
                dtype=str(tensor.dtype).removeprefix("torch."),
            )
            return placed

        seen = execute(subject, case, backend=backend, gradients=gradients, placer=put, accumulates=gradients)
        kept = {n: t.detach() for n, t in seen.outputs.items() if t is not None and t.is_floating_point()}
        outputs = {name: slots.outputs(tensor) for name, tensor in kept.items()}
        changed = [n for n, (held, was) in left.items() if not np.array_equal(slots.get(held), was)]
        changed += [n for n, (one, was) in given.items() if n not in changed and _place(one) != was]
        machine = opened.machine
        read = {(ptx, kernel): _read(ptx, kernel, machine.contraction) for ptx, kernel in opened.codes}
        found = [
            (kernel, one)
            for ptx, kernel in sorted(opened.codes)
            for one in read[ptx, kernel][0]
            if not one.by_predicate
        ]
        slots.prepared_waves.shrink(MOST_WAITING)
        return GraphRecording(
            seen=replace(seen, outputs={n: t.clone() for n, t in kept.items()}),
            nodes=slots.nodes,
            outputs=outputs,
            decisions=tuple(found),
            conditions=tuple(slots.conditions),
            asked=tuple(sorted(slots.asked)),
            uncovered=(
                *sorted(slots.counters.uncovered),
                *(_STREAMS if opened.streamed else ()),
                *sorted(opened.unwaited),
            ),
            kernels=tuple((kernel, sha256(ptx.encode()).hexdigest()) for ptx, kernel in sorted(opened.codes)),
            launches=tuple(opened.launches),
            tensors=tensors,
            scalars=dict(case.scalars),
            fusible=any(fuses for _, fuses, _ in read.values()),
            carried=tuple(one for _, _, several in read.values() for one in several),
            model=machine.approximation,
            twice=tuple(slots.stored_twice),
            by_copies=tuple(slots.stored_by_copies),
            clash=f"{CLASH}: {min(slots.clashes)}" if slots.clashes else "",
            overwritten=tuple(name for name in changed if name not in subject.mutates),
            undefined=tuple(sorted(slots.undefined)),
            parted=tuple(sorted(slots.parted)),
            elsewhere=tuple(n for n, t in kept.items() if t.device.type != opened.home.type),
            early=tuple(
                kernel for ptx, kernel in sorted(opened.early) if not _waits(ptx, kernel, machine.contraction)
            ),
        )
