"""Takes powers of a logarithm that was rounded to half precision for the gradient: gradient must catch it."""

import torch

from verifier import subject


class _LogSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, dim):
        output = torch.log_softmax(input.float(), dim).to(input.dtype)
        ctx.dim = dim
        ctx.save_for_backward(output)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        (stored,) = ctx.saved_tensors
        d, powers = grad_output.float(), torch.exp(stored.float())  # the bug: declared as of what was not
        return (d - powers * d.sum(ctx.dim, keepdim=True)).to(grad_output.dtype), None


@subject(
    op="log_softmax",
    language="torch",
    variance="softmax",
    accumulates="float32",
    formula="recomputed",
    dtypes=("float16", "bfloat16"),
)
def powers_of_stored_logarithm(input, dim):
    return _LogSoftmax.apply(input, dim)
