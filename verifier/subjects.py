"""Subjects: kernels under test together with what they claim about themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from verifier.arithmetic import FORMATS, Contraction, DivideByN
from verifier.trees import Tree, any_order

if TYPE_CHECKING:
    from verifier.case import Case

Language = Literal["triton", "cuda", "torch"]
LANGUAGES = ("triton", "cuda", "torch")
GUARANTEES = (
    "determinism",
    "batch_invariance",
    "gradgradcheck",
    "special_values",
    "layouts",
    "large_offsets",
)


@dataclass(frozen=True, kw_only=True)
class Domain:
    """Where a subject promises to be right.

    Outside by shape, layout or absent arguments it must refuse or still be right; outside by values alone,
    which no launch can look at, nothing is promised (docs/decisions/outside-by-values.md).

    `max_kappa` bounds |mean| / standard deviation of every row, `max_abs` bounds |input|,
    `max_columns` and `max_rows` bound the extents, `min_columns` and `min_rows` too;
    `layouts` lists the layouts accepted for each tensor (None: every layout).
    `optional` is false when the tensors of `required` must all be given (those that the subject takes): a
    parameter of the signature without a default is always given, whatever the domain says.
    """

    max_kappa: float | None = None
    max_abs: float | None = None
    min_rows: int = 0
    max_rows: int | None = None
    min_columns: int = 0
    max_columns: int | None = None
    layouts: tuple[str, ...] | None = None
    max_rank: int | None = None
    optional: bool = True
    required: tuple[str, ...] = ("weight", "bias")

    @property
    def numeric(self) -> bool:
        """Whether it promises anything about values: then a case without a theorem inside it is a finding."""
        return self.max_kappa is not None or self.max_abs is not None

    def excludes(self, case: Case) -> str | None:
        """Return why the case lies outside, or None if it lies inside."""
        return self.excludes_call(case) or self.excludes_values(case)

    def excludes_call(self, case: Case) -> str | None:
        """Return why the case lies outside by what a wrapper sees before it launches, or None."""
        reasons = (
            (case.rows < self.min_rows, f"fewer than {self.min_rows} rows"),
            (case.columns < self.min_columns, f"fewer than {self.min_columns} columns"),
            (_above(case.rows, self.max_rows), f"more than {self.max_rows} rows"),
            (_above(case.columns, self.max_columns), f"more than {self.max_columns} columns"),
            (_above(case.input_rank, self.max_rank), f"rank above {self.max_rank}"),
            (self._lacks(case), f"{' and '.join(self.required)} must be given"),
            (
                self.layouts is not None and not case.layout_names <= set(self.layouts or ()),
                "layout not accepted",
            ),
        )
        return next((why for excluded, why in reasons if excluded), None)

    def _lacks(self, case: Case) -> bool:
        return not self.optional and any(case.tensors.get(name, 0) is None for name in self.required)

    def excludes_values(self, case: Case) -> str | None:
        """Return why the case lies outside by its numbers, or None."""
        if self.max_abs is not None and case.largest > self.max_abs:
            return f"|input| above {self.max_abs:g}"
        if self.max_kappa is not None and case.kappa > self.max_kappa:
            return f"kappa above {self.max_kappa:g}"
        return None


@cache
def _triton_version() -> tuple[int, ...]:
    """Return major and minor version of the Triton that compiles here; that of none comes before all."""
    try:
        return tuple(int(part) for part in metadata.version("triton").split(".")[:2])
    except metadata.PackageNotFoundError:
        return ()


@dataclass(frozen=True, kw_only=True)
class KnownDefect:
    """A defect that a subject is known to have, and the smallest case that shows it.

    `where` is a predicate on cases: search leaves those out, so that new failures still surface;
    `also` names further checks whose search leaves them out, "*" for every check. The witness is a
    case file, replayed first, always: one that passes is an error. It is found beside the kernel (see
    `witness_file`) unless `witness` names it, relative to the kernel's file, "{dtype}" being
    replaced. `backends` and `dtypes` limit where the defect can be observed; so does `triton_before`,
    the first version (major, minor) of Triton whose compiler puts right what the source leaves wrong.
    """

    check: str
    reason: str
    where: Callable[[Case], bool] | None = None
    also: tuple[str, ...] = ()
    witness: str | None = None
    backends: tuple[str, ...] | None = None
    dtypes: tuple[str, ...] | None = None
    triton_before: tuple[int, int] | None = None

    def concerns(self, check: str) -> bool:
        """Return whether the search of this check has to leave the defect out."""
        return check == self.check or check in self.also or "*" in self.also

    def observable(self, backend: str, dtype: str) -> bool:
        """Return whether this backend and dtype can show the defect, with the Triton that is installed."""
        placed = self.backends is None or backend in self.backends
        compiled = self.triton_before is None or _triton_version() < self.triton_before
        return placed and compiled and (self.dtypes is None or dtype in self.dtypes)


@dataclass(frozen=True, kw_only=True)
class Trees:
    """The trees of the three reductions: statistics and row gradients over columns, columns over rows."""

    statistics: Tree = field(default_factory=any_order)
    row_gradients: Tree = field(default_factory=any_order)
    columns: Tree = field(default_factory=any_order)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """How a subject says that it computes; every field is a hypothesis of its bound.

    `variance` names the algorithm (None: no claim, hence no verdict but observed errors).
    `accumulates` names the format of statistics and sums; inputs wider than it accumulate in their own.
    "input" is that of the input, whichever it is.
    `formula` names a form of the op, is a `Form`, or maps dtypes to these (None: the canonical one, assumed).
    `saved_dtype` is the format of the statistics that the backward pass reads: a format's name,
    "input" for the input's, or None for the accumulation format.
    `divide_by_n` "either" allows for both ways.
    `variance_options` is what else is claimed of the algorithm, by the names of its own options.
    """

    variance: str | None = None
    variance_options: Mapping[str, Any] = field(default_factory=dict)
    accumulates: str = "float32"
    formula: Any = None
    trees: Trees = field(default_factory=Trees)
    mean_contraction: Contraction = "mixed"
    divide_by_n: DivideByN = "division"
    saved_dtype: str | None = None
    clamp: bool = False
    assumed: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A kernel under test; calling it calls the kernel.

    `path` and `name` find it again in another process. `returns` names what the function returns
    in order ("output", then statistics). `mutates` names arguments that are changed in place.
    """

    function: Callable[..., Any]
    name: str
    path: Path
    op: str
    language: Language
    dtypes: tuple[str, ...]
    claim: Claim
    guarantees: frozenset[str] = frozenset()
    known_defects: tuple[KnownDefect, ...] = ()
    domain: Domain | None = None
    returns: tuple[str, ...] = ("output",)
    mutates: tuple[str, ...] = ()
    specification: Any = None
    differentiable: bool = True

    def __post_init__(self) -> None:
        """Let the domain speak of what the subject takes: a bias that it does not take is none that lacks."""
        if self.domain is not None:
            taken = tuple(name for name in self.domain.required if name in self.signature)
            object.__setattr__(self, "domain", replace(self.domain, required=taken))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the kernel itself."""
        return self.function(*args, **kwargs)

    @property
    def signature(self) -> Mapping[str, inspect.Parameter]:
        """The arguments that the kernel takes, in order; *args and **kwargs are left out."""
        every = inspect.signature(self.function).parameters
        return {n: p for n, p in every.items() if p.kind not in {p.VAR_POSITIONAL, p.VAR_KEYWORD}}

    @property
    def required(self) -> frozenset[str]:
        """The parameters without a default: every call gives them."""
        return frozenset(name for name, p in self.signature.items() if p.default is p.empty)

    @property
    def always_given(self) -> frozenset[str]:
        """The arguments that no call inside the domain leaves out: without a default, or required there."""
        held = self.domain.required if self.domain is not None and not self.domain.optional else ()
        return self.required.union(held)

    @property
    def summary(self) -> str:
        """First sentence of the kernel's or its file's docstring."""
        text = inspect.getdoc(self.function) or inspect.getdoc(inspect.getmodule(self.function)) or ""
        return text.split("\n\n")[0].replace("\n", " ").strip()

    def witness_file(self, defect: KnownDefect, dtype: str) -> Path:
        """Return where the witness of a known defect stands for a dtype, whether it exists or not."""
        if defect.witness is not None:
            return self.path.parent / defect.witness.format(dtype=dtype)
        words = slug(defect.reason)[:48].strip("-")
        return self.path.parent / "witnesses" / f"{self.name}-{defect.check}-{words}-{dtype}.json"

    @property
    def claims(self) -> bool:
        """Whether a variance algorithm is claimed, hence whether bounds apply."""
        return self.claim.variance is not None

    def accumulation(self, dtype: str) -> str:
        """Return the format that sums have for inputs of this dtype."""
        if self.claim.accumulates == "input":
            return dtype
        declared = FORMATS[self.claim.accumulates]
        return dtype if FORMATS[dtype].precision > declared.precision else declared.name

    def differing(self, **changes: Any) -> Subject:
        """Return the same subject with another declaration (fields of Subject or of Claim)."""
        claims = {k: v for k, v in changes.items() if k in Claim.__dataclass_fields__}
        if "variance" in claims:  # the options of one algorithm say nothing of another
            claims.setdefault("variance_options", {})
        rest = {k: v for k, v in changes.items() if k not in claims}
        return replace(self, claim=replace(self.claim, **claims), **rest)


def subject(
    *,
    op: str,
    language: Language,
    dtypes: tuple[str, ...],
    variance: str | None = None,
    variance_options: Mapping[str, Any] | None = None,
    accumulates: str | None = None,
    trees: Tree | Trees | None = None,
    formula: Any = None,
    mean_contraction: Contraction | None = None,
    divide_by_n: DivideByN | None = None,
    saved_dtype: str | None = None,
    clamp: bool = False,
    domain: Domain | None = None,
    guarantees: set[str] | frozenset[str] = frozenset(),
    known_defects: tuple[KnownDefect, ...] = (),
    returns: tuple[str, ...] = ("output",),
    mutates: tuple[str, ...] = (),
    specification: Any = None,
    differentiable: bool = True,
) -> Callable[[Callable[..., Any]], Subject]:
    """Declare the decorated function as a kernel under test.

    op: the mathematical norm, for instance "layer_norm" or "layer_norm_backward".
    language: what the kernel is written in; it decides which backends can run it.
    dtypes: names of the dtypes of its tensors that it supports.
    variance, accumulates, trees, formula, mean_contraction, divide_by_n, saved_dtype, clamp: the
        claim, see `Claim`. What is left out is filled in and printed as assumed.
    variance_options: what else the algorithm does, for instance {"merge": "weighted"} of "chan"; the
        options of each algorithm are listed in docs/reference/variance.md.
    trees: one tree for every reduction over columns, or a `Trees`.
    guarantees: promises beyond the bound, of "determinism", "batch_invariance", ...
    differentiable: false for a forward-only kernel: no gradient is demanded of it.
    specification: with op "unknown", what the kernel computes: a function of arguments of the kernel by
        name, written with torch on a (rows, columns) input or with mpmath on the numbers of a row (see
        docs/how-to/own-specification.md).

    Raises:
        ValueError: an unknown language, dtype, format, guarantee or option of the algorithm; a specification
            that is missing, not wanted or uses what has no exact meaning.

    """
    _check_words(language, dtypes, accumulates, guarantees)
    _check_options(variance, variance_options or {})
    given = {
        "accumulates": accumulates,
        "trees": trees,
        "formula": formula,
        "mean_contraction": mean_contraction,
        "divide_by_n": divide_by_n,
        "saved_dtype": saved_dtype,
    }
    claim = Claim(
        variance=variance,
        variance_options=dict(variance_options or {}),
        accumulates=accumulates or "float32",
        formula=formula,
        trees=_trees(trees),
        mean_contraction=mean_contraction or ("none" if language == "torch" else "mixed"),
        divide_by_n=divide_by_n or "either",
        saved_dtype=saved_dtype,
        clamp=clamp,
        assumed=frozenset(name for name, value in given.items() if value is None),
    )

    def declare(function: Callable[..., Any]) -> Subject:
        _check_specification(op, specification, variance, function, returns)
        _check_required(domain, function)
        made = Subject(
            function=function,
            name=function.__name__,
            path=Path(inspect.getsourcefile(inspect.unwrap(function)) or "<unknown>").resolve(),
            op=op,
            language=language,
            dtypes=tuple(dtypes),
            claim=claim,
            guarantees=frozenset(guarantees),
            known_defects=tuple(known_defects),
            domain=domain,
            returns=tuple(returns),
            mutates=tuple(mutates),
            specification=specification,
            differentiable=differentiable,
        )
        # help() and inspect see the kernel's own function through these two.
        object.__setattr__(made, "__doc__", function.__doc__)
        object.__setattr__(made, "__wrapped__", function)
        return made

    return declare


def _check_words(
    language: str, dtypes: tuple[str, ...], accumulates: str | None, guarantees: set[str] | frozenset[str]
) -> None:
    words: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
        "language": ((language,), LANGUAGES),
        "dtypes": (tuple(dtypes), tuple(FORMATS)),
        "accumulates": ((accumulates,) if accumulates else (), (*FORMATS, "input")),
        "guarantees": (tuple(sorted(guarantees)), GUARANTEES),
    }
    for field_name, (values, known) in words.items():
        unknown = [v for v in values if v not in known]
        if unknown:
            raise ValueError(f"@subject: unknown {field_name} {unknown[0]!r}; known are {', '.join(known)}")
    if not dtypes:
        raise ValueError("@subject: dtypes is empty; name at least one")


def _check_options(variance: str | None, options: Mapping[str, Any]) -> None:
    if not options:
        return
    if variance is None:
        raise ValueError("@subject: variance_options without variance; name the algorithm that they are of")
    from verifier.variance.options import chosen_options

    try:
        chosen_options(variance, options)
    except ValueError as error:
        raise ValueError(f"@subject: {error}") from error


def _check_specification(
    op: str, specification: Any, variance: str | None, function: Any, returns: tuple[str, ...]
) -> None:
    if op != "unknown":
        if specification is not None:
            raise ValueError(f"@subject: {op} has a meaning of its own; a specification is of op='unknown'")
        return
    if specification is None or variance is not None:
        raise ValueError("@subject: op 'unknown' needs specification= and has no variance algorithm")
    taken, offered = inspect.signature(specification).parameters, inspect.signature(function).parameters
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in taken.values()):
        raise ValueError("@subject: the specification takes its arguments by name, without * and decorators")
    strange = [name for name in taken if name not in offered]
    if strange:
        raise ValueError(
            f"@subject: the specification takes {strange[0]!r}, which {function.__name__}() does not take"
        )
    from verifier.ops.unknown import PARAMETERS, TENSORS
    from verifier.specification.expression import leaves_of
    from verifier.specification.recording import demand_few_steps, trace

    def arguments(columns: int) -> dict[str, Any]:
        leaves = leaves_of(TENSORS, (2, columns), PARAMETERS)
        return {**dict.fromkeys(taken, 0.5), **leaves, "normalized_shape": (columns,)}

    try:
        trace(specification, arguments(4), returns)
        demand_few_steps(specification, arguments, returns)
    except ValueError as error:
        raise ValueError(f"@subject: specification: {error}") from error


def _check_required(domain: Domain | None, function: Any) -> None:
    if domain is None or domain.optional:
        return
    taken = inspect.signature(function).parameters
    if not any(name in taken for name in domain.required):
        raise ValueError(
            f"@subject: Domain(optional=False) speaks of {' and '.join(domain.required)}, of which "
            f"{function.__name__}() takes none"
        )


def _trees(trees: Tree | Trees | None) -> Trees:
    if isinstance(trees, Trees):
        return trees
    return Trees(statistics=trees, row_gradients=trees) if trees else Trees()


def _above(value: int, limit: int | None) -> bool:
    return limit is not None and value > limit


def slug(text: str) -> str:
    """Return text as a short file name part."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-").lower()
