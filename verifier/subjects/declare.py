"""The decorator `verifier.subject`: it declares a function as a kernel under test, or refuses to."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TypeVar, get_args

from strategies.registry import ExtensionError, names_defining
from verifier.arithmetic.formats import FORMATS, Contraction, DivideByN
from verifier.arithmetic.trees.tree import Tree
from verifier.records.library import fits
from verifier.records.subject import (
    ADDED,
    INPUT,
    LANGUAGES,
    PARAMETERS,
    Claim,
    Domain,
    Formula,
    FullyMasked,
    KnownDefect,
    Language,
    Source,
    Subject,
    Trees,
)

Word = TypeVar("Word")

USUAL_DTYPES = ("float16", "bfloat16", "float32")
"""What is tried of a kernel whose declaration names no dtypes."""


def subject(
    *,
    op: str,
    language: Language | None = None,
    dtypes: tuple[str, ...] | None = None,
    variance: str | None = None,
    variance_options: Mapping[str, object] | None = None,
    accumulates: str | None = None,
    trees: Tree | Trees | None = None,
    formula: Formula | None = None,
    mean_contraction: Contraction | None = None,
    divide_by_n: DivideByN | None = None,
    saved_dtype: str | None = None,
    clamp: bool = False,
    domain: Domain | None = None,
    guarantees: set[str] | frozenset[str] = frozenset(),
    known_defects: tuple[KnownDefect, ...] = (),
    returns: tuple[str, ...] = ("output",),
    mutates: tuple[str, ...] = (),
    specification: Callable[..., object] | None = None,
    differentiable: bool = True,
    source: Source | None = None,
    extents: tuple[tuple[int, int], ...] = (),
    gradients: tuple[str, ...] | None = None,
    fully_masked: FullyMasked | None = None,
) -> Callable[[Callable[..., object]], Subject]:
    """Declare the decorated function as a kernel under test.

    op: the mathematical norm, for instance "layer_norm" or "layer_norm_backward".
    language: what the kernel is written in; it decides which backends can run it. Left out: that of the
        kernels which the function's code names (see `verifier.subjects.language`).
    dtypes: names of the dtypes of its tensors that it supports. Left out: those of float16, bfloat16 and
        float32 that it does not refuse.
    variance, accumulates, trees, formula, mean_contraction, divide_by_n, saved_dtype, clamp: the
        claim, see `Claim`. What is left out is filled in and printed as assumed.
    variance_options: what else the algorithm does, for instance {"merge": "weighted"} of "chan"; the
        options of each algorithm are listed in docs/reference/variance.md.
    trees: one tree for every reduction over columns, or a `Trees`.
    guarantees: promises beyond the bound, of "determinism", "batch_invariance", ...
    differentiable: false for a forward-only kernel: no gradient is demanded of it.
    source: the document that the kernel is taken from, if any, for whoever reads of the kernel.
    extents: (rows, columns) that every search is to begin with, for instance ((1, 70000),): canonical ones,
        the columns being what a row's statistics are taken over.
    gradients: names of the arguments whose gradients the backward pass gives, for instance ("input",) of a
        kernel for frozen weights: no other argument then requires one. Left out: all that the op has.
    fully_masked: with an op of masks, what a row gives of which no element takes part: "zeros" (-inf of a
        log-softmax; the gradient is 0) or "nan". Every declaration of such an op says it, and it is tested.
    specification: with op "unknown", what the kernel computes: a function of arguments of the kernel by
        name, written with torch on a (rows, columns) input or with mpmath on the numbers of a row (see
        docs/how-to/own-specification.md).

    Raises:
        ValueError: an unknown language, dtype, format, guarantee, word of the claim or option of the
            algorithm; a tree that is none; extents that are no pairs of positive integers or that the domain
            excludes; gradients of what the op or the function does not take; a specification that is
            missing, not wanted or uses what has no exact meaning; `fully_masked` missing or not wanted.

    """
    words = {
        "accumulates": accumulates,
        "mean_contraction": mean_contraction,
        "divide_by_n": divide_by_n,
        "saved_dtype": saved_dtype,
    }
    _demand_meaning_of_no_element(op, fully_masked)
    _demand_known_words(language, dtypes, words, guarantees)
    _demand_options(variance, variance_options)
    _demand_names(known_defects)
    _demand_extents(extents, domain)
    claim = Claim(
        variance=variance,
        variance_options=dict(variance_options or {}),
        accumulates=_given(accumulates, "float32"),
        formula=formula,
        trees=_trees(trees),
        mean_contraction=_given(mean_contraction, "mixed"),
        divide_by_n=_given(divide_by_n, "either"),
        saved_dtype=saved_dtype,
        clamp=clamp,
        fully_masked=fully_masked,
        assumed=_left_out(
            {**words, "trees": trees, "formula": formula, "language": language, "dtypes": dtypes}
        ),
    )

    def declare(function: Callable[..., object]) -> Subject:
        meant = _demand_specification(op, specification, variance, function, returns)
        _demand_required(domain, function)
        _demand_dtypes(domain, function)
        _demand_gradients(meant, gradients, function, differentiable=differentiable)
        made = Subject(
            function=function,
            name=function.__name__,
            path=Path(inspect.getsourcefile(inspect.unwrap(function)) or "<unknown>").resolve(),
            op=meant,
            language=language or "torch",
            dtypes=USUAL_DTYPES if dtypes is None else tuple(dtypes),
            claim=claim if language is None else fused_as_usual(claim, language),
            guarantees=frozenset(guarantees),
            known_defects=tuple(known_defects),
            domain=domain,
            returns=tuple(returns),
            mutates=tuple(mutates),
            specification=specification,
            differentiable=differentiable,
            source=source,
            extents=tuple((rows, columns) for rows, columns in extents),
            gradients=None if gradients is None else tuple(gradients),
        )
        _demand_residuals(made)
        # help() and inspect see the kernel's own function through these two.
        object.__setattr__(made, "__doc__", function.__doc__)
        object.__setattr__(made, "__wrapped__", function)
        return made

    return declare


def known_guarantees() -> tuple[str, ...]:
    """Return the names of the checks that demand what a guarantee promises; no check is imported for it."""
    return names_defining("verifier.checks", "GUARANTEE")


@cache
def _ops_of_masks() -> tuple[str, ...]:
    """Return the names of the ops in whose rows perhaps no element takes part; no op is imported for it."""
    return names_defining("verifier.ops", "MASKS")


def _demand_residuals(made: Subject) -> None:
    """Demand of dtypes of a residual that the op adds one, and that beside each dtype one can be tried."""
    if made.domain is None or made.domain.residual_dtypes is None:
        return
    try:
        adds = made.op in names_defining("verifier.ops", "ALIKE")
    except ExtensionError:  # said where extensions are used; no kernel is to blame
        return
    if not adds:
        raise ValueError(
            f"@subject: Domain(residual_dtypes=...) speaks of what is added to the input, and op {made.op!r} "
            "adds nothing"
        )
    without = [dtype for dtype in made.dtypes if not made.residual_dtypes_beside(dtype)]
    if without:
        raise ValueError(
            f"@subject: Domain(residual_dtypes={made.domain.residual_dtypes!r}) names none that holds "
            f"{without[0]} and that sums in {made.accumulation(without[0])} hold"
        )


def _demand_meaning_of_no_element(op: str, fully_masked: object) -> None:
    """Demand that a masked op says what a fully masked row gives, and no other op does."""
    try:
        known, masks = get_args(FullyMasked), op in _ops_of_masks()
    except ExtensionError:  # said where extensions are used; no kernel is to blame
        return
    if masks and fully_masked not in known:
        said = "is missing" if fully_masked is None else f"is {fully_masked!r}"
        raise ValueError(
            f"@subject: fully_masked {said}: what a row gives of which no element takes part is declared of "
            f"{op}, {' or '.join(map(repr, known))}"
        )
    if fully_masked is not None and not masks:
        raise ValueError(f"@subject: {op} has no mask; fully_masked is of {', '.join(_ops_of_masks())}")


def fused_as_usual(claim: Claim, language: Language) -> Claim:
    """Return a claim in which the mean is fused as compilers of the language do, where it says nothing."""
    if "mean_contraction" not in claim.assumed:
        return claim
    return replace(claim, mean_contraction="none" if language == "torch" else "mixed")


def _given(declared: Word | None, usual: Word) -> Word:
    """Return what is declared, or what is usual where the declaration says nothing."""
    return usual if declared is None else declared


def _left_out(declared: Mapping[str, object]) -> frozenset[str]:
    """Return the names of what the declaration does not say: the claim has it as assumed."""
    return frozenset(name for name, value in declared.items() if value is None)


def _trees(trees: Tree | Trees | None) -> Trees:
    if isinstance(trees, Trees):
        return trees
    return Trees() if trees is None else Trees(statistics=trees, row_gradients=trees)


def _demand_known_words(
    language: str | None,
    dtypes: tuple[str, ...] | None,
    words: Mapping[str, str | None],
    guarantees: set[str] | frozenset[str],
) -> None:
    """Demand words that have a meaning; `words` are those of the claim, None where one is left out."""
    meanings = {
        "accumulates": (*FORMATS, "input"),
        "mean_contraction": get_args(Contraction),
        "divide_by_n": get_args(DivideByN),
        "saved_dtype": (*FORMATS, "input"),
    }
    demanded: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
        "language": (() if language is None else (language,), LANGUAGES),
        "dtypes": (tuple(dtypes or ()), tuple(FORMATS)),
        **{name: ((word,), meanings[name]) for name, word in words.items() if word is not None},
        "guarantees": (tuple(sorted(guarantees)), known_guarantees() if guarantees else ()),
    }
    for field_name, (values, known) in demanded.items():
        unknown = [v for v in values if v not in known]
        if unknown:
            raise ValueError(f"@subject: unknown {field_name} {unknown[0]!r}; known are {', '.join(known)}")
    if dtypes is not None and not dtypes:
        raise ValueError("@subject: dtypes is empty; name at least one")


def _demand_names(defects: tuple[KnownDefect, ...]) -> None:
    """Demand that a witness is found by one name: ids are words, and a check has a defect once."""
    named = [(d.id, d.check) for d in defects if d.id]
    wrong = next((name for name, _ in named if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)), None)
    if wrong is not None:
        raise ValueError(f"@subject: id {wrong!r} of a known defect: small letters, digits and hyphens")
    for defect in defects:
        fits(defect.versions or "norm-verifier")  # what is no requirement is refused here
    twice = next((name for i, name in enumerate(named) if name in named[:i]), None)
    if twice is not None:
        raise ValueError(f"@subject: two known defects of {twice[1]} have the id {twice[0]!r}")


def _demand_extents(extents: object, domain: Domain | None) -> None:
    """Demand pairs of positive integers, inside the domain: what is promised nowhere is not run first."""
    wanted = "a tuple of pairs (rows, columns) of positive integers, as ((1, 70000),)"
    if not isinstance(extents, tuple | list):  # a ValueError, as all that this file raises
        raise ValueError(f"@subject: extents is {extents!r}, not {wanted}")  # noqa: TRY004
    for pair in extents:
        sound = isinstance(pair, tuple | list) and len(pair) == 2
        if not sound or not all(type(extent) is int and extent > 0 for extent in pair):
            raise ValueError(f"@subject: extents has {pair!r}; it is {wanted}")
        beyond = next(domain.exceeded(pair[0], pair[1], rank=0), None) if domain is not None else None
        if beyond is not None:
            raise ValueError(f"@subject: extents has {pair!r}, which lies outside the domain: {beyond}")


def _demand_options(variance: str | None, options: Mapping[str, object] | None) -> None:
    """Demand that options are those of the algorithm, each of a value that it takes."""
    if not options:
        return
    if variance is None:
        raise ValueError("@subject: variance_options without variance; name the algorithm that they are of")
    from verifier.bounds.variance.options import chosen_options

    try:
        chosen_options(variance, options)
    except ValueError as error:
        raise ValueError(f"@subject: {error}") from error


def _demand_specification(
    op: str,
    specification: Callable[..., object] | None,
    variance: str | None,
    function: Callable[..., object],
    returns: tuple[str, ...],
) -> str:
    """Demand a specification of op 'unknown', that it takes what the kernel takes, and of no other op.

    Returns:
        the op: that of matrix products, if the specification takes a matrix.

    """
    if op not in {"unknown", "unknown_linear"}:
        if specification is not None:
            raise ValueError(f"@subject: {op} has a meaning of its own; a specification is of op='unknown'")
        return op
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
    product = "linear_weight" in taken
    _demand_meaning(specification, tuple(taken), returns, features=3 if product else None)
    return "unknown_linear" if product else op


def _demand_meaning(
    specification: Callable[..., object],
    taken: tuple[str, ...],
    returns: tuple[str, ...],
    *,
    features: int | None,
) -> None:
    """Record a specification once: it uses what has an exact meaning alone, in few steps.

    features: the rows of the matrix that it takes, if it takes one.
    """
    from verifier.ops import unknown, unknown_linear
    from verifier.ops.specification.expression import leaves_of
    from verifier.ops.specification.recording import demand_few_steps, trace

    of = unknown_linear if features else unknown

    def arguments(columns: int) -> dict[str, object]:
        leaves = leaves_of(of.TENSORS, (2, columns), of.PARAMETERS, features)
        return {**dict.fromkeys(taken, 0.5), **leaves, "normalized_shape": (columns,)}

    try:
        trace(specification, arguments(4), returns)
        demand_few_steps(specification, arguments, returns)
    except ValueError as error:
        raise ValueError(f"@subject: specification: {error}") from error


def _demand_required(domain: Domain | None, function: Callable[..., object]) -> None:
    """Demand that the kernel takes something of what its domain says must be given."""
    if domain is None or domain.optional:
        return
    taken = inspect.signature(function).parameters
    if not any(name in taken for name in domain.required):
        raise ValueError(
            f"@subject: Domain(optional=False) speaks of {' and '.join(domain.required)}, of which "
            f"{function.__name__}() takes none"
        )


def _demand_gradients(
    op: str, gradients: object, function: Callable[..., object], *, differentiable: bool
) -> None:
    """Demand names of arguments by which the op is differentiated and that the kernel takes."""
    if gradients is None:
        return
    from verifier.ops import op as named_op

    wanted = 'a tuple of names of arguments, as ("input",)'
    if not isinstance(gradients, tuple | list) or not gradients:
        raise ValueError(f"@subject: gradients is {gradients!r}, not {wanted}")
    known = named_op(op).differentiable
    if not known or not differentiable:
        why = "differentiable=False says that it has none" if known else f"{op} is a backward pass itself"
        raise ValueError(f"@subject: gradients={tuple(gradients)!r} of {function.__name__}(): {why}")
    taken = [name for name in known if name in inspect.signature(function).parameters]
    strange = [name for name in gradients if name not in taken]
    if strange:
        raise ValueError(
            f"@subject: gradients has {strange[0]!r}; those of {function.__name__}() are {', '.join(taken)}"
        )


def _demand_dtypes(domain: Domain | None, function: Callable[..., object]) -> None:
    """Demand known dtypes of parameters and residuals in the domain, of a kernel that takes any."""
    known = (*FORMATS, INPUT)
    for option, names in (("parameter_dtypes", PARAMETERS), ("residual_dtypes", ADDED)):
        named = getattr(domain, option, None)
        if named is None:
            continue
        if not isinstance(named, tuple | list) or not named or any(name not in known for name in named):
            raise ValueError(
                f"@subject: Domain({option}={named!r}) is not a tuple of {', '.join(known)}, as "
                '("input", "float32")'
            )
        if not any(name in inspect.signature(function).parameters for name in names):
            raise ValueError(
                f"@subject: Domain({option}=...) speaks of {', '.join(names)}, of which "
                f"{function.__name__}() takes none"
            )
