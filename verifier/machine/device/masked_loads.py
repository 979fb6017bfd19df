"""What Triton's masked loads give where the mask is off and the kernel does not say what: a chosen number."""

from __future__ import annotations

import hashlib
import inspect
import re
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from verifier.machine.culprit import passed_on
from verifier.machine.in_force import current

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from verifier.machine.model import MaskedFill

_NUMBERS: Final = {
    "nan": (float("nan"), -0x5A5A5A5B),
    "finite": (-12288.0, -0x5A5A5A5B),
    "positive": (12288.0, 0x5A5B),
    "zero": (0.0, 0),
}
"""Of each fill the float and the integer. Integers are odd, and no index of a small tensor; the positive one
is small enough for a loop of as many turns to end."""
_PADDINGS: Final = {"zero": "zero"}
"""Of each fill what block pointers are padded with; the rest is NaN, the only other word that they know."""


@contextmanager
def filled() -> Iterator[None]:
    """Compile loads with a mask and without `other` as the session's `masked_fill` says, if it says anything.

    Source: `triton.language.load`: "If `other` is `None`, the masked-out value is undefined"; and, while
    there were block pointers, of `padding_option`: "if '', the value is undefined".
    """
    from triton.compiler.compiler import ASTSource
    from triton.language.semantic import TritonSemantic

    load, key = TritonSemantic.load, ASTSource.hash
    TritonSemantic.load, ASTSource.hash = _filling(load), _keyed(key)
    try:
        yield
    finally:
        TritonSemantic.load, ASTSource.hash = load, key


def fill_in_force() -> MaskedFill | None:
    """Return what the session in force asks for."""
    opened = current()
    return None if opened is None else opened.machine.masked_fill


def _keyed(known: Callable[..., str]) -> Callable[..., str]:
    """Keep filled code apart in Triton's cache on disk."""

    def key(self: object) -> str:
        fill = fill_in_force()
        plain = known(self)
        return plain if fill is None else hashlib.sha256(f"{plain}\0{fill}".encode()).hexdigest()

    return key


def _filling(load: Callable[..., object]) -> Callable[..., object]:
    signature = inspect.signature(load)

    @wraps(load)  # sessions inside sessions wrap it again, and ask for its signature
    def wrapper(self: Any, *args: object, **kwargs: object) -> Any:
        fill = fill_in_force()
        if fill is not None and fill.place in {None, _source_line(self.builder)}:
            given = signature.bind(self, *args, **kwargs).arguments
            _fill(self, given, fill.number)
            return passed_on(load, **given)
        return passed_on(load, self, *args, **kwargs)

    return wrapper


def _fill(semantic: Any, given: dict[str, Any], fill: str) -> None:
    """Say in the arguments of a load what lanes without a value get; pointers to pointers are left alone."""
    kind = given["ptr"].type
    element = kind.scalar.element_ty if kind.scalar.is_ptr() else None
    if element is None or element.is_ptr():
        return
    if element.is_block():
        undefined = given.get("boundary_check") and not given.get("padding_option")
        if undefined and element.scalar.is_floating():
            given["padding_option"] = _PADDINGS.get(fill, "nan")
    elif given.get("mask") is not None and given.get("other") is None:
        given["other"] = semantic.to_tensor(_NUMBERS[fill][not element.is_floating()])


_PLACE: Final = re.compile(r'"([^"]*)":(\d+):\d+')


def _source_line(builder: Any) -> str | None:
    """Return file and line of what is being compiled."""
    found = _PLACE.search(str(builder.get_loc()))
    return f"{found[1]}:{found[2]}" if found else None


_LOAD: Final = re.compile(
    r"^ *%\S+ = tt\.load %[^\s,]+, %[^\s,]+(?=\s).*?(?:loc\((?P<loc>#\w+|.*)\))?$", re.MULTILINE
)
_ALIAS: Final = re.compile(r"^(#loc\d*) = loc\((.*)\)$", re.MULTILINE)


def unfilled_loads(text: str) -> tuple[str, ...]:
    """Return file and line of each load that leaves lanes undefined; text: the first form of a kernel."""
    aliases = dict(_ALIAS.findall(text))
    return tuple(dict.fromkeys(_innermost(m["loc"] or "", aliases) for m in _LOAD.finditer(text)))


def _innermost(location: str, aliases: dict[str, str]) -> str:
    """Follow names and inlined calls to the line itself."""
    for _ in range(len(aliases) + 1):
        if found := _PLACE.search(location.split(" at ", maxsplit=1)[0]):
            return f"{found[1]}:{found[2]}"
        names = re.findall(r"#loc\d*", location)
        if not names:
            break
        location = aliases.get(names[0], "")
    return "an unknown line"
