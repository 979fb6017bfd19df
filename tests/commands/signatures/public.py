"""Twenty public signatures of norms, with bodies of our own; each says which library has the signature."""

# ruff: noqa: PLR0917, PT018

from pathlib import Path

import torch
import torch.nn.functional as F

from verifier import load

bodies = load(Path(__file__).with_name("bodies.py")).module
normalized, launched, Frozen = bodies.normalized, bodies.launched, bodies.Frozen


def liger_rms_norm(X, W, eps, offset: float = 0.0, casting_mode: str = "llama", in_place: bool = True):
    """Liger-Kernel, liger_kernel.transformers.functional."""
    assert casting_mode == "llama" and offset == 0.0
    wide = X.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(X.dtype) * W


def liger_layer_norm(X, W, B, eps):
    """Liger-Kernel, liger_kernel.transformers.functional."""
    return normalized(X, W, B, eps, centred=True)


def liger_group_norm(X, affine_scaling_weight, affine_shifting_bias, num_channels, num_groups, eps):
    """Liger-Kernel, liger_kernel.transformers.functional."""
    assert X.shape[1] == num_channels
    assert num_channels % num_groups == 0
    return F.group_norm(X, num_groups, affine_scaling_weight, affine_shifting_bias, eps)


def liger_fused_add_rms_norm(
    X, R, W, eps, offset: float = 0.0, casting_mode: str = "llama", in_place: bool = True
):
    """Liger-Kernel, liger_kernel.transformers.functional."""
    total = X + R
    return normalized(total, W, None, eps), total


def layer_norm_fn(
    x,
    weight,
    bias,
    residual=None,
    x1=None,
    weight1=None,
    bias1=None,
    eps=1e-6,
    dropout_p=0.0,
    rowscale=None,
    prenorm=False,
    residual_in_fp32=False,
    zero_centered_weight=False,
    is_rms_norm=False,
    return_dropout_mask=False,
    out_dtype=None,
    out=None,
    residual_out=None,
):
    """flash-attention, flash_attn.ops.triton.layer_norm."""
    assert x1 is None and weight1 is None and bias1 is None and dropout_p == 0.0 and rowscale is None
    x = x if residual is None else x + residual
    return normalized(x, weight, bias, eps, centred=not is_rms_norm)


def rms_norm_fn(
    x,
    weight,
    bias,
    residual=None,
    x1=None,
    weight1=None,
    bias1=None,
    eps=1e-6,
    dropout_p=0.0,
    rowscale=None,
    prenorm=False,
    residual_in_fp32=False,
    zero_centered_weight=False,
    return_dropout_mask=False,
    out_dtype=None,
    out=None,
    residual_out=None,
):
    """flash-attention, flash_attn.ops.triton.layer_norm."""
    assert dropout_p == 0.0
    return normalized(x if residual is None else x + residual, weight, bias, eps)


def dropout_add_layer_norm(
    x0,
    residual,
    weight,
    bias,
    dropout_p,
    epsilon,
    rowscale=None,
    layerscale=None,
    prenorm=False,
    residual_in_fp32=False,
    return_dropout_mask=False,
):
    """flash-attention, flash_attn.ops.layer_norm."""
    assert dropout_p == 0.0 and not prenorm and not return_dropout_mask
    return normalized(x0.float() + residual.float(), weight, bias, epsilon, centred=True).to(x0.dtype)


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    residual: torch.Tensor | None = None,
    eps: float = 1e-5,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
):
    """flash-linear-attention, fla.modules.layernorm."""
    return normalized(x if residual is None else x + residual, weight, bias, eps)


def rms_norm_gated(
    x: torch.Tensor,
    g: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    activation: str = "swish",
    residual: torch.Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    eps: float = 1e-6,
):
    """flash-linear-attention, fla.modules.fused_norm_gate."""
    assert activation == "swish"
    wide = x.float()
    out = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    out = out if weight is None else out * weight.float()
    out = out if bias is None else out + bias.float()
    return (out * g.float() * torch.sigmoid(g.float())).to(x.dtype)


def l2norm(x: torch.Tensor, eps: float = 1e-6, output_dtype: torch.dtype | None = None):
    """flash-linear-attention, fla.modules.l2norm."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)).to(output_dtype or x.dtype)


def fused_layer_norm_affine(input, weight, bias, normalized_shape, eps=1e-6, memory_efficient=False):
    """apex, apex.normalization."""
    return F.layer_norm(input, normalized_shape, weight, bias, eps)


def fused_rms_norm_affine(input, weight, normalized_shape, eps=1e-6, memory_efficient=False):
    """apex, apex.normalization."""
    return F.rms_norm(input, normalized_shape, weight, eps)


def vllm_rms_norm(out: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, epsilon: float) -> None:
    """vLLM, vllm._custom_ops.rms_norm."""
    assert out.is_contiguous()
    launched(input, weight.contiguous(), None, epsilon, out=out)


def fused_add_rms_norm(
    input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> None:
    """vLLM, vllm._custom_ops: the output replaces the input, their sum the residual."""
    assert input.is_contiguous() and residual.is_contiguous()
    launched(input, weight.contiguous(), None, epsilon, residual=residual, out=input, total=residual)


def fast_rms_layernorm(layernorm, X: torch.Tensor, gemma: bool = False):
    """Unsloth, unsloth.kernels.rms_layernorm; the weight gets no gradient."""
    eps = layernorm.variance_epsilon if hasattr(layernorm, "variance_epsilon") else layernorm.eps
    return Frozen.apply(X, layernorm.weight, eps)


def quack_rmsnorm(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    residual_dtype: torch.dtype | None = None,
    eps: float = 1e-6,
    prenorm: bool = False,
) -> torch.Tensor:
    """QuACK, quack.rmsnorm."""
    return normalized(x if residual is None else x + residual, weight, bias, eps)


def gemma_rmsnorm(
    input: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    out: torch.Tensor | None = None,
    enable_pdl: bool | None = None,
) -> torch.Tensor:
    """FlashInfer, flashinfer.norm."""
    return launched(input, weight.contiguous(), None, eps, one_plus=True, out=out)


def rmsnorm_fn(x, weight, bias, z=None, eps=1e-6, group_size=None, norm_before_gate=True, upcast=True):
    """Mamba, mamba_ssm.ops.triton.layernorm_gated."""
    assert z is None and group_size is None
    return normalized(x, weight, bias, eps)


def fused_ln(input, gamma, beta, epsilon):
    """DeepSpeed, deepspeed.ops.transformer.inference.op_binding.layer_norm."""
    gamma, beta = gamma.contiguous(), beta.contiguous()
    return launched(input, gamma, beta, epsilon, centred=True)


def llama_rms_norm(hidden_states, weight, variance_epsilon):
    """Transformers, LlamaRMSNorm.forward with its attributes as arguments."""
    wide = hidden_states.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + variance_epsilon)
    return weight * wide.to(hidden_states.dtype)
