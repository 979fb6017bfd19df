"""Compilation of CUDA C++ by NVRTC, with neither a GPU nor a driver, and the cache of what was compiled."""

from __future__ import annotations

import base64
import ctypes
import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from verifier.records.files import cache_folder, keep
from verifier.subjects.compiling import marked

INSTALL: Final = "pip install 'norm-verifier[cuda]'"
HEADERS: Final = ("nvidia-cuda-runtime", "nvidia-cuda-crt", "nvidia-cuda-cccl")
OPTIONS: Final = ("--std=c++17", "-lineinfo")  # -lineinfo: every report names a line of the .cu


class CompilationError(RuntimeError):
    """NVRTC refused a source; the message is its log."""


class MissingCompilerError(RuntimeError):
    """No NVRTC library was found; the message says what to install."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One kernel parameter as PTX declares it: `kind` (u, s, b or f), width in bits, whether it points."""

    kind: str
    bits: int
    pointer: bool


@dataclass(frozen=True, kw_only=True)
class CompiledKernel:
    """One specialisation: the same compilation as PTX text and as machine code, if that was asked for."""

    entry: str
    ptx: str
    cubin: bytes
    parameters: tuple[Parameter, ...]


def version() -> tuple[int, int]:
    """Return NVRTC's version as (major, minor).

    Raises:
        MissingCompilerError: NVRTC is not installed; the message says how to get it.

    """
    major, minor = ctypes.c_int(), ctypes.c_int()
    _nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+\d+\s+)?\.([a-z]+)(\d+)((?:\s+\.\w+(?:\s+\d+)?)*)\s+[\w$]+(\[\d+\])?"
)


def _signature(ptx: str, entry: str) -> tuple[Parameter, ...]:
    """Read the parameters of one entry from its PTX."""
    found = re.search(rf"\.entry\s+{re.escape(entry)}\s*\((.*?)\)", ptx, re.DOTALL)
    if found is None:
        return ()
    parameters = []
    for kind, bits, attributes, array in _PARAMETER.findall(found[1]):
        if array:
            raise TypeError(f"{entry} takes a structure by value; pass its members one by one")
        parameters.append(Parameter(kind=kind, bits=int(bits), pointer=".ptr" in attributes))
    return tuple(parameters)


@cache
def parameter_names(path: Path, name: str) -> list[str]:
    """Read parameter names off the C++ text, through one macro at most; empty if it is not found."""
    text = path.read_text(encoding="utf-8")
    text = "\n".join((text, *local_headers(path, text))).replace("\\\n", " ")
    found = re.search(rf"__global__[^;{{]*?\b{re.escape(name)}\s*\(([^;{{]*)\)\s*\{{", text)
    listed = found[1] if found else ""
    if macro := re.fullmatch(r"\s*(\w+)\(.*\)\s*", listed, re.DOTALL):
        body = re.search(rf"#define {macro[1]}\([^)]*\)(.*)", text)
        listed = body[1] if body else ""
    return [words[-1] for part in listed.split(",") if (words := re.findall(r"\w+", part))]


# Compilation


_OVER_THE_LIMITS: Final = 48 << 10
"""Bytes of shared memory that ptxas gives to arrays of a fixed size; of constant memory it gives more."""
_ARRAY: Final = re.compile(r"\.(?:shared|const)\b[^;=\[\]]*\[(\d+)\]")


def compile_cached(
    path: Path, expression: str, architecture: int, *, assembled: bool = True
) -> CompiledKernel:
    """Compile one kernel of a `.cu` file, named as C++ names it, or take it from the cache folder.

    architecture: compute capability times ten. assembled: with machine code, which takes half of the time
    and which the PTX machine does not run; without it, the code is assembled only where the assembler might
    refuse it (inline assembly, functions that are not defined, large arrays in shared and constant memory),
    and the cubin is empty elsewhere. The PTX is the same.

    Raises:
        FileNotFoundError: there is no such file.
        CompilationError: NVRTC refused the source.
        MissingCompilerError: NVRTC is not installed.

    """
    text = path.read_text(encoding="utf-8")
    parts = (text, *local_headers(path, text))
    if not assembled and not any("asm" in part for part in parts):
        found = _compiled(path, parts, expression, f"compute_{architecture}")
        if ".extern .func" not in found.ptx and sum(map(int, _ARRAY.findall(found.ptx))) <= _OVER_THE_LIMITS:
            return found
    return _compiled(path, parts, expression, f"sm_{architecture}")


