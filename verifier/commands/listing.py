"""Lists what there is: subjects, ops, variance algorithms, checks and backends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from verifier.bounds.variance import algorithms
from verifier.checks import checks
from verifier.execution.backends import backends
from verifier.ops import ops
from verifier.records.subject import Subject
from verifier.subjects.libraries import library_files
from verifier.subjects.load_file import LoadError, load, load_subjects

_WIDTH = 24
"""Characters of a name; longer subjects widen the column."""


def listing(files: Sequence[Path]) -> Iterator[str]:
    """Yield the list as lines of text; a file that does not load is listed with its error."""
    found: list[Subject | LoadError] = []
    for file in files:
        try:
            found += load_subjects(file)
        except LoadError as error:
            found.append(error)
    width = max([_WIDTH, *(len(s.name) for s in found if isinstance(s, Subject))])
    yield "subjects"
    for s in found:
        if isinstance(s, LoadError):
            yield f"  {s}"
            continue
        claim = s.claim.variance or "no claim"
        yield f"  {s.name:<{width}} {s.op}, {s.language}, {claim}, {', '.join(s.dtypes)}"
    yield "libraries"
    for name, file in library_files().items():
        try:
            library = load(file).library
        except LoadError as error:
            yield f"  {error}"
            continue
        assert library is not None
        here = f"{library.distribution} {library.version}" if not library.absent else "not installed"
        lacking = "" if not library.absent else f" ({', '.join(library.absent)})"
        yield f"  {name:<{width}} {here}{lacking}"
    yield "ops"
    yield from (f"  {op.name:<{width}} {op.summary}" for op in ops().values())
    yield "variance algorithms"
    yield from (f"  {name:<{width}} {', '.join(m.THEOREMS)}" for name, m in algorithms().items())
    yield "checks"
    yield from (f"  {name:<{width}} {m.DEMANDS}" for name, m in checks().items())
    yield "backends"
    for name, m in backends().items():
        missing = m.unavailable()
        yield f"  {name:<{width}} {m.summary}" + (f" -- not here: {missing}" if missing else "")
