"""RMS normalization forward as the norm series publishes it in Triton, its limits included.

One program a row, the whole row in one block: sum of squares / N, reciprocal root of that plus eps, scale.
`rms_norm_triton` is the corrected form, for every layout and with a backward.
"""

from pathlib import Path

import torch
import triton
import triton.language as tl

from verifier import Domain, KnownDefect, Source, load, subject, tile, tree

SOURCE = Source(
    title="LeetGPU exercise 07: the Norm series",
    as_published=True,
)

series = load(Path(__file__).with_name("layer_norm_published_series_triton.py")).module


@triton.jit
def _forward(x, y, weight, x_row, y_row, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * x_row + column, mask=inside, other=0.0).to(tl.float32)
    mean_square = tl.sum(value * value, axis=0) / columns
    rstd = tl.rsqrt(mean_square + eps)
    w = tl.load(weight + column, mask=inside)
    tl.store(y + row * y_row + column, value * rstd * w, mask=inside)


def _warps(block):
    return min(max(block // 256, 1), 16)


def _row_depth(columns):
    """Additions that a leaf of a row's sum meets at most."""
    block = triton.next_power_of_2(columns)
    return tile(block=block, threads=32 * _warps(block), element_bytes=2).depth(columns)


def _steps_over_columns(case):
    """The last dimension of input or weight is not contiguous: sliced, transposed or expanded."""
    pairs = [(case.layouts[name], case.given[name].shape) for name in case.layouts if name in case.given]
    return case.columns > 1 and any(layout.strides(shape)[-1] != 1 for layout, shape in pairs)


@subject(
    op="rms_norm",
    language="triton",
    source=SOURCE,
    variance="rms",
    divide_by_n="division",
    accumulates="float32",
    dtypes=("float16", "bfloat16", "float32"),
    trees=tree(depth=_row_depth),
    differentiable=False,
    # A row must fit Triton's largest block; where the page says nothing, there is a row and a column.
    domain=Domain(min_rows=1, min_columns=1, max_columns=series.LARGEST_BLOCK),
    known_defects=(
        KnownDefect(
            id="two-dimensions-only",
            check="forward_error",
            reason="The input must have two dimensions.",
            where=series.not_a_matrix,
            also=("*",),
        ),
        KnownDefect(
            id="column-stride",
            check="layouts",
            reason="Row strides are passed on, but every column stride is taken as 1: "
            "transposed and sliced rows are misread.",
            where=_steps_over_columns,
            also=("large_offsets",),
        ),
        KnownDefect(
            id="no-columns",
            check="special_values",
            reason="A row without columns breaks the launch, with no clear error.",
            where=series.no_columns,
            also=("*",),
        ),
        KnownDefect(
            id="offsets-in-32-bits",
            check="large_offsets",
            reason="row * stride is a 32-bit product, which overflows at 2^31 elements: "
            "rows beyond are read elsewhere.",
            where=series.beyond_32_bits,
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
def rms_norm_published_series_triton(input, weight=None, eps=1e-5):
    rows, columns = input.shape
    if weight is None:
        weight = torch.ones(columns, dtype=input.dtype, device=input.device)
    output = torch.empty_like(input)
    block = triton.next_power_of_2(columns)
    _forward[(rows,)](
        input, output, weight, input.stride(0), output.stride(0), columns, eps,
        BLOCK=block, num_warps=_warps(block),
    )  # fmt: skip
    return output
