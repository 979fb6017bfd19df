"""The fifth published step of the CUDA layer norm backward, a block for many rows, defects included.

The text describes this step without listing it: the parts of dweight and dbias stay in registers over all
rows of a block, and each column costs one atomic addition a block.
"""

from pathlib import Path

from verifier import KnownDefect, Source, load, source, subject, tree

SOURCE = Source(
    title="An article on the LayerNorm backward in CUDA, in five steps",
    part="step 5",
    url="https://zhuanlan.zhihu.com/p/694974164",
    as_published=True,
    changed="dx is cleared before the launch; the article describes the code without listing it",
)

steps = load(Path(__file__).with_name("layer_norm_backward_published_skeleton_cuda.py")).module
KERNELS = source(__file__)
THREADS = 256
COLUMNS_PER_THREAD = 32  # two parts each, in registers
ROWS_PER_BLOCK = 32
MAX_COLUMNS = THREADS * COLUMNS_PER_THREAD

ATOMICS = KnownDefect(
    id="atomics",
    check="determinism",
    reason=steps.ATOMICS.reason,
    where=lambda case: case.rows > 2 * ROWS_PER_BLOCK,  # two blocks' parts added to zero commute
)


@subject(
    **steps.claim(tree(lanes=THREADS), MAX_COLUMNS),
    source=SOURCE,
    known_defects=(steps.IN_HALF, ATOMICS),
)
def layer_norm_backward_published_block_many_rows_cuda(grad_output, input, weight, mean, rstd):
    """Published layer norm backward in CUDA C++, step five: a block for many rows."""
    gradients, tensors, rows, hidden = steps.prepare(grad_output, input, weight, mean, rstd)
    if hidden > MAX_COLUMNS:
        raise ValueError(f"A block keeps at most {MAX_COLUMNS} columns in registers, not {hidden}.")
    columns_per_thread = 1 << (-(-hidden // THREADS) - 1).bit_length()
    kernel = KERNELS.kernel("layer_norm_backward", input.dtype, columns_per_thread)
    kernel[-(-rows // ROWS_PER_BLOCK), THREADS](*gradients, *tensors, rows, hidden)
    return gradients
