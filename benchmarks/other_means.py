"""Confirm witnesses of known defects of libraries without oracle and bounds: by torch, mpmath and sources."""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import torch

from verifier.audit.report.json_parts import Document, mapping
from verifier.ops.specification.axes import LINEAR_WEIGHT
from verifier.records import witness
from verifier.records.case import Case


class UncheckedError(Exception):
    """A finding that no function here confirms."""


def _layer_norm(numbers: Sequence[float], eps: float, lanes: int) -> list[mpmath.mpf]:
    """Return (x - mean) / sqrt(var + eps) where so many lanes beyond the row count in the variance."""
    row = [mpmath.mpf(x) for x in numbers]
    mean = sum(row) / len(row)
    squares = sum((x - mean) ** 2 for x in row) + lanes * mean**2
    return [(x - mean) / mpmath.sqrt(squares / len(row) + eps) for x in row]


def _lanes_beyond_the_row(case: Case, document: Document) -> str:
    (place, seen) = _element(document)
    x, w, b = (case.given[name].double() for name in ("input", "weight", "bias"))
    rows = x.reshape(-1, x.shape[-1])
    row, column = divmod(place, rows.shape[1])
    eps = float(torch.tensor(case.eps, dtype=torch.float32))
    block = 1 << (rows.shape[1] - 1).bit_length()
    right, wrong = (
        _layer_norm(rows[row].tolist(), eps, lanes)[column] * w[column].item() + b[column].item()
        for lanes in (0, block - rows.shape[1])
    )
    _demand(abs(seen - wrong) * 10 < abs(seen - right), f"{seen} is near {right}, not near {wrong}")
    return (
        f"mpmath gives {float(right):.6g}, and {float(wrong):.6g} if {block - rows.shape[1]} lanes of zeros "
        f"count in the variance; seen is {seen:.6g}"
    )


def _sums_through_bfloat16(case: Case, document: Document) -> str:
    place, seen = _element(document)
    rows = case.given["grad_output"]
    _demand(rows.numel() == rows.shape[-1] or rows.shape[0] == 1, "several parts are added")
    exact = rows.double().reshape(rows.shape[0], rows.shape[1], -1).sum((0, 2))[place].item()
    rounded = torch.tensor(exact).to(torch.bfloat16).item()
    _demand(rounded == seen != exact, f"{seen} is not {exact} rounded to bfloat16, {rounded}")
    return f"in torch the sum in float64 is {exact}, and rounded to bfloat16 {rounded}, which is seen"


def _sums_through_the_input(case: Case, document: Document) -> str:
    _, seen = _element(document)
    x, g = (case.given[name].reshape(-1, case.columns).tolist() for name in ("input", "grad_output"))
    weight, alpha = case.given["weight"].reshape(-1).tolist(), mpmath.mpf(case.given["alpha"].item())
    exact = mpmath.mpf(0)
    for row, incoming in zip(x, g, strict=True):
        for one, d, w in zip(row, incoming, weight, strict=True):
            exact += (1 - mpmath.tanh(alpha * one) ** 2) * mpmath.mpf(d) * w * one
    held = getattr(torch, case.dtype)
    fits = torch.tensor(seen, dtype=torch.float64).to(held).item() == seen
    off = abs(seen / exact - 1)
    _demand(fits and 1e-5 < off < torch.finfo(held).eps, f"{seen} is not {exact} rounded to {case.dtype}")
    return f"mpmath gives {float(exact):.9g}, and {seen:.9g}, which is seen in float32, is of {case.dtype}"


