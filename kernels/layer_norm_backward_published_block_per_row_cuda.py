"""The fourth published step of the CUDA layer norm backward, a block a row, defects included.

The block has as many warps as the row fills, up to 32; the published figures are for 32.
"""

from pathlib import Path

from verifier import KnownDefect, Source, load, source, subject, tree

SOURCE = Source(
    title="An article on the LayerNorm backward in CUDA, in five steps",
    part="step 4",
    url="https://zhuanlan.zhihu.com/p/694974164",
    as_published=True,
    changed="dx is cleared before the launch",
)

steps = load(Path(__file__).with_name("layer_norm_backward_published_skeleton_cuda.py")).module
KERNELS = source(__file__)
WARP, MOST_THREADS = 32, 1024
MAX_COLUMNS = 47 * 1024 // 4  # the row of dy, in float, beside two arrays of 32 in 48 KiB of shared memory


def threads_of(hidden):
    """Return the block's threads: whole warps, as many as the row fills."""
    return min(MOST_THREADS, -(-hidden // WARP) * WARP)


@subject(
    **steps.claim(tree(lanes=MOST_THREADS, extra_depth=1), MAX_COLUMNS),
    source=SOURCE,
    known_defects=(
        KnownDefect(
            id="barrier-in-loop",
            check="synchronization",
            reason="The barrier stands in a loop that threads leave at different turns, where the row is no "
            "multiple of the block: undefined, and a hang on some devices.",
            where=lambda case: case.columns > 0 and case.columns % threads_of(case.columns) != 0,
            also=("*",),  # the machine stops at such a barrier and a device hangs, whatever is checked
        ),
        KnownDefect(
            id="unwritten-slots",
            check="gradient",
            reason="Shared slots that no warp wrote are added to the sums over a row: the second level reads "
            "32 of them, and a block of fewer than 32 warps wrote fewer.",
            where=lambda case: threads_of(case.columns) < MOST_THREADS,
            also=("*",),
        ),
        steps.IN_HALF,
        steps.ATOMICS,
    ),
)
def layer_norm_backward_published_block_per_row_cuda(grad_output, input, weight, mean, rstd):
    """Published layer norm backward in CUDA C++, step four: a block per row."""
    gradients, tensors, rows, hidden = steps.prepare(grad_output, input, weight, mean, rstd)
    if hidden > MAX_COLUMNS:
        raise ValueError(
            f"A row of dy must fit in shared memory: at most {MAX_COLUMNS} columns, not {hidden}."
        )
    kernel = KERNELS.kernel("layer_norm_backward", input.dtype)
    kernel[rows, threads_of(hidden), hidden * input.element_size()](*gradients, *tensors, hidden)
    return gradients
