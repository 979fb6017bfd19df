"""Certificates: what is proved of a compiled kernel for all inputs of one shape, and why one was refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

VERSION = 6
NOT_COVERED = (
    "other shapes, strides, alignments and scalars, eps among them",
    "arguments left out, other modes, and other choices of what needs a gradient",
    "what a wrapper decides on besides its arguments: earlier calls, the device, settings, chance",
    "memory that a wrapper reads by its address, and what it learns of tensors past torch's dispatch",
    "products fused in some uses and rounded in others, where the declaration does not count each use",
    "what ptxas makes of the PTX besides fusing products and sums",
    "the device's own arithmetic",
    "inputs that are not finite, and the sign of zero results",
)


@dataclass(frozen=True, kw_only=True)
class ReadOrder:
    """An order in which the code makes a sum.

    sha256: of its text (`verifier/arithmetic/trees/canonical.py`); None: it is one of torch's own, which is
    not known. tree: the call that declares a tree which has it, "" where none is known. columns: of several
    orders, the results that use this one, each with the columns of the first row that do, "" where it has
    none.
    """

    sha256: str | None
    tree: str
    columns: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class ReadSum:
    """One sum of the code: of how many terms, and how many additions a term meets at most.

    declared: additions that the declared tree allows; None: none is declared, so that any order is. of: the
    first term of the first row. line: where the code makes the sum, "" where unknown. results: those that
    use it. orders: those in which it is made; several where lanes keep means of their own.
    """

    terms: int
    depth: int
    declared: int | None
    of: str = ""
    line: str = ""
    results: tuple[str, ...] = ()
    orders: tuple[ReadOrder, ...] = ()

    @property
    def text(self) -> str:
        """How many terms it has, and how many additions one meets and may meet, in words."""
        allowed = "no tree is declared" if self.declared is None else f"{self.declared} declared"
        return f"{self.terms} terms {self.depth} deep ({allowed})"


@dataclass(frozen=True, kw_only=True)
class RowBound:
    """What a bound comes to on drawn normal rows of one kappa, |mean| / standard deviation; None: no theorem.

    Of other rows of that kappa it may be larger: with an element far off, or with squares that underflow.
    The standard deviation of the rows is 1 to 2.
    variance, rstd: largest proved relative errors, with sums as deep as the code makes them (of rms, of the
    mean square). declared_variance: the same with the declared trees.
    """

    kappa: float
    variance: float | None
    rstd: float | None
    declared_variance: float | None


@dataclass(frozen=True, kw_only=True)
class StatedTheorem:
    """A theorem of docs/explanation/bounds.md, in its notation: what it asks of a row, and what it says then.

    about: what it bounds. asks: its hypotheses besides the model of arithmetic.
    """

    number: str
    about: str
    asks: tuple[str, ...]
    bound: str


@dataclass(frozen=True, kw_only=True)
class TheoremBound:
    """The bound of the statistics as a function of the row: the theorems with these constants.

    theorems: of docs/explanation/bounds.md. depth: additions that an element meets at most in sums of the
    statistics, as the code makes them; declared_depth: as declared, None where no tree is. u: unit roundoff
    of the format. root: opcodes of 1 / sqrt, in order. rows: its value on some rows.
    """

    theorems: tuple[str, ...]
    format: str
    u: float
    depth: int
    declared_depth: int | None
    divide_by_n: str
    mean_contraction: str
    clamp: bool
    root: tuple[str, ...]
    rows: tuple[RowBound, ...]


@dataclass(frozen=True, kw_only=True)
class CodeProof:
    """What was proved of the code with products fused or not.

    contraction: "off" as the PTX says, "on" with every product fused that ptxas may fuse.
    kernels: SHA-256 of the PTX of each kernel that ran. launches: kernels and their grids, in order.
    claims: the claims of the rules that were used (docs/explanation/certificates.md); rules: how often each.
    obligations: what had to hold for the rules, and does. way: what the declaration leaves to the code;
    its `fuses` says whether products are fused into sums in the declared computation that the code is.
    approximate: operations that are not rounded correctly; their errors are an assumption.
    expressions: SHA-256 of the recorded table. nodes: its length. finite_to: every value is finite where no
    element of an argument exceeds 2**finite_to in magnitude; None: nothing was shown of that.
    mixed: with products fused "off", the places of those that ptxas may fuse in one use and round in another,
    of which the declared computation has to count each use by itself.
    bound: of the statistics, where they are sums. within: the proof is of inputs of which no element exceeds
    2**within in magnitude, since so large are values that are computed and have no part in a result; None: of
    all.
    """

    contraction: str
    kernels: Mapping[str, str]
    launches: tuple[tuple[str, tuple[int, int, int]], ...]
    claims: str
    rules: Mapping[str, int]
    obligations: tuple[str, ...]
    way: Mapping[str, object]
    sums: tuple[ReadSum, ...]
    approximate: tuple[str, ...]
    expressions: str
    nodes: int
    finite_to: int | None
    mixed: tuple[str, ...]
    bound: TheoremBound | None = None
    within: int | None = None


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What is proved of one subject, dtype and shape.

    source: SHA-256 of the kernel's file. call: what kind of call was recorded, in words. tensors: shape,
    strides (in elements), alignment (bytes) and dtype of each argument. support: for each result, on which
    elements of each argument one of its elements depends at most, in canonical rows, whatever the inputs
    are. theorems: those that bound the declared computation; hypotheses: what each asks of a row and says of
    it; consequence: which bounds of which results follow, in words. watched: sanitizers that ran and found
    nothing; no address depends on data, so that they would find nothing on other inputs either.
    """

    subject: str
    source: str
    op: str
    dtype: str
    rows: int
    columns: int
    tensors: Mapping[str, Mapping[str, object]]
    scalars: Mapping[str, object]
    outputs: tuple[str, ...]
    support: Mapping[str, Mapping[str, str]]
    call: str
    statement: str
    theorems: tuple[str, ...]
    hypotheses: tuple[StatedTheorem, ...]
    consequence: str
    proofs: tuple[CodeProof, ...]
    watched: tuple[str, ...]
    assumptions: tuple[str, ...]
    not_covered: tuple[str, ...] = NOT_COVERED
    version: int = VERSION

    @property
    def within(self) -> int | None:
        """Of inputs of which no element exceeds 2**within in magnitude it is one; None: of all."""
        return min((proof.within for proof in self.proofs if proof.within is not None), default=None)

    def speaks_of(self, largest: float) -> bool:
        """Return whether inputs are meant of which the largest element has this magnitude."""
        return self.within is None or largest <= 2.0**self.within

    @property
    def document(self) -> dict[str, object]:
        """The certificate as JSON has it."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why no certificate is given; it says nothing against the kernel.

    stage: what could not be shown. why: the first thing that stood in the way.
    """

    stage: str
    why: str

    @property
    def document(self) -> dict[str, object]:
        """The refusal as JSON has it."""
        return {"refused": asdict(self)}


