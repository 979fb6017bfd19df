"""Subjects: kernels under test, what they claim about themselves, and where they promise to be right."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from verifier.arithmetic.abstract_number import Form
from verifier.arithmetic.formats import FORMATS, Contraction, DivideByN
from verifier.arithmetic.trees.tree import Tree, any_order
from verifier.records.library import fits

if TYPE_CHECKING:
    from verifier.records.case import Case

Formula = str | Form | Mapping[str, str | Form]
"""How a formula is written: the name of one of the op's forms, or a form, or either by dtype."""
Language = Literal["triton", "cuda", "binary", "torch"]
LANGUAGES = ("triton", "cuda", "binary", "torch")
FullyMasked = Literal["zeros", "nan"]


INPUT = "input"
"""In the place of a dtype's name: that of the input, whichever it is."""
PARAMETERS = ("alpha", "weight", "bias", "running_mean", "running_var")
"""The tensors that one dtype holds, which need not be the input's: what a network learns, or keeps."""
ADDED = ("residual",)
"""What is added to the input, whose dtype need not be its: residuals are often kept in float32."""
USUAL_EPS = 1e-12
"""The least eps in use: of vision models' layer norms (BERT, ViT)."""


@dataclass(frozen=True, kw_only=True)
class Domain:
    """Where a subject promises to be right.

    Outside by shape, layout or absent arguments it must refuse or still be right; outside by values alone,
    which no launch can look at, nothing is promised (docs/decisions/outside-by-values.md).

    `max_kappa` bounds |mean| / standard deviation of every row and `max_abs` each |element|, of what is
    normalized: the input, its sum with a residual, what a gate makes of it. `max_columns` and `max_rows`
    bound the extents, `min_columns` and `min_rows` too;
    `layouts` lists the layouts accepted for each tensor (None: every layout).
    `min_eps` is the least eps that is promised. Without one all are, but an eps of zero may be refused, and
    with an eps below `USUAL_EPS` a result without a theorem is no finding.
    `optional` is false when the tensors of `required` must all be given (those that the subject takes): a
    parameter of the signature without a default is always given, whatever the domain says.
    `parameter_dtypes` names the dtypes in which weight, bias and running statistics are promised: "input" is
    the input's. Of several, weight may have one and bias another, which a kernel may refuse. None promises
    the input's alone, and says nothing of any other. `residual_dtypes` names those of a residual likewise,
    of which the ones are tried that hold the input and that sums hold.
    """

    max_kappa: float | None = None
    max_abs: float | None = None
    min_rows: int = 0
    max_rows: int | None = None
    min_columns: int = 0
    max_columns: int | None = None
    layouts: tuple[str, ...] | None = None
    max_rank: int | None = None
    min_eps: float | None = None
    optional: bool = True
    required: tuple[str, ...] = ("weight", "bias")
    parameter_dtypes: tuple[str, ...] | None = None
    residual_dtypes: tuple[str, ...] | None = None

    @property
    def numeric(self) -> bool:
        """Whether it promises anything about values: then a case without a theorem inside it is a finding."""
        return self.max_kappa is not None or self.max_abs is not None

    def excludes(self, case: Case) -> str | None:
        """Return why the case lies outside, or None if it lies inside."""
        return self.excludes_call(case) or self.excludes_values(case)

    def excludes_call(self, case: Case) -> str | None:
        """Return why the case lies outside by what a wrapper sees before it launches, or None."""
        return next(self._exceeded(case), None)

    def _exceeded(self, case: Case) -> Iterator[str]:
        """Yield every limit on extents, layouts and absent arguments that the case does not keep."""
        yield from self.exceeded(case.rows, case.columns, case.input_rank)
        if self.min_eps is not None and case.eps < self.min_eps:
            yield f"eps below {self.min_eps:g}"
        if self._lacks(case):
            yield f"{' and '.join(self.required)} must be given"
        if self.layouts is not None and not case.layout_names.issubset(self.layouts):
            yield "layout not accepted"
        yield from self._in_other_dtypes(case)

    def _in_other_dtypes(self, case: Case) -> Iterator[str]:
        """Yield every parameter, and every residual, whose dtype is not promised."""
        yield from _in_others(case, PARAMETERS, self.parameter_dtypes)
        yield from _in_others(case, ADDED, self.residual_dtypes)

    def leaves_dtypes_open(self, case: Case) -> bool:
        """Return whether a tensor has another dtype than the input, and nothing is said of such."""
        every = ((PARAMETERS, self.parameter_dtypes), (ADDED, self.residual_dtypes))
        return any(any(_in_others(case, names, None)) for names, promised in every if promised is None)

    def exceeded(self, rows: int, columns: int, rank: int) -> Iterator[str]:
        """Yield every limit on extents that these do not keep. rank: dimensions of the input."""
        if rows < self.min_rows:
            yield f"fewer than {self.min_rows} rows"
        if columns < self.min_columns:
            yield f"fewer than {self.min_columns} columns"
        if _above(rows, self.max_rows):
            yield f"more than {self.max_rows} rows"
        if _above(columns, self.max_columns):
            yield f"more than {self.max_columns} columns"
        if _above(rank, self.max_rank):
            yield f"rank above {self.max_rank}"

    def _lacks(self, case: Case) -> bool:
        return not self.optional and any(case.tensors.get(name, 0) is None for name in self.required)

    def may_refuse(self, case: Case) -> bool:
        """Return whether a refusal of a case inside is no finding.

        Nothing is said of an eps of zero, nor of a weight and a bias in two dtypes.
        """
        no_eps = self.min_eps is None and "eps" in case.scalars and case.eps == 0.0
        return no_eps or case.mixes_dtypes

    def leaves_eps_open(self, case: Case) -> bool:
        """Return whether eps is smaller than any in use, and nothing is said of such."""
        return self.min_eps is None and "eps" in case.scalars and case.eps < USUAL_EPS

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
class Source:
    """The document that a kernel is taken from, and how far the kernel follows it.

    title: the document's, or what it is about where it has none; `part` names a page or a step of it.
    author: who wrote it, or the site that shows it.
    url: an address that the document gives: its own, or that of the code or the text that it rests on.
    licence: as the document or that code states it.
    as_published: whether algorithm, launch and numerics are the document's, defects included.
    changed: what differs from the document.
    """

    title: str
    part: str = ""
    author: str = "not stated"
    url: str = ""
    licence: str = "not stated"
    as_published: bool = False
    changed: str = "nothing"

    @property
    def summary(self) -> str:
        """Title and part, and what the kernel makes of them: as published, or what was changed."""
        named = f"{self.title}, {self.part}" if self.part else self.title
        changed = f"changed: {self.changed}"
        if not self.as_published:
            return f"{named}; {changed}"
        return f"{named}; as published" + ("" if self.changed == "nothing" else f"; {changed}")


