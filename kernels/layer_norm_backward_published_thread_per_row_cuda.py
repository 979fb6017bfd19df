"""The first of five published steps of a CUDA layer norm backward, a thread a row, defects included.

It is the slowest and the easiest to read; what the five share stands in
layer_norm_backward_published_skeleton_cuda.py.
"""

from pathlib import Path

from verifier import KnownDefect, Source, load, sequential, source, subject

SOURCE = Source(
    title="An article on the LayerNorm backward in CUDA, in five steps",
    part="step 1",
    url="https://zhuanlan.zhihu.com/p/694974164",
    as_published=True,
    changed="dx is cleared before the launch",
)

steps = load(Path(__file__).with_name("layer_norm_backward_published_skeleton_cuda.py")).module
KERNELS = source(__file__)
THREADS = 256


@subject(
    **steps.claim(sequential()),
    source=SOURCE,
    known_defects=(
        KnownDefect(
            id="rows-left-out",
            check="gradient",
            reason="The grid is rows / 256 rounded down: rows after the last full block are never processed.",
            where=lambda case: case.rows % THREADS != 0,
            also=("*",),
        ),
        steps.IN_HALF,
        steps.ATOMICS,
    ),
)
def layer_norm_backward_published_thread_per_row_cuda(grad_output, input, weight, mean, rstd):
    """Published layer norm backward in CUDA C++, step one: a thread per row."""
    gradients, tensors, rows, hidden = steps.prepare(grad_output, input, weight, mean, rstd)
    blocks = rows // THREADS
    if blocks:  # CUDA refuses an empty grid; the published launch does not look at the answer
        KERNELS.kernel("layer_norm_backward", input.dtype)[blocks, THREADS](
            *gradients, *tensors, rows, hidden
        )
    return gradients
