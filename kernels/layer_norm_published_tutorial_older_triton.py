"""Layer normalization as the Triton tutorial's older page publishes it, its defects included.

The kernels are those of the newer page (layer_norm_published_tutorial_newer_triton.py). The wrapper is the
older one: it names the device, leaves the buffers of dw and db uninitialised, and sums all of them, written
or not.
It is here to be found wrong: `layer_norm_two_pass_triton` is the same algorithm mended.
"""

from pathlib import Path

import torch
import triton

from verifier import KnownDefect, Source, load, subject

SOURCE = Source(
    title="Layer Normalization (05-layer-norm.py)",
    part="older page",
    author="Triton's tutorials",
    licence="not stated on the page; its repository is under the MIT licence",
    as_published=True,
)

newer = load(Path(__file__).with_name("layer_norm_published_tutorial_newer_triton.py")).module


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        y = torch.empty_like(x)
        flat = x.reshape(-1, x.shape[-1])
        rows, columns = flat.shape
        mean = torch.empty(rows, dtype=torch.float32, device="cuda")
        rstd = torch.empty(rows, dtype=torch.float32, device="cuda")
        block, warps = newer.row_tile(columns, x.element_size())
        if columns > block:
            raise RuntimeError("This layer norm doesn't support a feature dimension of 64 KB or more.")
        newer.forward[(rows,)](
            flat, y, weight, bias, mean, rstd, flat.stride(0), columns, eps, BLOCK=block, num_warps=warps
        )
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, weight, bias, mean, rstd = ctx.saved_tensors
        columns = weight.shape[0]
        groups = newer.groups_of(columns)
        locks = torch.zeros(2 * groups, dtype=torch.int32, device="cuda")
        parts_dw = torch.empty((groups, columns), dtype=x.dtype, device="cuda")
        parts_db = torch.empty((groups, columns), dtype=x.dtype, device="cuda")
        dw, db = torch.empty_like(weight), torch.empty_like(bias)
        dx = torch.empty_like(dy)
        flat = x.reshape(-1, x.shape[-1])
        rows = flat.shape[0]
        block, warps = newer.row_tile(columns, x.element_size())
        newer.backward_rows[(rows,)](
            dx, dy, parts_dw, parts_db, flat, weight, mean, rstd, locks, flat.stride(0), columns,
            GROUPS=groups, BLOCK=block, num_warps=warps,
        )  # fmt: skip
        newer.backward_columns[(triton.cdiv(columns, 128),)](
            parts_dw, parts_db, dw, db, groups, columns, BLOCK_PARTS=32, BLOCK=128
        )
        return dx, dw, db, None


def _fewer_rows_than_buffers(case):
    return case.rows < newer.groups_of(case.columns)


AS_WELL = (
    *("context", "gradcheck", "formula", "running_bound"),
    *("modes", "partial_gradients", "repeated_calls"),
)
UNWRITTEN = (
    "All buffers are summed, and those that no row was added to are uninitialised: there are 64 to 256 of "
    "them, and fewer rows leave some so."
)


@subject(
    **newer.CLAIM,
    source=SOURCE,
    known_defects=(
        KnownDefect(
            id="unwritten-buffers",
            check="gradient",
            reason=UNWRITTEN,
            where=_fewer_rows_than_buffers,
            also=(*newer.BACKWARD_CHECKS, *AS_WELL),
        ),
        KnownDefect(
            id="unwritten-buffers",
            check="memory",
            reason=UNWRITTEN,
            where=_fewer_rows_than_buffers,
        ),
        KnownDefect(
            id="device-named",
            check="device",
            reason="The wrapper names the device 'cuda', not its input's.",
            backends=("machine", "cuda"),
        ),
        *newer.DEFECTS,
    ),
)
def layer_norm_published_tutorial_older_triton(input, weight, bias, eps=1e-5):
    return _LayerNorm.apply(input, weight, bias, eps)