OWN_FAILURE = "the verifier does not fail itself"
"""Stage of a refusal of which the verifier is the cause, not the kernel."""


@dataclass(frozen=True, kw_only=True)
class AskedCertificate:
    """What came of asking for a certificate in an audit: of one subject, dtype, shape and kind of call.

    rows, columns: 0 where no shape was tried. gradients: whether the call asks for them. judged: cases of the
    same layout that were held against the certificate and passed. contradicted: a check that fails although
    the same is certified, in words: an error of the verifier.
    """

    subject: str
    path: str
    dtype: str
    found: Certificate | Refusal
    rows: int = 0
    columns: int = 0
    gradients: bool = False
    judged: int = 0
    contradicted: str = ""

    @property
    def certified(self) -> bool:
        """Whether it is certified, and nothing speaks against it."""
        return isinstance(self.found, Certificate) and not self.contradicted

    @property
    def own_failure(self) -> str:
        """What the verifier itself failed of, "" where it did not."""
        return self.found.why if isinstance(self.found, Refusal) and self.found.stage == OWN_FAILURE else ""

    @property
    def document(self) -> dict[str, object]:
        """The same as JSON has it."""
        asked = {
            name: getattr(self, name)
            for name in ("subject", "path", "dtype", "rows", "columns", "gradients", "judged", "contradicted")
        }
        return {**self.found.document, **asked, "verdict": "CERTIFIED" if self.certified else "UNDECIDED"}
