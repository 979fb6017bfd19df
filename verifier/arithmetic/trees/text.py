"""Reduction trees as text: the calls that a declaration makes, or shorter."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from typing import NoReturn

from verifier.arithmetic.trees.tree import (
    Tree,
    any_order,
    either,
    pairwise,
    sequential,
    tile,
    torch_cascade,
    tree,
)

CALLS: dict[str, Callable[..., Tree]] = {
    call.__name__: call for call in (sequential, pairwise, any_order, tree, tile, torch_cascade, either)
}
COMBINE = ("butterfly", "sequential")
EXAMPLES = (
    "sequential, pairwise, any_order, lanes=256, chunks=8, depth=20, 'tile(block=1024, threads=128)', "
    "'torch_cascade(lanes=16)', 'either(tree(lanes=8), tree(lanes=16))'"
)


def parse_tree(text: str) -> tuple[str, Tree]:
    """Return the call that the text stands for, as a declaration writes it, and its tree.

    text: a call such as `tile(block=1024, threads=128)`, a bare name for one without arguments, or bare
    arguments for those of `tree`: `lanes=256`, `lanes=256, combine=sequential`.

    Raises:
        ValueError: it is none of these, or the call refuses its arguments.

    """
    whole = text.strip()
    if "(" not in whole:
        whole = f"tree({whole})" if "=" in whole else f"{whole.replace(' ', '_')}()"
    try:
        node = ast.parse(whole, mode="eval").body
    except (SyntaxError, ValueError):
        _unknown(text)
    return _made(node, text)


def _made(node: ast.expr, text: str) -> tuple[str, Tree]:
    """Return one call and its tree; the arguments of `either` are calls themselves."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in CALLS:
        _unknown(text)
    name = node.func.id
    parts = [_made(argument, text) for argument in node.args]
    given = {word.arg or "**": _value(word, text) for word in node.keywords}
    call = CALLS[name]
    try:
        inspect.signature(call).bind(*(made for _, made in parts), **given)
    except TypeError as error:
        raise ValueError(f"--tree {text!r}: {name}() {error}") from None
    said = ", ".join([*(said for said, _ in parts), *(f"{word}={v!r}" for word, v in given.items())])
    return f"{name}({said})", call(*(made for _, made in parts), **given)


def _value(word: ast.keyword, text: str) -> int | str:
    """Return an argument: how lanes are combined, or a whole number, positive but for extra_depth."""
    value = word.value.id if isinstance(word.value, ast.Name) else getattr(word.value, "value", None)
    if word.arg == "combine":
        if value not in COMBINE:
            raise ValueError(f"--tree {text!r}: combine is one of {', '.join(COMBINE)}")
        return str(value)
    least = 0 if word.arg == "extra_depth" else 1
    if type(value) is not int or value < least:
        raise ValueError(f"--tree {text!r}: {word.arg} is a whole number of at least {least}")
    return value


def _unknown(text: str) -> NoReturn:
    raise ValueError(f"--tree {text!r} is no tree; there are, for instance: {EXAMPLES}")
