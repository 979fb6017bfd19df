"""Layer normalization of input + residual in one Triton kernel, right to a few ulp however large the mean is.

It is the forward of layer_norm_compensated_triton.py with a load that adds a second tensor in the compute
type. The sum itself is neither rounded nor stored.
"""

from pathlib import Path

from verifier import Source, Trees, load, subject, tree

compensated = load(Path(__file__).with_name("layer_norm_compensated_triton.py")).module
split = load(Path(__file__).with_name("two_parts_skeleton_torch.py")).module.split
tiles = compensated.tiles

SOURCE = Source(
    title=compensated.SOURCE.title,
    author=compensated.SOURCE.author,
    url=compensated.SOURCE.url,
    changed="as layer_norm_compensated_triton, with a load that adds a residual",
)


def add_layer_norm(input, residual, normalized_shape, weight=None, bias=None, eps=1e-5):
    """Normalize input + residual, of one dtype; returns (output, mean, rstd)."""
    columns = tiles.skeleton.normalized_columns(
        "layer_norm", input, normalized_shape, tiles.LONGEST_ROW, weight=weight, bias=bias
    )  # fmt: skip
    if (residual.shape, residual.dtype) != (input.shape, input.dtype):
        raise ValueError(
            f"residual is {residual.dtype} of shape {tuple(residual.shape)}, "
            f"input {input.dtype} of shape {tuple(input.shape)}."
        )
    output, (_, _, mean, rstd) = compensated.normalize(input, weight, bias, columns, float(eps), residual)
    return output, mean, rstd


@subject(
    op="layer_norm",
    language="triton",
    source=SOURCE,
    variance="two_pass_corrected_mean",
    variance_options={"corrects_mean": True},
    formula="compensated",
    clamp=True,
    accumulates="float32",
    dtypes=tiles.skeleton.DTYPES,
    trees=Trees(statistics=tree(depth=tiles.forward_depth)),
    differentiable=False,
    mean_contraction="none",  # as in the kernel without a residual
    divide_by_n="division",
    domain=compensated.DOMAIN,
    returns=("output", "mean", "rstd"),
    guarantees={"determinism", "batch_invariance", "layouts"},
)
def layer_norm_residual_triton(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    """Layer normalization in Triton of a sum of two tensors: the input arrives as two parts of it."""
    if not input.dim():
        raise ValueError("layer_norm takes at least one dimension.")
    part, residual = split(input)
    return add_layer_norm(part, residual, normalized_shape, weight, bias, eps)