def _compiled(path: Path, texts: tuple[str, ...], expression: str, target: str) -> CompiledKernel:
    """Compile to PTX, for a real architecture (sm_) to machine code too, or take it from the cache."""
    options = (f"--gpu-architecture={target}", *OPTIONS)
    parts = (str(version()), *options, expression, str(path), *texts)
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    cached = cache_folder("cuda") / f"{key}.json"
    record = _read_record(cached)
    if record is None:
        with marked():
            record = _compile(path, texts[0], expression, options)
        keep(cached, json.dumps(record))  # read-only folders cost time, not correctness
    ptx, entry = record["ptx"], record["entry"]
    cubin = base64.b64decode(record["cubin"])
    return CompiledKernel(entry=entry, ptx=ptx, cubin=cubin, parameters=_signature(ptx, entry))


def local_headers(path: Path, text: str, seen: set[Path] | None = None) -> Iterator[str]:
    """Yield the text of every header included with quotes, so that an edited one is compiled again."""
    seen = set() if seen is None else seen
    for name in re.findall(r'^\s*#\s*include\s*"([^"]+)"', text, re.MULTILINE):
        header = (path.parent / name).resolve()
        if header.is_file() and header not in seen:
            seen.add(header)
            content = header.read_text(encoding="utf-8")
            yield f"{header}\0{content}"
            yield from local_headers(header, content, seen)


def _read_record(file: Path) -> dict[str, str] | None:
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # absent, or cut short by a full disk: compile again
        return None
    return record if isinstance(record, dict) and record.keys() >= {"ptx", "entry", "cubin"} else None


def _compile(path: Path, text: str, expression: str, options: tuple[str, ...]) -> dict[str, str]:
    nvrtc = _nvrtc()
    folders = [path.parent, *_header_folders()]
    flags = [f.encode() for f in (*options, *(f"-I{folder}" for folder in folders))]
    program = ctypes.c_void_p()
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), str(path).encode(), 0, None, None))
    try:
        _check(nvrtc.nvrtcAddNameExpression(program, expression.encode()))
        status = nvrtc.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*flags))
        if status:
            raise CompilationError(_explain(path, expression, _product(nvrtc, program, "ProgramLog")))
        entry = ctypes.c_char_p()
        _check(nvrtc.nvrtcGetLoweredName(program, expression.encode(), ctypes.byref(entry)))
        real = options[0].startswith("--gpu-architecture=sm_")
        cubin = _product(nvrtc, program, "CUBIN") if real else b""
        return {
            "entry": (entry.value or b"").decode(),
            "ptx": _product(nvrtc, program, "PTX").rstrip(b"\0").decode(),
            "cubin": base64.b64encode(cubin).decode(),
        }
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _product(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


def _check(status: int) -> None:
    if status:
        explain = _nvrtc().nvrtcGetErrorString
        explain.restype = ctypes.c_char_p
        raise CompilationError(f"NVRTC answers {explain(status).decode()}")


def _explain(path: Path, expression: str, log: bytes) -> str:
    text = log.rstrip(b"\0").decode(errors="replace")
    hint = ""
    if "cannot open source file" in text or "could not open source file" in text:
        hint = f"\nCUDA's headers come in the packages {', '.join(HEADERS)}: {INSTALL}"
    first = next((f": {line.strip()}" for line in text.splitlines() if "error" in line), "")
    return f"{path.name}: {expression} does not compile{first}\n{text}{hint}"


# Finding NVRTC and CUDA's headers: in wheels first, then in an installed toolkit


@cache
def _roots() -> tuple[Path, ...]:
    """Folders that hold CUDA's libraries and headers, in the order in which they are tried."""
    spec = importlib.util.find_spec("nvidia")
    wheels = [Path(p) for p in (spec.submodule_search_locations if spec else None) or ()]
    inside = [
        folder for wheel in wheels for folder in sorted(wheel.glob("*"), reverse=True) if folder.is_dir()
    ]
    toolkits = [Path(os.environ[v]) for v in ("CUDA_HOME", "CUDA_PATH") if v in os.environ]
    return (*inside, *toolkits, Path("/usr/local/cuda"))


def _header_folders() -> list[Path]:
    candidates = [folder for root in _roots() for folder in (root / "include", root / "include" / "cccl")]
    return [folder for folder in candidates if folder.is_dir()]


@cache
def _nvrtc() -> ctypes.CDLL:
    for root in _roots():
        for library in sorted((*root.glob("lib*/libnvrtc.so.*"), *root.glob("bin/nvrtc64_*.dll"))):
            if ".alt." in library.name:
                continue
            # First, since NVRTC opens its built-in functions by bare name, and a wheel is not on the path.
            for builtins in library.parent.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(builtins), mode=getattr(ctypes, "RTLD_GLOBAL", 0))
            return ctypes.CDLL(str(library))
    raise MissingCompilerError(
        f"CUDA C++ kernels need NVRTC, which was not found (no GPU or driver is needed for it): {INSTALL}"
        f" (packages nvidia-cuda-nvrtc, {', '.join(HEADERS)})"
    )
