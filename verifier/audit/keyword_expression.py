"""Choices of subjects as pytest's -k has them: parts of names with `and`, `or`, `not` and parentheses."""

from __future__ import annotations

import re
from collections.abc import Callable

from verifier.audit.request import SelectionError

Matcher = Callable[[str], bool]
_TOKEN = re.compile(r"\s*([()]|[^\s()]+)")
_WORDS = frozenset({"and", "or", "not", "(", ")"})


def matcher(expression: str) -> Matcher:
    """Return a function that says whether a name fits: its parts are found in either case of letters.

    Raises:
        SelectionError: the expression is none.

    """
    parser = _Parser(expression)
    fits = parser.either()
    if parser.tokens:
        raise parser.wrong(f"{parser.tokens[0]!r} is one too many")
    return fits


class _Parser:
    """Reads `or` of `and` of `not` of names; what is left lies in tokens."""

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self.tokens = _TOKEN.findall(expression)

    def wrong(self, why: str) -> SelectionError:
        return SelectionError(f"-k {self.expression!r}: {why}; such as: -k 'layer_norm and not backward'")

    def take(self, *words: str) -> bool:
        """Take the next token if it is one of these."""
        if self.tokens and self.tokens[0] in words:
            self.tokens.pop(0)
            return True
        return False

    def either(self) -> Matcher:
        parts = [self.both()]
        while self.take("or"):
            parts.append(self.both())
        return lambda name: any(part(name) for part in parts)

    def both(self) -> Matcher:
        parts = [self.single()]
        while self.take("and"):
            parts.append(self.single())
        return lambda name: all(part(name) for part in parts)

    def single(self) -> Matcher:
        if self.take("not"):
            negated = self.single()
            return lambda name: not negated(name)
        if self.take("("):
            inside = self.either()
            if not self.take(")"):
                raise self.wrong("a parenthesis is not closed")
            return inside
        if not self.tokens or self.tokens[0] in _WORDS:
            found = repr(self.tokens[0]) if self.tokens else "its end"
            raise self.wrong(f"a part of a name is wanted before {found}")
        part = self.tokens.pop(0).lower()
        return lambda name: part in name.lower()
