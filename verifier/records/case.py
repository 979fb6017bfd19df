"""Cases: one complete input of an op, replayable from its JSON."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol, TypedDict

import torch

from strategies.layouts import Layout
from verifier.arithmetic.formats import FORMATS
from verifier.records.files import read_bytes, reason, write_together
from verifier.records.printable import line, said

SCHEMA: Final = 1
INLINE_BYTES: Final = 1 << 20
"""Tensors above this many bytes stand in a file beside the case, below it as base64 inside."""


LEFT_OUT: Final = "left_out"
"""A scalar of a case: the names of the arguments that the call leaves out, so that their defaults hold."""
GIVEN_NONE: Final = "given_none"
"""A scalar of a case: the names of the arguments that the call gives as None, whatever number that means."""
FEATURES: Final = "out_features"
"""A scalar of a case: how many elements a row of the output has, where it is not as many as the input's."""

CASE_BYTES: Final = 1 << 28
"""A case file has at most a few MiB of each of its tensors; one that is larger is something else."""
TENSOR_BYTES: Final = 1 << 32
"""Of a tensor's file, at most: a case that needs more can only come from a damaged or a foreign file."""


class CaseError(ValueError):
    """A case file that cannot be read, with its path and what is wrong."""

    def __init__(self, message: str) -> None:
        """Keep the message one line that can be shown: a part of it may be the file's own words."""
        super().__init__(line(message))


Document = dict[str, Any]
"""A JSON object, as a file has it: nobody has looked at it yet."""


class TensorDocument(TypedDict, total=False):
    """A tensor as plain data: its bytes are text, in a file beside the case, or, in a pipe, as they are."""

    dtype: str
    shape: list[int]
    base64: str
    file: str
    bytes: bytes


class CaseDocument(TypedDict):
    """A case as plain data: JSON, but for the bytes of tensors that go through a pipe."""

    schema: int
    op: str
    dtype: str
    hazard: str
    seed: int
    origin: str
    rows: int
    columns: int
    kappa: str
    largest: str
    scalars: dict[str, object]
    tensors: dict[str, TensorDocument | None]
    layouts: dict[str, dict[str, object]]


Scalars = Mapping[str, Any]
"""The arguments of an op that are no tensors, by name, as its kernels take them."""


class Extents(Protocol):
    """What canonical rows rest on: how many there are, and what tells where they lie. Every case has it."""

    @property
    def rows(self) -> int:
        """Number of canonical rows."""

    @property
    def columns(self) -> int:
        """Number of elements of a row."""

    @property
    def scalars(self) -> Scalars:
        """The op's arguments that are no tensors."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of the input."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Values, layouts and scalars for every argument of an op.

    `tensors` maps argument names (and "grad_output") to contiguous logical values, None where an
    optional argument is absent; `layouts` says how each lies in memory (contiguous if missing).
    `scalars` holds eps and the op's other arguments. `rows` and `columns` are the extents that
    statistics are taken over, `kappa` the largest |mean| / std of a row, `largest` the largest
    |input|, all as the op sees them. `hazard`, `seed` of the random choices, and `origin` say where the case
    comes from.
    """

    op: str
    dtype: str
    tensors: Mapping[str, torch.Tensor | None]
    scalars: Scalars
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    rows: int
    columns: int
    kappa: float = 0.0
    largest: float = 0.0
    hazard: str = "ordinary"
    seed: int = 0
    origin: str = ""

    @property
    def eps(self) -> float:
        """The norm's epsilon, a Python double."""
        return float(self.scalars.get("eps", 0.0))

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of the input."""
        return tuple(self.given["input"].shape)

    @property
    def input_rank(self) -> int:
        """Number of dimensions of the input."""
        return self.given["input"].dim()

    @property
    def given(self) -> dict[str, torch.Tensor]:
        """The tensors that are present."""
        return {name: t for name, t in self.tensors.items() if t is not None}

    @property
    def layout_names(self) -> set[str]:
        """Names of the layouts that occur."""
        return {kind for layout in self.layouts.values() for kind in layout.kinds}

    @cached_property
    def elements(self) -> int:
        """Number of elements of the input."""
        return self.given["input"].numel()

    @property
    def sizes_by_rows(self) -> frozenset[int]:
        """Numbers of elements of results that have the same number for each row."""
        return frozenset(
            {self.elements, self.rows, self.rows * int(self.scalars.get(FEATURES, self.columns))}
        )

    @property
    def finite(self) -> bool:
        """Whether every tensor is finite."""
        return all(bool(torch.isfinite(t).all()) for t in self.given.values())

    def dtype_of(self, name: str) -> str | None:
        """Return the dtype of one tensor, None if it is absent."""
        tensor = self.tensors.get(name)
        return None if tensor is None else str(tensor.dtype).removeprefix("torch.")

    @property
    def mixes_dtypes(self) -> bool:
        """Whether weight and bias are given in two dtypes."""
        held = {self.dtype_of("weight"), self.dtype_of("bias")} - {None}
        return len(held) > 1

    def layout(self, name: str) -> str:
        """Return the words for the layout of one tensor."""
        return "+".join(self.layouts[name].kinds) if name in self.layouts else "contiguous"

    def with_layouts(self, layouts: Mapping[str, Layout]) -> Case:
        """Return the same values in other layouts."""
        return replace(self, layouts=dict(layouts))


Keep = Callable[[str, bytes], TensorDocument]
"""Takes a tensor's name and bytes; returns what stands for the bytes in a document."""