@dataclass(frozen=True, kw_only=True)
class KnownDefect:
    """A defect that a subject is known to have, and the smallest case that shows it.

    `id` is its short name: small letters, digits and hyphens. `where` is a predicate on cases: search leaves
    those out, so that new failures still surface; `also` names further checks whose search leaves them out,
    "*" for every check. The witness is a case, replayed first, always: one that passes is an error. It is a
    case file if `witness` names one, relative to the kernel's file, "{dtype}" being replaced; otherwise it
    stands by `id` in the subject's file of witnesses (verifier/records/witness.py). `backends` and `dtypes`
    limit where the defect can be observed; so does `triton_before`, the first version (major, minor) of
    Triton whose compiler puts right what the source leaves wrong. `versions` is a requirement such as
    "liger-kernel<0.5.4": of an installed package in other versions nothing is known.
    """

    check: str
    reason: str
    id: str = ""
    where: Callable[[Case], bool] | None = None
    also: tuple[str, ...] = ()
    witness: str | None = None
    backends: tuple[str, ...] | None = None
    dtypes: tuple[str, ...] | None = None
    triton_before: tuple[int, int] | None = None
    versions: str | None = None

    @property
    def of_this_version(self) -> bool:
        """Whether the package that is installed has the defect."""
        return self.versions is None or fits(self.versions)

    def concerns(self, check: str) -> bool:
        """Return whether the search of this check has to leave the defect out."""
        return check == self.check or check in self.also or "*" in self.also

    def observable(self, backend: str, dtype: str) -> bool:
        """Return whether this backend and dtype can show the defect, with the Triton that is installed."""
        placed = self.backends is None or backend in self.backends
        compiled = self.triton_before is None or _triton_version() < self.triton_before
        present = placed and compiled and self.of_this_version
        return present and (self.dtypes is None or dtype in self.dtypes)


