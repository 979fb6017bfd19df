"""Layer normalization as the Triton tutorial's newer page publishes it, its defects included.

One program a row. Forward: three sweeps in tiles of at most 64 KB, two-pass variance. Backward: dx in one
tile; dw and db are added into one of 64 to 256 buffers under a spin lock, which a second kernel sums.
The older page (layer_norm_published_tutorial_older_triton.py) has these kernels under a wrapper of its own.
It is here to be found wrong: `layer_norm_two_pass_triton` is the same algorithm mended.
"""

import torch
import triton
import triton.language as tl

from verifier import Domain, KnownDefect, Source, Trees, subject, tile, tree

SOURCE = Source(
    title="Layer Normalization (05-layer-norm.py)",
    part="newer page",
    author="Triton's tutorials",
    licence="not stated on the page; its repository is under the MIT licence",
    as_published=True,
)

ROW_BYTES = 65536  # the page's limit on a row


@triton.jit
def forward(x, y, weight, bias, means, rstds, stride, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x += row * stride
    y += row * stride
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        total += tl.load(x + column, mask=column < columns, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / columns
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value = tl.load(x + column, mask=column < columns, other=0.0).to(tl.float32)
        centred = tl.where(column < columns, value - mean, 0.0)
        total += centred * centred
    variance = tl.sum(total, axis=0) / columns
    rstd = 1 / tl.sqrt(variance + eps)
    tl.store(means + row, mean)
    tl.store(rstds + row, rstd)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < columns
        w = tl.load(weight + column, mask=inside)
        b = tl.load(bias + column, mask=inside)
        value = tl.load(x + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(y + column, (value - mean) * rstd * w + b, mask=inside)


@triton.jit
def backward_rows(
    dx, dy, parts_dw, parts_db, x, weight, means, rstds, locks, stride, columns,
    GROUPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    x += row * stride
    dy += row * stride
    dx += row * stride
    group = row % GROUPS
    lock = locks + group
    written = lock + GROUPS
    part_dw = parts_dw + group * columns + column
    part_db = parts_db + group * columns + column
    value = tl.load(x + column, mask=inside, other=0.0).to(tl.float32)
    d = tl.load(dy + column, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(weight + column, mask=inside).to(tl.float32)
    mean = tl.load(means + row)
    rstd = tl.load(rstds + row)
    hat = tl.where(inside, (value - mean) * rstd, 0.0)
    g = tl.where(inside, w * d, 0.0)
    c1 = tl.sum(hat * g, axis=0) / columns
    c2 = tl.sum(g, axis=0) / columns
    tl.store(dx + column, (g - (hat * c1 + c2)) * rstd, mask=inside)
    # The buffers have the input's dtype: a part is rounded to it each time that it is stored.
    add_dw = d * hat
    add_db = d
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    if tl.load(written) == 0:
        tl.atomic_xchg(written, 1)
    else:
        add_dw += tl.load(part_dw, mask=inside)
        add_db += tl.load(part_db, mask=inside)
    tl.store(part_dw, add_dw, mask=inside)
    tl.store(part_db, add_db, mask=inside)
    # No barrier here, nor before `written` is set: stores of other warps may still be under way when the
    # lock opens, and a warp that reads `written` late takes the buffer for one that holds a part.
    tl.atomic_xchg(lock, 0)


@triton.jit
def backward_columns(
    parts_dw, parts_db, dw, db, parts, columns, BLOCK_PARTS: tl.constexpr, BLOCK: tl.constexpr
):
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total_dw = tl.zeros((BLOCK_PARTS, BLOCK), dtype=tl.float32)
    total_db = tl.zeros((BLOCK_PARTS, BLOCK), dtype=tl.float32)
    for start in range(0, parts, BLOCK_PARTS):
        part = start + tl.arange(0, BLOCK_PARTS)
        inside = (part[:, None] < parts) & (column[None, :] < columns)
        offset = part[:, None] * columns + column[None, :]
        total_dw += tl.load(parts_dw + offset, mask=inside, other=0.0)
        total_db += tl.load(parts_db + offset, mask=inside, other=0.0)
    tl.store(dw + column, tl.sum(total_dw, axis=0), mask=column < columns)
    tl.store(db + column, tl.sum(total_db, axis=0), mask=column < columns)


def row_tile(columns, element_size):
    block = min(ROW_BYTES // element_size, triton.next_power_of_2(columns))
    return block, min(max(block // 256, 1), 8)


def groups_of(columns):
    """Buffers that rows share: fewer for wider rows."""
    limits = ((1024, 256), (4096, 128), (8192, 96))
    return next((groups for limit, groups in limits if columns <= limit), 64)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        y = torch.empty_like(x)
        flat = x.reshape(-1, x.shape[-1])
        rows, columns = flat.shape
        mean = torch.empty(rows, dtype=torch.float32, device=x.device)
        rstd = torch.empty(rows, dtype=torch.float32, device=x.device)
        block, warps = row_tile(columns, x.element_size())
        if columns > block:
            raise RuntimeError("This layer norm doesn't support a feature dimension of 64 KB or more.")
        forward[(rows,)](
            flat, y, weight, bias, mean, rstd, flat.stride(0), columns, eps, BLOCK=block, num_warps=warps
        )
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, weight, bias, mean, rstd = ctx.saved_tensors
        columns = weight.shape[0]
        groups = groups_of(columns)
        locks = torch.zeros(2 * groups, dtype=torch.int32, device=weight.device)
        parts_dw = torch.zeros((groups, columns), dtype=x.dtype, device=weight.device)
        parts_db = torch.zeros((groups, columns), dtype=x.dtype, device=weight.device)
        dw, db = torch.empty_like(weight), torch.empty_like(bias)
        dx = torch.empty_like(dy)
        flat = x.reshape(-1, x.shape[-1])
        rows = flat.shape[0]
        block, warps = row_tile(columns, x.element_size())
        backward_rows[(rows,)](
            dx, dy, parts_dw, parts_db, flat, weight, mean, rstd, locks, flat.stride(0), columns,
            GROUPS=groups, BLOCK=block, num_warps=warps,
        )  # fmt: skip
        backward_columns[(triton.cdiv(columns, 128),)](
            parts_dw, parts_db, dw, db, min(groups, rows), columns, BLOCK_PARTS=32, BLOCK=128
        )
        return dx, dw, db, None


def _row_depth(columns):
    """Additions that a leaf of a row's sum meets at most: the row is one tile, in fp32 as in half."""
    block, warps = row_tile(columns, 2)
    return tile(block=block, threads=32 * warps, element_bytes=2).depth(columns)


def _column_depth(rows):
    """Additions that a leaf of a column's sum meets at most: under its lock, then over the buffers."""
    return triton.cdiv(rows, 64) - 1 + triton.cdiv(min(rows, 256), 32) - 1 + 31


def _several_warps(case):
    return row_tile(case.columns, case.given["input"].element_size())[1] > 1


def _several_rows(case):
    return case.rows > 1


def _layout_misread(case):
    return any(case.layout(name) != "contiguous" for name in case.tensors)


def _beyond_32_bits(case):
    x = case.given["input"]
    strides = case.layouts["input"].strides(x.shape) if "input" in case.layouts else x.stride()
    return case.rows * max(case.columns, *strides) >= 2**31


def _squares_overflow(case):
    return case.largest > 1e18  # fp32 squares end at 1.8e19 squared; a sum of them earlier


BACKWARD_CHECKS = ("layouts", "determinism", "batch_invariance", "metamorphic", "special_values")
IN_HALF = (
    "The parts of grad_weight and grad_bias are kept and added in the input's dtype: "
    "half loses bits with every row."
)
LAYOUTS = (
    "One row stride, the input's, serves all tensors, and every column stride is taken as 1: a sliced, "
    "padded or transposed tensor and an expanded grad_output are misread."
)


# ---- What the two pages share ----

CLAIM = {
    "op": "layer_norm",
    "language": "triton",
    "variance": "two_pass",
    "divide_by_n": "division",
    "accumulates": "float32",
    "dtypes": ("float16", "bfloat16", "float32"),
    "trees": Trees(
        statistics=tree(depth=_row_depth),
        row_gradients=tree(depth=_row_depth),
        columns=tree(depth=_column_depth),
    ),
    # Where the page says nothing, its users expect what torch does.
    "domain": Domain(min_rows=1, min_columns=1, max_columns=ROW_BYTES // 4, optional=False),
}
DEFECTS = (
    # The code says so at any size, numbers do where there are several rows.
    KnownDefect(id="parts-in-half", check="gradient", reason=IN_HALF, dtypes=("float16", "bfloat16")),
    KnownDefect(
        id="parts-in-half",
        check="context",
        reason=IN_HALF,
        where=_several_rows,
        also=BACKWARD_CHECKS,
        dtypes=("float16", "bfloat16"),
    ),
    KnownDefect(
        id="one-row-stride", check="layouts", reason=LAYOUTS, where=_layout_misread, also=("large_offsets",)
    ),
    KnownDefect(
        id="squares-overflow",
        check="finite",
        reason="The squares overflow in fp32, and the output is NaN although the exact one is ordinary: "
        "for |x| beyond about 1e18.",
        where=_squares_overflow,
        dtypes=("bfloat16", "float32"),
    ),
    KnownDefect(
        id="one-row-stride",
        check="memory",
        reason=LAYOUTS + " Accesses then leave the tensors.",
        where=_layout_misread,
    ),
    KnownDefect(
        id="no-barrier-in-lock",
        check="synchronization",
        # Both races are in the PTX of Triton 3.6, 3.7 and 3.8; 3.9 puts a barrier before each exchange.
        reason="No barrier stands inside the lock: a slow warp reads the count word after thread 0 has set "
        "it, and adds a buffer that nobody wrote; and the lock opens while other warps still store the part. "
        "Triton 3.9 puts the barriers in, earlier compilers do not.",
        where=_several_warps,
        backends=("machine",),
        triton_before=(3, 9),
    ),
    KnownDefect(
        id="offsets-in-32-bits",
        check="large_offsets",
        reason="row * stride is a 32-bit product, which overflows at 2^31 elements: "
        "rows beyond are read elsewhere.",
        where=_beyond_32_bits,
    ),
    KnownDefect(
        id="rows-in-32-bits",
        check="huge_extents",
        reason="row * stride is a 32-bit product, which overflows at 2^31 elements: "
        "rows beyond are read elsewhere.",
        backends=("machine",),
    ),
)

# ---- The newer page ----


@subject(**CLAIM, source=SOURCE, known_defects=DEFECTS)
def layer_norm_published_tutorial_newer_triton(input, weight, bias, eps=1e-5):
    if weight is None or bias is None:
        raise ValueError("The tutorial's layer norm needs weight and bias.")
    return _LayerNorm.apply(input, weight, bias, eps)