def as_base64(_name: str, data: bytes) -> TensorDocument:
    """Keep bytes as text, in any document."""
    return {"base64": base64.b64encode(data).decode("ascii")}


def as_bytes(_name: str, data: bytes) -> TensorDocument:
    """Keep bytes as they are, in a document that is no text."""
    return {"bytes": data}


def to_document(case: Case, *, keep: Keep = as_base64) -> CaseDocument:
    """Return the case as plain data; with the `keep` that is given anyway, as JSON."""
    return {
        "schema": SCHEMA,
        "op": case.op,
        "dtype": case.dtype,
        "hazard": case.hazard,
        "seed": case.seed,
        "origin": case.origin,
        "rows": case.rows,
        "columns": case.columns,
        "kappa": _number(case.kappa),
        "largest": _number(case.largest),
        "scalars": {name: _scalar(value) for name, value in case.scalars.items()},
        "tensors": {
            name: None if t is None else tensor_document(name, t, keep) for name, t in case.tensors.items()
        },
        "layouts": {name: layout.to_json() for name, layout in case.layouts.items()},
    }


def from_document(document: Mapping[str, Any] | CaseDocument, *, document_path: Path | None = None) -> Case:
    """Return the case that `to_document` wrote.

    Raises:
        CaseError: a field is missing or makes no sense, or the schema is of another version.

    """
    where = str(document_path or "case")
    if document.get("schema") != SCHEMA:
        raise CaseError(f"{where}: case schema {document.get('schema')!r}; this version reads {SCHEMA}")
    try:
        found = Case(
            op=document["op"],
            dtype=str(document["dtype"]),
            hazard=document.get("hazard", "ordinary"),
            seed=int(document.get("seed", 0)),
            origin=document.get("origin", ""),
            rows=int(document["rows"]),
            columns=int(document["columns"]),
            kappa=_from_number(document.get("kappa", 0.0)),
            largest=_from_number(document.get("largest", 0.0)),
            scalars={name: _from_scalar(value) for name, value in document["scalars"].items()},
            tensors={
                name: None if t is None else tensor_of(t, document_path)
                for name, t in document["tensors"].items()
            },
            layouts={name: Layout.from_json(value) for name, value in document.get("layouts", {}).items()},
        )
    except (
        LookupError,
        TypeError,
        ValueError,
        ArithmeticError,
        RuntimeError,
        OSError,
        AttributeError,
    ) as error:
        raise CaseError(f"{where}: not a readable case: {said(error)}") from error
    if found.dtype not in FORMATS or found.tensors.get("input") is None:
        raise CaseError(
            f"{where}: not a case: dtype {found.dtype!r}, tensors {', '.join(found.given) or 'none'}"
        )
    return found


