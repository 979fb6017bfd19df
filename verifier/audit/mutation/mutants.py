"""All mutants of a kernel file: runs them side by side, and says which an audit lets through, and why."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

from verifier.audit.mutation.family import mutations
from verifier.audit.mutation.in_sources import used
from verifier.audit.mutation.kills import BUILD, Fate, Question, fate
from verifier.audit.mutation.mutation import Mutation
from verifier.audit.worker_pool import Died, pooled
from verifier.subjects.load_file import load_subjects


class Ending(StrEnum):
    """How a mutant ends."""

    KILLED = "killed"
    SAME_CODE = "same code"
    OUTSIDE = "outside the declared domain"
    SURVIVED = "survived"
    OPEN = "open"


@dataclass(kw_only=True)
class Mutants:
    """The fates of the mutants of one kernel file, and of the original.

    listed: how many mutants there are in all; a sample of them was run. unused: how many more there would be
    in functions of the same files that this kernel does not use.
    """

    path: Path
    original: Fate
    listed: int = 0
    unused: int = 0
    fates: list[Fate] = field(default_factory=list)
    interrupted: bool = False
    seconds: float = 0.0

    def ending(self, one: Fate) -> Ending:
        """Return how a mutant ends.

        A survivor has the same code as the original where its place lies in a kernel, and all that was
        compiled for it is what was compiled for the original, but for lines of source. It lies outside of the
        declared domain where its place only decides whether the wrapper raises, and neither the original nor
        the mutant ever did there: every case took the same side. Where the verifier itself failed and nothing
        was found, nothing is known.
        """
        if one.kills:
            return Ending.KILLED
        if one.errors:
            return Ending.OPEN
        if self.never_refused(one):
            return Ending.OUTSIDE
        compiled = one.mutation is not None and one.mutation.in_kernel
        return (
            Ending.SAME_CODE if compiled and one.code and one.code == self.original.code else Ending.SURVIVED
        )

    def never_refused(self, one: Fate) -> bool:
        """Return whether a condition that ran decides a refusal alone, never met by original or mutant."""
        changed = one.mutation
        if changed is None or changed.refusal is None:
            return False
        condition, first, last = changed.refusal
        before, after = (
            {place.line for place in fate.lines if place.file == changed.file.name}
            for fate in (self.original, one)
        )
        return condition in before & after and not any(first <= line <= last for line in before | after)

    def endings(self) -> Counter[Ending]:
        """Count the mutants by their ending."""
        return Counter(map(self.ending, self.fates))

    def of(self, ending: Ending) -> list[Fate]:
        """Return the mutants that end so."""
        return [one for one in self.fates if self.ending(one) is ending]

    @property
    def rate(self) -> float | None:
        """The share of killed mutants among those with other code than the original; None without any."""
        counts = self.endings()
        judged = counts[Ending.KILLED] + counts[Ending.SURVIVED]
        return counts[Ending.KILLED] / judged if judged else None

    def by_check(self) -> Counter[str]:
        """Count the mutants that each check killed: one check a mutant, unless all were asked."""
        return Counter(name for one in self.fates for name in {kill.check for kill in one.kills})


def run_mutants(
    path: Path,
    question: Question,
    *,
    workers: int,
    sample: int | None = None,
    on_fate: Callable[[Fate, int], None] = lambda *_: None,
) -> Mutants:
    """Audit the original and then its mutants, on worker processes; Ctrl-C keeps what is known.

    sample: how many mutants to run, chosen by the question's seed; all without one. on_fate: told of each
    as it ends, and how many there will be.

    Raises:
        SyntaxError: a Python file of the kernel is none.
        LoadError: the kernel file itself cannot be loaded.

    """
    started = time.monotonic()
    possible = mutations(path)
    every = used(possible, load_subjects(path))
    chosen = _chosen(every, sample, question.seed)
    found = Mutants(
        path=path, original=Fate(mutation=None), listed=len(every), unused=len(possible) - len(every)
    )
    tasks = [(number, (str(path), mutation, question)) for number, mutation in enumerate((None, *chosen))]
    ended: dict[int, Fate] = {}
    try:
        with closing(pooled(fate, iter(tasks), workers, backends=("machine",))) as results:
            for number, result in results:
                mutation = tasks[number][1][1]
                if isinstance(result, Died):
                    result = Fate(mutation=mutation, errors=(f"a worker process died: {result.message}",))  # noqa: PLW2901
                ended[number] = result
                on_fate(result, len(tasks))
    except KeyboardInterrupt:
        found.interrupted = True
    found.original = ended.pop(0, found.original)
    found.fates = [ended[number] for number in sorted(ended)]
    found.seconds = time.monotonic() - started
    return found


def _chosen(every: Sequence[Mutation], sample: int | None, seed: int) -> list[Mutation]:
    if sample is None or sample >= len(every):
        return list(every)
    return sorted(random.Random(seed).sample(list(every), sample))  # noqa: S311 (a choice, no secret)


def lines_of(found: Mutants) -> list[str]:
    """Return the report: what was killed by which check, and every mutant that was not."""
    counts, total = found.endings(), len(found.fates)
    said = [f"{found.path.name}: {total} of {found.listed} mutants in {found.seconds:.0f} s"]
    if found.unused:
        said.append(f"  {found.unused} more would lie in functions that this kernel does not use")
    said += [f"  the original itself fails {k.check} ({k.dtype}): {k.message}" for k in found.original.kills]
    rate = "nothing was judged" if found.rate is None else f"{100 * found.rate:.1f} % killed"
    said.append(f"  {rate}: " + ", ".join(f"{counts[e]} {e}" for e in Ending if counts[e]))
    for name, number in found.by_check().most_common():
        said.append(f"    {number:5d}  {'cannot be loaded' if name == BUILD else name}")
    for ending in (Ending.SURVIVED, Ending.OPEN, Ending.SAME_CODE, Ending.OUTSIDE):
        said += [f"  {ending}: {_told(one)}" for one in found.of(ending)]
    return said


def fate_in_a_line(one: Fate) -> str:
    """Return what is said of a mutant as soon as it has ended."""
    name = "the original" if one.mutation is None else _told(one)
    kills = ", ".join(f"{kill.check} {kill.dtype}".strip() for kill in one.kills)
    return f"{name}: {kills or 'no finding'}, {one.seconds:.1f} s"


def _told(one: Fate) -> str:
    assert one.mutation is not None
    within = f" (in {one.mutation.within})" if one.mutation.within else ""
    never = ", never ran" if one.ran is False and not one.kills else ""
    alike = f"; the original's results {one.alike}" if one.alike else ""
    return f"{one.mutation}{within}{never}{''.join(f': {text}' for text in one.errors[:1])}{alike}"


def status_of(found: Mutants) -> int:
    """Return the exit status: 130 interrupted, 1 survivors or a bad original, 3 nothing judged, 0 else."""
    if found.interrupted:
        return 130
    if found.original.kills or found.of(Ending.SURVIVED):
        return 1
    return 3 if found.rate is None else 0


def document(found: Mutants) -> dict[str, object]:
    """Return the report as plain data."""
    return {
        "kernel": str(found.path),
        "mutants": found.listed,
        "unused": found.unused,
        "rate": found.rate,
        "interrupted": found.interrupted,
        "seconds": found.seconds,
        "original": [asdict(kill) for kill in found.original.kills],
        "fates": [
            {
                "file": one.mutation.file.name,
                "line": one.mutation.line,
                "kind": one.mutation.kind,
                "within": one.mutation.within,
                "before": one.mutation.before,
                "after": one.mutation.after,
                "ending": str(found.ending(one)),
                "ran": one.ran,
                "kills": [asdict(kill) for kill in one.kills],
                "errors": list(one.errors),
                "alike": one.alike,
                "seconds": one.seconds,
            }
            for one in found.fates
            if one.mutation is not None
        ],
    }
