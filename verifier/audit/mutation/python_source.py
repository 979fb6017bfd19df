"""Mutations of Python source: Triton kernels, and the wrappers that launch kernels."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from verifier.audit.mutation.mutation import Mutation

_OPERATORS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
_COMPARISONS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
_NAMES = {
    "float32": "float16",
    "int64": "int32",
    "maximum": "minimum",
    "minimum": "maximum",
    "max": "min",
    "min": "max",
    "zeros": "empty",
    "zeros_like": "empty_like",
    "new_zeros": "new_empty",
    "rsqrt": "sqrt",
    "exp": "exp2",
    "cumsum": "sum",
}
"""Attributes whose confusion makes another kernel: formats, directions, initial values, functions."""
_WITHOUT = {"to": "cast", "float": "cast", "contiguous": "copy"}
"""Methods whose call is left out, and what kind of mistake that is."""
_STORES = {"store", "atomic_add", "debug_barrier"}
"""Functions of Triton that are called for what they do: the statement is left out."""
_ALONG = {"sum", "mean", "max", "min", "var", "cumsum"}
"""Functions whose last argument is an axis, if it is a number."""
_EPS = ("eps", "epsilon")


def mutations(path: Path) -> list[Mutation]:
    """List the single mutations of the kernels and wrappers of a Python file, in the order of its text.

    What only declares a subject (its decorator, and functions that the decorator names) is left as it is.

    Raises:
        SyntaxError: it is no Python.

    """
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    source = _Source(path=path, text=text, starts=_line_starts(text))
    declaring = _declaring(tree)
    found = [
        mutation
        for function in _functions(tree)
        if function.name not in declaring
        for mutation in _of_function(source, function)
    ]
    refusals = list(_refusals(source, tree))
    return sorted({replace(one, refusal=_refusal(one, refusals)) for one in found})


_Refusal = tuple[int, int, tuple[int, int, int]]
"""Where the text of a branch begins and ends, its condition included, and lines as `Mutation` has them."""


def _refusals(source: _Source, tree: ast.Module) -> Iterator[_Refusal]:
    """Yield the branches that end by raising, with conditions that set no name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise):
            if any(isinstance(inner, ast.NamedExpr) for inner in ast.walk(node.test)):
                continue
            last = node.body[-1]
            lines = node.lineno, node.body[0].lineno, last.end_lineno or last.lineno
            yield source.span(node.test)[0], source.span(last)[1], lines


def _refusal(one: Mutation, refusals: Iterable[_Refusal]) -> tuple[int, int, int] | None:
    if one.in_kernel or "\n" in one.before + one.after:  # lines would not be the same ones
        return None
    within = (lines for start, end, lines in refusals if start <= one.start and one.end <= end)
    return next(within, None)