def save(case: Case, path: Path, **more: object) -> None:
    """Write the case with further facts (subject, backend, seed, versions) to one JSON file.

    Raises:
        OSError: it cannot be written; nothing of it is left then.

    """
    path.parent.mkdir(parents=True, exist_ok=True)
    files: dict[Path, bytes] = {}

    def keep(name: str, data: bytes) -> TensorDocument:
        if len(data) <= INLINE_BYTES:
            return as_base64(name, data)
        file = path.with_name(f"{path.stem}.{name}.bin")
        files[file] = data
        return {"file": file.name}

    document = {**to_document(case, keep=keep), **more}
    write_together({path: (json.dumps(document, indent=1) + "\n").encode(), **files})


def load(path: Path) -> tuple[Case, Document]:
    """Read a case file; also return the whole document with its further facts.

    Raises:
        CaseError: the file does not exist, is not JSON, or is not a case.

    """
    document = read_document(path)
    return from_document(document, document_path=path), document


def read_document(path: Path) -> Document:
    """Return the JSON object in a file.

    Raises:
        CaseError: the file does not exist, is not JSON, or holds something else.

    """
    try:
        document = json.loads(read_bytes(path, CASE_BYTES).decode("utf-8"))
    except OSError as error:
        raise CaseError(f"{path}: cannot be read: {reason(error)}") from error
    except RecursionError:
        raise CaseError(f"{path}: cannot be read: brackets are nested too deep for any case") from None
    except (UnicodeDecodeError, ValueError) as error:
        raise CaseError(f"{path}: cannot be read as a case, which is JSON: {error}") from error
    if not isinstance(document, dict):
        raise CaseError(f"{path}: not a case: the top level is no JSON object")
    return document


def raw_bytes(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a tensor of any dtype and layout, in the order of its elements."""
    # contiguous() leaves a single element its stride, and a view as bytes asks for a stride of 1.
    held = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    return held.view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def _from_bytes(data: bytes, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the tensor that `raw_bytes` took apart."""
    kind = getattr(torch, dtype)
    if math.prod(shape) == 0:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(bytearray(data), dtype=kind).reshape(shape)


def tensor_document(name: str, tensor: torch.Tensor, keep: Keep) -> TensorDocument:
    """Return dtype, shape and bytes of a tensor of any layout on any device."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {"dtype": dtype, "shape": list(tensor.shape), **keep(name, raw_bytes(tensor.reshape(-1)))}


def tensor_of(document: TensorDocument, document_path: Path | None = None) -> torch.Tensor:
    """Return the tensor that was written, contiguous and on the CPU.

    document_path: files of tensors lie in the folder of this document.

    Raises:
        LookupError, TypeError, ValueError, OSError: the document is no tensor's.

    """
    if "file" in document:
        if document_path is None:
            raise ValueError("a tensor lies in a file beside a case that has no path")
        data = _file_bytes(document_path.with_name(document["file"]), document["dtype"], document["shape"])
    elif "bytes" in document:
        data = document["bytes"]
    else:
        data = base64.b64decode(document["base64"], validate=True)
    return _from_bytes(data, document["dtype"], tuple(document["shape"]))


def _file_bytes(path: Path, dtype: str, shape: Sequence[int]) -> bytes:
    """Return the bytes of a tensor's file; its size has to be what the shape says before it is read."""
    wanted = math.prod(map(int, shape)) * int(getattr(torch, dtype).itemsize)
    if not 0 <= wanted <= TENSOR_BYTES:
        raise ValueError(f"{path.name}: a tensor of shape {tuple(shape)} and {dtype} has {wanted} bytes")
    data = read_bytes(path, wanted)
    if len(data) != wanted:
        raise ValueError(f"{path.name} has {len(data)} bytes; shape {tuple(shape)} and {dtype} need {wanted}")
    return data


def _number(value: float) -> str:
    return float(value).hex()


def _from_number(value: str | float) -> float:
    return float.fromhex(value) if isinstance(value, str) else float(value)


def _scalar(value: object) -> object:
    if isinstance(value, float):
        return {"hex": value.hex()}
    if isinstance(value, tuple):
        return {"tuple": list(value)}
    return value


def _from_scalar(value: object) -> object:
    if isinstance(value, dict) and "hex" in value:
        return float.fromhex(value["hex"])
    if isinstance(value, dict) and "tuple" in value:
        return tuple(value["tuple"])
    return value
