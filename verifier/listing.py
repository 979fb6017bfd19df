"""Lists what there is: subjects, ops, variance algorithms, checks and backends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from verifier.backends import backends
from verifier.checks import checks
from verifier.loading import LoadError, load_subjects
from verifier.ops import ops
from verifier.variance import algorithms


def listing(files: Sequence[Path]) -> Iterator[str]:
    """Yield the list as lines of text; a file that does not load is listed with its error."""
    yield "subjects"
    for file in files:
        try:
            for s in load_subjects(file):
                claim = s.claim.variance or "no claim"
                yield f"  {s.name:<38} {s.op}, {s.language}, {claim}, {', '.join(s.dtypes)}"
        except LoadError as error:
            yield f"  {error}"
    yield "ops"
    yield from (f"  {op.name:<38} {op.summary}" for op in ops().values())
    yield "variance algorithms"
    yield from (f"  {name:<38} {', '.join(m.THEOREMS)}" for name, m in algorithms().items())
    yield "checks"
    yield from (f"  {name:<38} {m.DEMANDS}" for name, m in checks().items())
    yield "backends"
    for name, m in backends().items():
        missing = m.unavailable()
        yield f"  {name:<38} {m.SUMMARY}" + (f" -- not here: {missing}" if missing else "")