@dataclass(frozen=True, kw_only=True)
class _Source:
    path: Path
    text: str
    starts: list[int]

    def place(self, line: int, column: int) -> int:
        """Return the character of a position of `ast`, whose columns are bytes of UTF-8."""
        start = self.starts[line - 1]
        end = self.starts[line] if line < len(self.starts) else len(self.text)
        return start + len(self.text[start:end].encode()[:column].decode())

    def span(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self.place(node.lineno, node.col_offset)
        return start, self.place(node.end_lineno, node.end_col_offset)

    def of(self, node: ast.expr | ast.stmt | ast.keyword) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def change(self, start: int, end: int, after: str, kind: str, within: ast.FunctionDef) -> Mutation:
        line = self.text.count("\n", 0, start) + 1
        return Mutation(
            file=self.path,
            start=start,
            end=end,
            before=self.text[start:end],
            after=after,
            kind=kind,
            line=line,
            within=within.name,
            in_kernel=_is_compiled(within),
        )

    def between(
        self, sides: tuple[ast.expr, ast.expr], signs: tuple[str, str], kind: str, within: ast.FunctionDef
    ) -> Iterator[Mutation]:
        """Exchange the first sign, which stands between two expressions, for the second."""
        first, last = self.span(sides[0])[1], self.span(sides[1])[0]
        sign, after = signs
        at = self.text.find(sign, first, last)
        if at >= 0:
            yield self.change(at, at + len(sign), after, kind, within)


def _line_starts(text: str) -> list[int]:
    return [0, *(place + 1 for place, letter in enumerate(text) if letter == "\n")]


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    """Yield the outermost functions, methods included."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield node
        elif isinstance(node, ast.ClassDef | ast.If | ast.Try | ast.With):
            yield from _functions(node)


def _declaring(tree: ast.Module) -> set[str]:
    """Return the functions that declarations name, and those that these call."""
    bodies = {f.name: f for f in _functions(tree)}
    named: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) in {"subject", "Domain", "KnownDefect", "tree"}:
            named |= _names([*node.args, *(keyword.value for keyword in node.keywords)])
    declared = {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    waiting, done = list(named), set()
    while waiting:
        name = waiting.pop()
        if name in done:
            continue
        done.add(name)
        inside: ast.AST | None = bodies.get(name) or declared.get(name)
        if inside is not None and not _launches(inside):
            waiting += _names([inside])
    return {name for name in done if name in bodies and not _launches(bodies[name])}


def _launches(node: ast.AST) -> bool:
    """Return whether a function is or launches a kernel: `@triton.jit`, or `kernel[grid](...)`."""
    calls = (n for n in ast.walk(node) if isinstance(n, ast.Call))
    return _is_compiled(node) or any(isinstance(call.func, ast.Subscript) for call in calls)


def _is_compiled(node: ast.AST) -> bool:
    return any("jit" in ast.unparse(decorator) for decorator in getattr(node, "decorator_list", []))


def _names(nodes: list[ast.AST] | list[ast.expr]) -> set[str]:
    return {n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name)}


def _called(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _of_function(source: _Source, function: ast.FunctionDef) -> Iterator[Mutation]:
    for statement in function.body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # a docstring
        for node in ast.walk(statement):
            for rule in _RULES:
                yield from rule(source, node, function)


def _operator(source: _Source, node: ast.AST, within: ast.FunctionDef) -> Iterator[Mutation]:
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        yield from source.between((node.left, node.right), _OPERATORS[type(node.op)], "operator", within)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.Invert):
        start = source.span(node)[0]
        end = source.span(node.operand)[0]
        if not isinstance(node.operand, ast.Constant) and "(" not in source.text[start:end]:
            yield source.change(start, end, "", "operator", within)
    if isinstance(node, ast.BoolOp):
        signs = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in itertools.pairwise(node.values):
            yield from source.between((left, right), signs, "operator", within)


def _comparison(source: _Source, node: ast.AST, within: ast.FunctionDef) -> Iterator[Mutation]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
        signs = _COMPARISONS[type(node.ops[0])]
        yield from source.between((node.left, node.comparators[0]), signs, "comparison", within)


def _constant(source: _Source, node: ast.AST, within: ast.FunctionDef) -> Iterator[Mutation]:
    if not isinstance(node, ast.Constant):
        return
    start, end = source.span(node)
    if isinstance(node.value, bool):
        yield source.change(start, end, str(not node.value), "constant", within)
    elif isinstance(node.value, int):
        yield source.change(start, end, str(node.value + 1), "constant", within)
    elif isinstance(node.value, float):
        yield source.change(start, end, repr(2 * node.value or 1.0), "constant", within)


def _augmented(source: _Source, node: ast.AST, within: ast.FunctionDef) -> Iterator[Mutation]:
    if isinstance(node, ast.AugAssign) and type(node.op) in _OPERATORS:
        signs = (_OPERATORS[type(node.op)][0] + "=", "=")
        yield from source.between((node.target, node.value), signs, "accumulation", within)


def _dropped_statement(source: _Source, node: ast.AST, within: ast.FunctionDef) -> Iterator[Mutation]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _called(node.value) in _STORES:
        start, end = source.span(node)
        kind = "barrier" if _called(node.value) == "debug_barrier" else "store"
        yield source.change(start, end, "pass", kind, within)


def _keyword(source: _Source, node: ast.AST, within: ast.FunctionDef) -> Iterator[Mutation]:
    """Leave out a mask, a fill or a format: each has a default that is another kernel."""
    if not isinstance(node, ast.Call):
        return
    for keyword in node.keywords:
        if keyword.arg in {"mask", "other", "dtype", "reset_to_zero", "restore_value"}:
            start, end = source.span(keyword)
            before = source.text.rfind(",", 0, start)
            kind = "mask" if keyword.arg in {"mask", "other"} else "dtype"
            with_fill = keyword.arg == "mask" and any(k.arg == "other" for k in node.keywords)
            if before >= source.span(node)[0] and not with_fill:  # a fill without a mask is no call
                yield source.change(before, end, "", kind, within)


def _attribute(source: _Source, node: ast.AST, within: ast.FunctionDef) -> Iterator[Mutation]:
    if isinstance(node, ast.Attribute) and node.attr in _NAMES:
        if node.attr.startswith("zeros") and ast.unparse(node.value) in {"tl", "triton.language"}:
            return  # registers have no memory that could be left as it is
        end = source.span(node)[1]
        yield source.change(end - len(node.attr), end, _NAMES[node.attr], "name", within)


def _cast(source: _Source, node: ast.AST, within: ast.FunctionDef) -> Iterator[Mutation]:
    """Leave out `.to(...)`, `.float()`, `tl.cast` or `.contiguous()`; read the stride of another axis."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return
    name, owner, (_, end) = node.func.attr, source.span(node.func.value)[1], source.span(node)
    if name in _WITHOUT:
        yield source.change(owner, end, _closing(source.text[owner:end]), _WITHOUT[name], within)
    elif name == "stride" and len(node.args) == 1:
        start, last = source.span(node.args[0])
        other = "0" if source.text[start:last].strip() != "0" else "-1"
        yield source.change(start, last, other, "stride", within)
    elif name == "cast" and len(node.args) == 2:
        yield source.change(source.span(node)[0], end, f"({source.of(node.args[0])})", "cast", within)


def _axis(source: _Source, node: ast.AST, within: ast.FunctionDef) -> Iterator[Mutation]:
    """Go along the first axis instead of another; of the first, `_constant` makes the second."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return
    positional = node.args[-1:] if node.func.attr in _ALONG and not node.keywords else []
    named = [keyword.value for keyword in node.keywords if keyword.arg in {"axis", "dim"}]
    for axis in (*positional, *named):
        if ast.unparse(axis) in {"1", "2", "-1", "-2"}:
            yield source.change(*source.span(axis), "0", "axis", within)


def _closing(text: str) -> str:
    """Return the brackets that a removed call leaves open: those before its dot."""
    return text[: text.index(".")]


def _eps(source: _Source, node: ast.AST, within: ast.FunctionDef) -> Iterator[Mutation]:
    """Leave eps out, or add it behind the root."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and _is_eps(node.right):
        start, end = source.span(node.left)[1], source.span(node)[1]
        gap = source.text[start:end]
        yield source.change(start, end, gap[: gap.index("+")].rstrip(), "eps", within)
    if isinstance(node, ast.Call) and node.args and "sqrt" in _called(node):
        inner = node.args[0]
        if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Add) and _is_eps(inner.right):
            function, left, right = source.of(node.func), source.of(inner.left), source.of(inner.right)
            start, end = source.span(node)
            yield source.change(start, end, f"({function}({left}) + {right})", "eps", within)


