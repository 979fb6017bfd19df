"""The second published step of the CUDA layer norm backward, a warp a row, defects included.

As published, dx is added to what the caller's memory holds. The other steps here are called with a cleared
dx, so that their own defects can be seen; this one is called as its text leaves it, with fresh memory.
"""

from pathlib import Path

from verifier import KnownDefect, Source, load, source, subject, tree

SOURCE = Source(
    title="An article on the LayerNorm backward in CUDA, in five steps",
    part="step 2",
    url="https://zhuanlan.zhihu.com/p/694974164",
    as_published=True,
)

steps = load(Path(__file__).with_name("layer_norm_backward_published_skeleton_cuda.py")).module
KERNELS = source(__file__)
WARP = 32
UNCLEARED = "grad_input is added to memory that nobody cleared: it is right only if the caller zeroed it."


@subject(
    **steps.claim(tree(lanes=WARP)),
    source=SOURCE,
    known_defects=(
        # What stood there before decides every gradient: only the check that chooses it sees it every time.
        KnownDefect(id="uncleared-gradient", check="memory", reason=UNCLEARED, also=("*",)),
        # Sums in half and the order of atomics, as in the other steps, hide behind what was there before.
    ),
)
def layer_norm_backward_published_warp_per_row_cuda(grad_output, input, weight, mean, rstd):
    """Published layer norm backward in CUDA C++, step two: a warp per row."""
    gradients, tensors, rows, hidden = steps.prepare(grad_output, input, weight, mean, rstd, clear=False)
    KERNELS.kernel("layer_norm_backward", input.dtype)[rows, WARP](*gradients, *tensors, hidden)
    return gradients