def _residual_through_the_input(case: Case, document: Document) -> str:
    place, seen = _element(document)
    _demand(case.rows == 1, "there are several rows")
    x, residual, g, further = (
        case.given[name].float().reshape(-1)
        for name in ("input", "residual", "grad_output", "grad_new_residual")
    )
    weight = case.given["weight"].double().reshape(-1) if "weight" in case.given else torch.ones(case.columns)
    row = [mpmath.mpf(one) for one in (x + residual).tolist()]
    mean = sum(row) / len(row) if "layer_norm" in case.op else mpmath.mpf(0)
    rstd = 1 / mpmath.sqrt(sum((one - mean) ** 2 for one in row) / len(row) + case.eps)
    hat = [(one - mean) * rstd for one in row]
    weighted = [mpmath.mpf(d) * w for d, w in zip(g.tolist(), weight.tolist(), strict=True)]
    along = sum(d * h for d, h in zip(weighted, hat, strict=True)) / len(row)
    shift = sum(weighted) / len(row) if "layer_norm" in case.op else mpmath.mpf(0)
    exact = (weighted[place] - shift - hat[place] * along) * rstd + further[place].item()
    held = getattr(torch, case.dtype)
    nearest = torch.tensor(seen, dtype=torch.float64).to(held).item()
    fits = abs(nearest - seen) < 1e-8 * abs(seen)  # nine digits of it are kept
    off = abs(seen / exact - 1)
    _demand(fits and 1e-5 < off < torch.finfo(held).eps, f"{seen} is not {exact} rounded to {case.dtype}")
    return f"mpmath gives {float(exact):.9g}, and {seen:.9g}, which is seen in float32, is of {case.dtype}"


def _one_pass_variance(case: Case) -> float:
    """Return the least mean(x**2) - mean(x)**2 of a row, of sums by halves or neighbours in its dtype.

    NaN counts as the least. Products may be fused into sums, which torch does in float64 here.
    """
    x = case.given["input"]
    rows = x.reshape(x.shape[0] * int(case.scalars["num_groups"]), -1)
    wide = rows.double() - rows.double().mean(-1, keepdim=True)
    exact = wide / (wide.square().mean(-1, keepdim=True) + case.eps).sqrt()
    _demand(bool(exact.isfinite().all()), "the norm in float64 is not finite")
    found = []
    for add in (_by_halves, _by_neighbours):
        mean = add(rows).float() / rows.shape[1]
        for squares in (add(rows * rows), rows.double().square().sum(-1).to(rows.dtype)):
            mean_square = squares.float() / rows.shape[1]
            found += [mean_square - mean * mean, mean_square.double() - mean.double() ** 2]
    every = torch.cat([one.double() for one in found])
    return float("nan") if bool(every.isnan().any()) else every.min().item()


def _by_halves(rows: torch.Tensor) -> torch.Tensor:
    block = 1 << (rows.shape[1] - 1).bit_length()
    rows = torch.nn.functional.pad(rows, (0, block - rows.shape[1]))
    while rows.shape[1] > 1:
        half = rows.shape[1] // 2
        rows = rows[:, :half] + rows[:, half:]
    return rows[:, 0]


def _by_neighbours(rows: torch.Tensor) -> torch.Tensor:
    block = 1 << (rows.shape[1] - 1).bit_length()
    rows = torch.nn.functional.pad(rows, (0, block - rows.shape[1]))
    while rows.shape[1] > 1:
        rows = rows[:, 0::2] + rows[:, 1::2]
    return rows[:, 0]


def _sums_overflow(case: Case, _document: Document) -> str:
    variance = _one_pass_variance(case)
    _demand(not math.isfinite(variance), f"no sum overflows: the variance is {variance}")
    return f"added in torch in {case.dtype} the variance is {variance}, and the norm in float64 is finite"


def _negative_variance(case: Case, _document: Document) -> str:
    variance = _one_pass_variance(case)
    _demand(variance + case.eps < 0, f"the variance is {variance}")
    return f"added in torch in {case.dtype} the variance is {variance:.3g}, and the norm in float64 is finite"


