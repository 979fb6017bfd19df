"""Layer normalization forward as the norm series publishes it in Triton, its defects included.

One program a row, the whole row in one block, two-pass in registers; the number of warps is tuned for each
row length. Mean and rstd are stored for a backward that the series leaves to the reader.
It is here to be found wrong: `layer_norm_single_block_triton` is the same algorithm mended, with a backward.
"""

import torch
import triton
import triton.language as tl

from verifier import Domain, KnownDefect, Source, subject, tile, tree

SOURCE = Source(
    title="LeetGPU exercise 07: the Norm series",
    as_published=True,
)

WARPS = (1, 2, 4, 8, 16, 32)
LARGEST_BLOCK = 2**20  # elements of Triton's largest tensor


@triton.autotune(configs=[triton.Config({}, num_warps=warps) for warps in WARPS], key=["columns"])
@triton.jit
def _forward(x, y, weight, bias, means, rstds, x_row, y_row, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * x_row + column, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(value, axis=0) / columns
    centred = tl.where(inside, value - mean, 0.0)
    variance = tl.sum(centred * centred, axis=0) / columns
    rstd = 1 / tl.sqrt(variance + eps)
    tl.store(means + row, mean)
    tl.store(rstds + row, rstd)
    w = tl.load(weight + column, mask=inside)
    b = tl.load(bias + column, mask=inside)
    tl.store(y + row * y_row + column, centred * rstd * w + b, mask=inside)


def _row_depth(columns):
    """Additions that a leaf of a row's sum meets at most, whichever number of warps the tuner takes."""
    block = triton.next_power_of_2(columns)
    trees = [tile(block=block, threads=32 * warps, element_bytes=2) for warps in WARPS]
    return max(each.depth(columns) for each in trees)


def _lacks_weight(case):
    return case.tensors.get("weight") is None


def _steps_over_columns(case):
    """The last dimension is not contiguous: sliced, transposed or expanded."""
    layout = case.layouts.get("input")
    return layout is not None and case.columns > 1 and layout.strides(case.given["input"].shape)[-1] != 1


def _parameters_step(case):
    layouts = [case.layouts[name] for name in ("weight", "bias") if name in case.layouts]
    return any(layout.strides((case.columns,))[0] != 1 for layout in layouts)


def _layout_misread(case):
    return _steps_over_columns(case) or (case.input_rank == 2 and _parameters_step(case))


def not_a_matrix(case):
    return case.input_rank != 2


def _squares_overflow(case):
    return case.largest > 1e18  # fp32 squares end at 1.8e19 squared; a sum of them earlier


def no_columns(case):
    return case.columns == 0


def beyond_32_bits(case):
    shapes = {name: tensor.shape for name, tensor in case.given.items()}
    strides = [max(case.layouts[name].strides(shapes[name])) for name in case.layouts if name in shapes]
    return case.rows * max(case.columns, 1, *strides) >= 2**31


@subject(
    op="layer_norm",
    language="triton",
    source=SOURCE,
    variance="two_pass",
    divide_by_n="division",
    accumulates="float32",
    dtypes=("float16", "bfloat16", "float32"),
    trees=tree(depth=_row_depth),
    differentiable=False,
    # A row must fit Triton's largest block; where the page says nothing, there is a row and a column.
    domain=Domain(min_rows=1, min_columns=1, max_columns=LARGEST_BLOCK),
    returns=("output", "mean", "rstd"),
    known_defects=(
        KnownDefect(
            id="bias-before-weight",
            check="forward_error",
            reason="The missing bias is made from weight before weight has its own default: "
            "without both the wrapper ends in a TypeError.",
            where=_lacks_weight,
            also=("*",),
        ),
        KnownDefect(
            id="two-dimensions-only",
            check="forward_error",
            reason="The input must have two dimensions.",
            where=not_a_matrix,
            also=("*",),
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
            id="column-stride",
            check="layouts",
            reason="Row strides are passed on, but every column stride is taken as 1: "
            "transposed and sliced rows are misread.",
            where=_layout_misread,
            also=("large_offsets",),
        ),
        KnownDefect(
            id="no-columns",
            check="special_values",
            reason="A row without columns breaks the launch, with no clear error.",
            where=no_columns,
            also=("*",),
        ),
        KnownDefect(
            id="offsets-in-32-bits",
            check="large_offsets",
            reason="row * stride is a 32-bit product, which overflows at 2^31 elements: "
            "rows beyond are read elsewhere.",
            where=beyond_32_bits,
        ),
        KnownDefect(
            id="rows-in-32-bits",
            check="huge_extents",
            reason="row * stride is a 32-bit product, which overflows at 2^31 elements: "
            "rows beyond are read elsewhere.",
            backends=("machine",),
        ),
    ),
)
def layer_norm_published_series_triton(input, weight=None, bias=None, eps=1e-5):
    rows, columns = input.shape
    if bias is None:
        bias = torch.zeros_like(weight)
    if weight is None:
        weight = torch.ones(columns, dtype=input.dtype, device=input.device)
    output = torch.empty_like(input)
    mean = torch.empty(rows, dtype=torch.float32, device=input.device)
    rstd = torch.empty(rows, dtype=torch.float32, device=input.device)
    _forward[(rows,)](
        input, output, weight, bias, mean, rstd, input.stride(0), output.stride(0), columns, eps,
        BLOCK=triton.next_power_of_2(columns),
    )  # fmt: skip
    return output, mean, rstd