def _is_eps(node: ast.expr) -> bool:
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
    return name.lower() in _EPS


def _tail(source: _Source, node: ast.AST, within: ast.FunctionDef) -> Iterator[Mutation]:
    if isinstance(node, ast.Call) and _called(node) == "cdiv" and len(node.args) == 2:
        start, end = source.span(node)
        first, second = map(source.of, node.args)
        yield source.change(start, end, f"(({first}) // ({second}))", "tail", within)


def _exchanged(source: _Source, node: ast.AST, within: ast.FunctionDef) -> Iterator[Mutation]:
    """Exchange neighbours that are names: arguments of a launch, or what a function returns."""
    items: list[ast.expr] = []
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
        items = node.args
    elif isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
        items = node.value.elts
    for left, right in itertools.pairwise(items):
        if isinstance(left, ast.Name) and isinstance(right, ast.Name) and left.id != right.id:
            start, end = source.span(left)[0], source.span(right)[1]
            gap = source.text[source.span(left)[1] : source.span(right)[0]]
            yield source.change(start, end, f"{right.id}{gap}{left.id}", "exchange", within)


def _rounding(source: _Source, node: ast.AST, within: ast.FunctionDef) -> Iterator[Mutation]:
    """Store what is smaller by an ulp of float16: twice what rounding towards zero costs on average."""
    if isinstance(node, ast.Call) and _called(node) == "store" and len(node.args) >= 2:
        pointer, value = node.args[:2]
        start, end = source.span(value)
        after = f"(({source.of(value)}) * (1.0 - 0.0009765625)).to(({source.of(pointer)}).dtype.element_ty)"
        yield source.change(start, end, after, "rounding", within)


_RULES: tuple[Callable[[_Source, ast.AST, ast.FunctionDef], Iterator[Mutation]], ...] = (
    _operator,
    _comparison,
    _constant,
    _augmented,
    _dropped_statement,
    _keyword,
    _attribute,
    _cast,
    _axis,
    _eps,
    _tail,
    _exchanged,
    _rounding,
)