@dataclass(frozen=True, kw_only=True)
class Trees:
    """The trees of the three reductions: statistics and row gradients over columns, columns over rows.

    A sum of all elements, as of a learned scale's gradient, follows the latter two, one after the other.
    """

    statistics: Tree = field(default_factory=any_order)
    row_gradients: Tree = field(default_factory=any_order)
    columns: Tree = field(default_factory=any_order)

    def __post_init__(self) -> None:
        """Demand trees: a function that makes one is none until it is called."""
        for name in ("statistics", "row_gradients", "columns"):
            given = getattr(self, name)
            if isinstance(given, Tree):
                continue
            if inspect.isroutine(given):
                why = f"the function {given.__name__} and no tree: call it, as in {given.__name__}(...)"
            else:
                why = f"{reprlib.repr(given)} and no tree"
            raise ValueError(f"@subject: trees: {name} is {why}")


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
    `fully_masked` is what a row of a masked softmax gives of which no element takes part: "zeros", of which
    the logarithm is -inf, or "nan".
    `assumed` names fields that the declaration left out. `read` says where the claim was read from the
    compiled code, of a declaration that names no algorithm: "" is a claim of the declaration's own.
    """

    variance: str | None = None
    variance_options: Mapping[str, object] = field(default_factory=dict)
    accumulates: str = "float32"
    formula: Formula | None = None
    trees: Trees = field(default_factory=Trees)
    mean_contraction: Contraction = "mixed"
    divide_by_n: DivideByN = "division"
    saved_dtype: str | None = None
    clamp: bool = False
    fully_masked: FullyMasked | None = None
    assumed: frozenset[str] = frozenset()
    read: str = ""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A kernel under test; calling it calls the kernel.

    `path` and `name` find it again in another process. `returns` names what the function returns
    in order ("output", then statistics). `mutates` names arguments that are changed in place.
    `extents` lists (rows, columns) that every search begins with. `gradients` names the arguments whose
    gradients the backward pass gives (None: all that the op differentiates by): no other one is asked for.
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
    specification: Callable[..., object] | None = None
    differentiable: bool = True
    source: Source | None = None
    extents: tuple[tuple[int, int], ...] = ()
    gradients: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Let the domain speak of what the subject takes: a bias that it does not take is none that lacks."""
        if self.domain is not None:
            taken = tuple(name for name in self.domain.required if name in self.signature)
            object.__setattr__(self, "domain", replace(self.domain, required=taken))

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Call the kernel itself."""
        return self.function(*args, **kwargs)

    @cached_property
    def signature(self) -> Mapping[str, inspect.Parameter]:
        """The arguments that the kernel takes, in order; *args and **kwargs are left out."""
        every = inspect.signature(self.function).parameters
        return {n: p for n, p in every.items() if p.kind not in {p.VAR_POSITIONAL, p.VAR_KEYWORD}}

    @cached_property
    def required(self) -> frozenset[str]:
        """The parameters without a default: every call gives them."""
        return frozenset(name for name, p in self.signature.items() if p.default is p.empty)

    def gives_gradient(self, name: str) -> bool:
        """Return whether the backward pass is to give the gradient of an argument of this name."""
        return name in self.signature and (self.gradients is None or name in self.gradients)

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

    @property
    def parameter_dtypes(self) -> tuple[str, ...]:
        """The dtypes in which parameters are promised; "input", the input's, where none is named."""
        named = self.domain.parameter_dtypes if self.domain is not None else None
        return named or (INPUT,)

    @property
    def residual_dtypes(self) -> tuple[str, ...]:
        """The dtypes in which what is added to the input is promised; "input", the input's, as above."""
        named = self.domain.residual_dtypes if self.domain is not None else None
        return named or (INPUT,)

    def residual_dtypes_beside(self, dtype: str) -> tuple[str, ...]:
        """Return those of them that are tried beside inputs of a dtype.

        Theorem T14 is of sums in a format that holds both, stored in one that holds the input.
        """
        widest = FORMATS[self.accumulation(dtype)]

        def fits(name: str) -> bool:
            return FORMATS[name].holds(FORMATS[dtype]) and widest.holds(FORMATS[name])

        return tuple(name for name in self.residual_dtypes if name == INPUT or fits(name))

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


def _in_others(case: Case, names: tuple[str, ...], promised: tuple[str, ...] | None) -> Iterator[str]:
    """Yield every tensor of these in a dtype that is not promised; where none is named, the input's is."""
    accepted = {case.dtype if name == INPUT else name for name in promised or (INPUT,)}
    for name in names:
        held = case.dtype_of(name)
        if held is not None and held not in accepted:
            yield f"{name} in {held} beside an input in {case.dtype}"


def _above(value: int, limit: int | None) -> bool:
    return limit is not None and value > limit
