"""The third published step of the CUDA layer norm backward, dy staged in shared memory, defects included."""

from pathlib import Path

from verifier import KnownDefect, Source, load, source, subject, tree

SOURCE = Source(
    title="An article on the LayerNorm backward in CUDA, in five steps",
    part="step 3",
    url="https://zhuanlan.zhihu.com/p/694974164",
    as_published=True,
    changed="dx is cleared before the launch",
)

steps = load(Path(__file__).with_name("layer_norm_backward_published_skeleton_cuda.py")).module
KERNELS = source(__file__)
WARP = 32
MAX_COLUMNS = 48 * 1024 // 4  # the row of dy, in float, in the shared memory that every launch may use


@subject(
    **steps.claim(tree(lanes=WARP), MAX_COLUMNS),
    source=SOURCE,
    known_defects=(
        KnownDefect(
            id="barrier-in-loop",
            check="synchronization",
            reason="The barrier stands in a loop that lanes leave at different turns, where the row is no "
            "multiple of 32: undefined, and a hang on some devices.",
            where=lambda case: case.columns % WARP != 0,
            also=("*",),  # the machine stops at such a barrier and a device hangs, whatever is checked
        ),
        steps.IN_HALF,
        steps.ATOMICS,
    ),
)
def layer_norm_backward_published_warp_shared_cuda(grad_output, input, weight, mean, rstd):
    """Published layer norm backward in CUDA C++, step three: a warp per row, dy in shared memory."""
    gradients, tensors, rows, hidden = steps.prepare(grad_output, input, weight, mean, rstd)
    if hidden > MAX_COLUMNS:
        raise ValueError(f"A row of dy must fit in 48 KiB: at most {MAX_COLUMNS} columns, not {hidden}.")
    kernel = KERNELS.kernel("layer_norm_backward", input.dtype)
    kernel[rows, WARP, hidden * input.element_size()](*gradients, *tensors, hidden)
    return gradients