def _eps_lost(case: Case, _document: Document) -> str:
    x, eps = case.given["input"], torch.tensor(case.eps)
    half = (x.square().sum(-1, keepdim=True) / x.shape[-1] + eps.to(x.dtype)).rsqrt() * x
    exact = torch.nn.functional.rms_norm(x.double(), x.shape[-1:], eps=case.eps)
    _demand(bool(half.isnan().any()) and bool(exact.isfinite().all()), "eps is not lost")
    return f"torch's eps in float16 is {eps.to(x.dtype).item()}, 0 / 0 NaN, and its norm in float64 finite"


def _square_of_rstd_overflows(case: Case, _document: Document) -> str:
    x = case.given["input"].double().requires_grad_()
    torch.nn.functional.rms_norm(x, x.shape[-1:], eps=case.eps).sum().backward()
    rstd = (x.detach().square().mean(-1) + case.eps).rsqrt().half()
    factor = (1 / x.shape[-1]) * rstd * rstd
    assert x.grad is not None
    _demand(bool(factor.isinf().any()) and bool(x.grad.isfinite().all()), "no square overflows")
    return "torch's rstd * rstd / N in float16 is infinite, and its gradient in float64 finite"


def _powers_overflow(case: Case, _document: Document) -> str:
    x = case.given["input"]
    powers = [x.double() ** k for k in (3, 2, 1)]
    norms = [p / (p.square().mean(-1, keepdim=True) + case.eps).sqrt() for p in powers]
    finite = all(bool(n.isfinite().all()) for n in norms)
    cubes = x * x * x
    _demand(bool((cubes * cubes).isinf().any()) and finite, "no power overflows")
    return f"torch's (x * x * x) ** 2 in {case.dtype} is infinite, and the three norms in float64 are finite"


def _no_rows(case: Case, document: Document) -> str:
    _demand(case.rows == 0, "the case has rows")
    _demand("ZeroDivisionError" in str(document["message"]), "it says something else")
    empty = torch.empty(0, case.columns, dtype=torch.float64, requires_grad=True)
    torch.nn.functional.layer_norm(empty, (case.columns,)).sum().backward()
    _demand(empty.grad is not None and tuple(empty.grad.shape) == (0, case.columns), "torch refuses it")
    return "torch's layer norm differentiates an empty batch; here its 0 rows are divided among 0 programs"


def _no_columns(case: Case, document: Document) -> str:
    _demand(case.columns == 0 and "CompilationError" in str(document["message"]), "it says something else")
    x = case.given["input"].double()
    same = torch.nn.functional.group_norm(x, int(case.scalars["num_groups"])).shape == x.shape
    _demand(same, "torch refuses it")
    return "torch's group norm gives an empty result; here Triton refuses a block of 0 lanes"


OF_MAMBA = ("fla", ("modules/norm/layernorm_gated.py",))
SOURCES = {
    "fla_layernorm_fn": OF_MAMBA,
    "fla_rmsnorm_fn": OF_MAMBA,
    "fla": ("fla", ("modules/norm/layernorm.py", "modules/norm/fused_norm_gate.py")),
    "flash_attention": ("flash_attn", ("ops/triton/layer_norm.py",)),
}
"""By how names of subjects begin: the package, and its modules that load weights."""


def _undefined_lanes(case: Case, document: Document) -> str:
    subject = str(mapping(document["subject"])["name"])
    package, modules = next(
        found for begin, found in SOURCES.items() if f"{subject}_".startswith(f"{begin}_")
    )
    text = "".join(_source(package, module) for module in modules)
    backward = re.findall(r"^def \w*bwd_kernel\w*\(.*?(?=^\S*def |\Z)", text, re.DOTALL | re.MULTILINE)
    loads = re.findall(r"tl\.load\([wW] \+ [^()]*, mask=(?:mask|m_d)\)", "".join(backward))
    _demand(len(loads) > 0, "every load of weight has other=")
    slopes = case.given["grad_output"].double()
    if LINEAR_WEIGHT in case.given:  # the norm's own slopes are those of its product
        slopes = slopes @ case.given[LINEAR_WEIGHT].double()
    slopes = torch.nn.functional.pad(slopes.reshape(-1, case.columns)[:1], (0, 1))
    rows = torch.nn.functional.pad(case.given["input"].double().reshape(-1, case.columns)[:1], (0, 1))
    weight = torch.nn.functional.pad(torch.ones(case.columns, dtype=torch.float64), (0, 1), value=math.inf)
    _demand(bool((rows * (slopes * weight)).sum().isnan()), "a lane of infinity changes nothing")
    return f"the source has {loads[0]}; in torch one such lane of infinity makes the sum over its row NaN"


