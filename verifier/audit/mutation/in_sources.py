"""Where mutations lie in what a kernel uses, and whether the place ran."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from verifier.audit.mutation.mutation import Mutation
from verifier.records.reach import Reach, SourcePlace
from verifier.records.subject import Subject
from verifier.subjects.source_map import SourceFunction, SourceMap, Statement, source_map


def used(found: Sequence[Mutation], subjects: Sequence[Subject]) -> list[Mutation]:
    """Return the mutations in functions that a subject's own function may come to.

    A file beside a kernel serves other kernels, too: what only these call is no part of it. Where the sources
    of a subject cannot be followed, all are returned.
    """
    maps = [source_map(subject) for subject in subjects]
    if not maps or any(one.unread for one in maps):
        return list(found)
    return [mutation for mutation in found if any(any(_places(one, mutation)) for one in maps)]


def ran(mutation: Mutation, subjects: Sequence[Subject], reach: Reach) -> bool | None:
    """Return whether the function of a kernel, or the statement of a wrapper, was seen to run.

    subjects: those of the mutated file. None: that is not known of them.
    """
    maps = [source_map(subject) for subject in subjects]
    if any(one.unread for one in maps) or not reach.recorded:
        return None
    seen = reach.functions | reach.lines
    return any(place in seen for one in maps for place in _places(one, mutation))


def _places(of: SourceMap, mutation: Mutation) -> Iterator[SourcePlace]:
    name = mutation.file.name
    every: tuple[SourceFunction | Statement, ...] = (*of.functions, *of.statements)
    for one in every:
        if Path(one.path).name == name and mutation.line in one.lines:
            yield one.place
