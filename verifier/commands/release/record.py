"""What is known of a kernel before it ships in a dtype, as records of plain data."""

from __future__ import annotations

from dataclasses import dataclass

from verifier.commands.cost_of_dtype import SweptInput
from verifier.commands.release.stages import LineShare, StageShare
from verifier.records.compiled_code import KernelContents

SCHEMA = 1
"""Version of the JSON of a release; it grows when a reader of the last one would read it wrongly."""


@dataclass(frozen=True, kw_only=True)
class Trust:
    """Up to where all errors of an output were seen to stay within a limit in ulp; None: nowhere.

    kappa, columns, magnitude: the largest of the sweep up to which every input has a result within it, the
    other two as on ordinary data; magnitudes from 1 on.
    """

    limit: float
    kappa: float | None
    columns: float | None
    magnitude: float | None


@dataclass(frozen=True, kw_only=True)
class LostAt:
    """Where the error of an output is made at one kappa: shares of steps, and of lines, largest first."""

    kappa: float
    stages: tuple[StageShare, ...]
    lines: tuple[LineShare, ...]


@dataclass(frozen=True, kw_only=True)
class InputRounding:
    """What rounding the input to its dtype moves of the exact result, in ulp: no error of the kernel.

    worst, mean: of inputs that round to those of the sweep, at one kappa, see `input_rounding`.
    """

    kappa: float
    output: str
    worst: float
    mean: float


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Errors of one output on ordinary data, the worst of each over the seeds; in ulp, see `RowErrors`.

    bits_lost: log2 of worst over rounded, at least 0. bound: what is proved there; None: nothing.
    """

    output: str
    worst: float
    tail: float
    mean: float
    signed: float
    rounded: float
    bits_lost: float
    bound: float | None
    trust: tuple[Trust, ...]
    lost: tuple[LostAt, ...]


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """What is proved of an output, in ulp, as declared and with one thing changed; None: no theorem."""

    change: str
    output: str
    kappa: float
    declared: float | None
    changed: float | None


@dataclass(frozen=True, kw_only=True)
class RanCode:
    """The compiled kernels that ran: names, digests without lines of source, and what their arithmetic is.

    contents: what each consists of, by name and digest.
    """

    kernels: tuple[str, ...]
    digests: tuple[str, ...]
    approximate: tuple[str, ...]
    flushes: bool
    fuses: bool
    half_sums: tuple[str, ...]
    atomics: tuple[str, ...]
    host: tuple[str, ...]
    contents: tuple[KernelContents, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DtypeRecord:
    """What one dtype costs one subject. No figure but those named bounds is proved: they are the worst seen.

    source: SHA-256 of the kernel's file. refused: why nothing was measured. unexplained: why it is not said
    where bits are lost, or that the account has a hole. missing: inputs (kappa, magnitude, columns) without
    results. overflow: the least magnitude with a result that is not finite. code: None if unknown.
    """

    subject: str
    path: str
    source: str
    op: str
    variance: str
    dtype: str
    backend: str
    refused: str
    figures: tuple[Figures, ...]
    what_if: tuple[WhatIf, ...]
    overflow: float | None
    unexplained: str
    missing: tuple[tuple[float, float, int], ...]
    code: RanCode | None
    points: tuple[SweptInput, ...]
    input_rounding: tuple[InputRounding, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Where an audit ran."""

    system: str
    processor: str
    versions: dict[str, object]


@dataclass(frozen=True, kw_only=True)
class Release:
    """A release audit: its measurements, and where they were made."""

    dtypes: tuple[DtypeRecord, ...]
    environment: Environment
    schema: int = SCHEMA