def _undefined_lanes_of_gate(case: Case, _document: Document) -> str:
    package, (module,) = OF_MAMBA
    text = _source(package, module)
    forward = re.search(r"^def layer_norm_fwd_kernel_group\(.*?^def ", text, re.DOTALL | re.MULTILINE)
    _demand(forward is not None, "the source has no such kernel")
    assert forward is not None
    load = "tl.load(g + o_d, mask=o_d < D)"
    before = forward[0].partition("b_mean = tl.sum(b_x, axis=0) / D")[0]
    unmasked = load in before and "tl.where" not in before
    _demand(unmasked and "b_x *= b_g * tl.sigmoid(b_g)" in before, "lanes of the gate are masked")
    rows, gates = (case.given[name].double().reshape(-1, case.columns)[:1] for name in ("input", "gate"))
    rows = torch.nn.functional.pad(rows, (0, 1))
    gates = torch.nn.functional.pad(gates, (0, 1), value=math.inf)
    _demand(
        bool((rows * torch.nn.functional.silu(gates)).sum().isnan()), "a lane of infinity changes nothing"
    )
    return f"the source has {load}; in torch one such lane of infinity makes the sum over its row NaN"


def _undefined_rows(case: Case, _document: Document) -> str:
    spec = importlib.util.find_spec("liger_kernel")
    _demand(spec is not None and bool(spec.submodule_search_locations), "liger_kernel is not installed")
    assert spec is not None
    text = (Path(next(iter(spec.submodule_search_locations or ()))) / "ops/rms_norm.py").read_text("utf-8")
    loads = re.findall(r"tl\.load\(RSTD_ptr \+ row_idx [^()]*, row_mask\)", text)
    _demand(len(loads) > 0, "every load of rstd has other=")
    _demand(case.rows % 16 != 0, "every block has 16 rows")
    rows = torch.nn.functional.pad(case.given["input"].double().reshape(case.rows, -1)[-1:], (0, 0, 0, 1))
    slopes = torch.nn.functional.pad(
        case.given["grad_output"].double().reshape(case.rows, -1)[-1:], (0, 0, 0, 1)
    )
    rstd = torch.tensor([[1.0], [math.inf]], dtype=torch.float64)
    _demand(bool((slopes * (rows * rstd)).sum(0).isnan().all()), "a lane of infinity changes nothing")
    return f"the source has {loads[0]}; in torch one such lane of infinity makes the sum over rows NaN"


def _offset_in_32_bits(case: Case, document: Document) -> str:
    said = str(document["message"])
    found = [
        re.search(pattern, said) for pattern in (r": (\d+) bytes at byte offset (-\d+)", r"block \((\d+),")
    ]
    access, block = found
    _demand(access is not None and block is not None, "it says something else")
    assert access is not None
    assert block is not None
    size, offset, row = int(access[1]), int(access[2]), int(block[1])
    padding = [layout.row_padding for layout in case.layouts.values()]
    for stride in (case.columns + extra for extra in {0, *padding}):
        wrapped = torch.tensor(row, dtype=torch.int32) * torch.tensor(stride, dtype=torch.int32)
        if row * stride >= 2**31 and 0 <= offset - wrapped.item() * size < case.columns * size:
            return (
                f"torch's product of {row} and {stride} in int32 is {wrapped.item()}, {-offset} bytes before "
                f"the start, where the kernel reads; the exact product is {row * stride}"
            )
    raise UncheckedError(f"{row} times no stride is {offset} bytes in 32 bits")


