"""What a case has reached, as short texts by which one case is told from others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from verifier.records.reach import CompiledForm, Reach


def features(found: Reach, forms: Mapping[str, CompiledForm]) -> frozenset[str]:
    """Return functions, turns of loops, lines, blocks and guards by their places in the sources.

    Block sizes and formats make compiled forms that reach the same lines: no form is a feature of its own.
    forms: those that are known, by digest.
    """
    return frozenset(_features(found, forms))


def _features(found: Reach, forms: Mapping[str, CompiledForm]) -> Iterator[str]:
    for place in found.functions:
        yield f"function {place}"
    for place in found.lines:
        yield f"line {place}"
    for place, turns in found.loops:
        yield f"loop {place} turned {turns}"
    for place, words, state in found.configurations:
        yield f"configuration {place} {words}: {state}"
    for digest, number in found.blocks:
        if digest in forms:
            near = dict(forms[digest].blocks).get(number)
            if near is not None:
                yield f"block {near}"
    for digest, number, lanes in found.guards:
        if digest in forms and number < len(forms[digest].guards):
            near, _ = forms[digest].guards[number]
            if near is not None:
                yield f"guard {near}: {lanes}"
