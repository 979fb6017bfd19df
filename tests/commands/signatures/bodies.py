"""Right norms behind the signatures of `public.py`: torch operators, and two Triton kernels."""

# ruff: noqa: PLR0917

import torch
import triton
import triton.language as tl


def normalized(x, weight=None, bias=None, eps=1e-6, *, centred=False, one_plus=False):
    """Normalize rows of x in float32, round once."""
    wide = x.float()
    if centred:
        wide = wide - wide.mean(-1, keepdim=True)
    out = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        out = out * (1 + weight.float() if one_plus else weight.float())
    if bias is not None:
        out = out + bias.float()
    return out.to(x.dtype)


@triton.jit
def _forward(
    x_ptr, residual_ptr, w_ptr, b_ptr, out_ptr, sum_ptr, row, columns, eps,
    CENTRED: tl.constexpr, ONE_PLUS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    start = tl.program_id(0).to(tl.int64) * row
    x = tl.load(x_ptr + start + offsets, mask=mask, other=0.0).to(tl.float32)
    if residual_ptr is not None:
        x += tl.load(residual_ptr + start + offsets, mask=mask, other=0.0).to(tl.float32)
        tl.store(sum_ptr + start + offsets, x, mask=mask)
    if CENTRED:
        x = tl.where(mask, x - tl.sum(x) / columns, 0.0)
    y = x * (1 / tl.sqrt(tl.sum(x * x) / columns + eps))
    if w_ptr is not None:
        w = tl.load(w_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        y *= w + 1 if ONE_PLUS else w
    if b_ptr is not None:
        y += tl.load(b_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + start + offsets, y, mask=mask)


def launched(x, weight, bias, eps, *, centred=False, one_plus=False, residual=None, out=None, total=None):
    """Normalize the last dimension in a Triton kernel, into `out`; x + residual goes into `total`."""
    columns = x.shape[-1]
    dense = x.contiguous()
    result = torch.empty_like(dense) if out is None else out
    if dense.numel():
        _forward[(dense.numel() // columns,)](
            dense, residual, weight, bias, result, total, columns, columns, eps,
            CENTRED=centred, ONE_PLUS=one_plus, BLOCK=triton.next_power_of_2(columns),
        )  # fmt: skip
    return result


@triton.jit
def _input_gradient(dy_ptr, x_ptr, w_ptr, dx_ptr, columns, eps, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    start = tl.program_id(0).to(tl.int64) * columns
    x = tl.load(x_ptr + start + offsets, mask=mask, other=0.0).to(tl.float32)
    g = tl.load(dy_ptr + start + offsets, mask=mask, other=0.0).to(tl.float32)
    g *= tl.load(w_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    rstd = 1 / tl.sqrt(tl.sum(x * x) / columns + eps)
    normed = x * rstd
    tl.store(dx_ptr + start + offsets, (g - normed * (tl.sum(normed * g) / columns)) * rstd, mask=mask)


class Frozen(torch.autograd.Function):
    """RMS norm in Triton whose weight gets no gradient."""

    @staticmethod
    def forward(ctx, X, W, eps):
        """Normalize the rows of X."""
        X = X.contiguous()
        ctx.save_for_backward(X, W)
        ctx.eps = eps
        return launched(X, W.contiguous(), None, eps)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dY):
        """Return the gradient of X alone."""
        X, W = ctx.saved_tensors
        columns = X.shape[-1]
        dX = torch.empty_like(X)
        if X.numel():
            _input_gradient[(X.numel() // columns,)](
                dY.contiguous(), X, W.contiguous(), dX, columns, ctx.eps,
                BLOCK=triton.next_power_of_2(columns),
            )  # fmt: skip
        return dX, None, None