STEPS = {
    "fla_softmax": ("ops/utils/softmax.py", "+ i_n * D + o_d", ("contiguous", "stride")),
    "fla_qk_rmsnorm": ("ops/cyfa/qk_norm.py", "q_weight + o_d", ("weight.contiguous", "stride")),
}
"""By how names of subjects begin: the module, how its kernels step, and what would know of strides."""


def _strides_not_read(case: Case, document: Document) -> str:
    subject = str(mapping(document["subject"])["name"])
    module, step, asking = next(found for begin, found in STEPS.items() if subject.startswith(begin))
    text = _source("fla", module)
    _demand(step in text, "the kernels step otherwise")
    _demand(not any(word in text for word in asking), "strides are read")
    ((name, layout),) = case.layouts.items()
    shape = case.given[name].shape
    strides = layout.strides(shape)
    memory = torch.full((1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)),), -1)
    elements = torch.arange(shape.numel()).reshape(shape)
    lying = memory.as_strided(shape, strides).copy_(elements).view(-1, shape[-1])
    taken = memory[: shape.numel()].reshape(lying.shape)
    _demand(not torch.equal(taken, lying), "row by row lie the same elements")
    return (
        f"the source has {step} and asks for no stride; with torch's strides {strides} the places that it "
        f"reads hold the elements {taken.tolist()} of {name}, -1 being none"
    )


def _late_copies(case: Case, _document: Document) -> str:
    text = _source("unsloth", "kernels/fused_add_rms_layernorm.py")
    between = re.search(r"r = tl\.load\(R \+ cols(.*?)variance = tl\.sum\(h \* h", text, re.DOTALL)
    stores = re.search(r"tl\.store\(R \+ cols, [^\n]*", between[1]) if between else None
    _demand(between is not None and stores is not None, "the residual is not overwritten before the sum")
    assert between is not None
    assert stores is not None
    _demand("barrier" not in between[1], "a barrier stands behind the loads")
    x, residual = (case.given[name].reshape(-1, case.columns)[:1] for name in ("input", "residual"))
    added = x + residual
    late = added.clone()
    late[:, 32:] = x[:, 32:] + added[:, 32:]  # of the second warp
    right, wrong = (one.double().square().sum().item() for one in (added, late))
    _demand(right != wrong, "a late copy changes nothing")
    return (
        f"the source has {stores[0]} between the loads and the sum, and no barrier; in torch the squares "
        f"sum to {right:.6g}, and to {wrong:.6g} if the copy of the second warp is late"
    )


def _odd_columns_in_half(case: Case, _document: Document) -> str:
    text = _source("quack", "rmsnorm.py")
    line = "vecsize = math.gcd(self.N, 128 // largest_dtype_width)"
    _demand(line in text and "self.dtype.width" in text, "the source does not choose its vectors so")
    widths = [torch.finfo(t.dtype).bits for t in case.given.values() if t is not None]
    bits = math.gcd(case.columns, 128 // max(widths)) * torch.finfo(getattr(torch, case.dtype)).bits
    _demand(bits not in {32, 64, 128}, f"vectors of {bits} bits can be copied")
    return (
        f"the source has {line}: {bits} bits at once of {case.columns} columns, and cp.async of PTX copies "
        "4, 8 or 16 bytes"
    )


def _part_of_a_vector(case: Case, _document: Document) -> str:
    lines = {
        "softmax.py": "vecsize=128 // largest_dtype_width",
        "reduction_base.py": "assert self.N % vecsize == 0",
    }
    both = all(line in _source("quack", file) for file, line in lines.items())
    _demand(both, "the source does not choose its vectors so")
    elements = 128 // torch.finfo(getattr(torch, case.dtype)).bits
    _demand(case.columns % elements != 0, f"{case.columns} columns fill vectors of {elements}")
    return (
        f"the source has {' and '.join(lines.values())}, and {case.columns} columns fill no vectors of "
        f"{elements} elements"
    )


def _residual_alone(_case: Case, _document: Document) -> str:
    text = _source("quack", "rmsnorm.py")
    forward = re.search(r"class RMSNormFunction.*?def forward\(\s*(.*?)\):", text, re.DOTALL)
    _demand(forward is not None, "the source has no such forward")
    assert forward is not None
    names = [one.split("=")[0].strip() for one in forward[1].split(",") if one.strip()][1:]
    line = "need_grad = any(ctx.needs_input_grad[:3])"
    _demand(line in text and "store_rstd=need_grad" in text, "the forward keeps rstd otherwise")
    _demand("residual" in names[3:], f"the residual is among {', '.join(names[:3])}")
    return f"the source has {line}, of {', '.join(names[:3])}, and keeps rstd for these alone"


def _powers_of_rounding_errors(case: Case, _document: Document) -> str:
    line = "cute.math.exp2(x * log2_e - (max_x * log2_e), fastmath=True)"
    _demand(line in _source("quack", "reduce.py"), "the source does not take its powers so")
    largest, scale = case.given["input"].max().item(), float(np.float32(math.log2(math.e)))
    rounded = float(np.float32(largest) * np.float32(scale))
    left = Fraction(largest) * Fraction(scale) - Fraction(rounded)
    _demand(
        left >= 128, f"the product is {float(left):g} from its rounded value, and 2 to that power is finite"
    )
    return (
        f"the source has {line}; {largest:.10g} * log2(e) in float32 is {float(left):g} less than the exact "
        "product, which a fused subtraction leaves, and 2 to that power is beyond float32"
    )


CHECKS: dict[str, Callable[[Case, Document], str]] = {
    "lanes-beyond-the-row": _lanes_beyond_the_row,
    "sums-through-bfloat16": _sums_through_bfloat16,
    "sums-through-the-input": _sums_through_the_input,
    "residual-through-input": _residual_through_the_input,
    "sums-overflow": _sums_overflow,
    "powers-overflow": _powers_overflow,
    "eps-lost": _eps_lost,
    "no-columns": _no_columns,
    "undefined-lanes": _undefined_lanes,
    "undefined-lanes-of-gate": _undefined_lanes_of_gate,
    "undefined-rows": _undefined_rows,
    "negative-variance": _negative_variance,
    "square-of-rstd-overflows": _square_of_rstd_overflows,
    "no-rows": _no_rows,
    "offsets-in-32-bits": _offset_in_32_bits,
    "rows-in-32-bits": _offset_in_32_bits,
    "strides-not-read": _strides_not_read,
    "late-copies": _late_copies,
    "odd-columns-in-half": _odd_columns_in_half,
    "part-of-a-vector": _part_of_a_vector,
    "residual-alone": _residual_alone,
    "powers-of-rounding-errors": _powers_of_rounding_errors,
}
"""By the id of a known defect: what confirms it on its witness, and says how."""


def confirmed(path: Path) -> str:
    """Return how a witness, `FILE#NAME`, is confirmed.

    Raises:
        UncheckedError: nothing here knows it, or it is not so.

    """
    name = path.name.partition("#")[2].partition(".")[0]
    if name not in CHECKS:
        raise UncheckedError(f"{path}: nothing here confirms it")
    case, document = witness.load(path)
    return CHECKS[name](case, document)


def _source(package: str, file: str) -> str:
    """Return the text of a file of an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    _demand(bool(folders), f"{package} is not installed")
    return (Path(folders[0]) / file).read_text(encoding="utf-8")


def _demand(so: bool, otherwise: str) -> None:
    if not so:
        raise UncheckedError(otherwise)


def _element(document: Document) -> tuple[int, float]:
    """Return the last index of the element that a witness shows, and its value."""
    shown, _, value = str(document["seen"]).partition(" is ")
    return int(shown[shown.index("[") + 1 : -1].split(",")[-1]), float(value.split(",")[0])
