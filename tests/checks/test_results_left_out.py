"""A result that the op demands is missed, even where the declaration does not speak of it."""

import pytest
from checks_support import KERNELS, failures, outcomes_of, passes, subject_of

from verifier import subject as declaring

BATCH_NORM = subject_of(KERNELS / "batch_norm_torch.py")


def running_left_out():
    return BATCH_NORM.differing(mutates=(), known_defects=())


def test_running_statistics_that_training_does_not_declare_are_missed():
    found = failures(outcomes_of(running_left_out(), "forward_error", "float32", count=12))
    assert {o.output for o in found} >= {"running_mean", "running_var"}
    assert all("neither in returns= nor in mutates=" in o.message for o in found)


def test_declared_running_statistics_and_those_of_evaluation_pass():
    found = outcomes_of(BATCH_NORM, "forward_error", "float32", count=12)
    assert not [o for o in failures(found) if o.output.startswith("running")]
    assert {"running_mean", "running_var"} <= {o.output for o in passes(found)}


@declaring(
    op="layer_norm_backward",
    language="torch",
    variance="two_pass",
    dtypes=("float32",),
    returns=("grad_input",),
)
def only_grad_input(grad_output, input, weight, mean, rstd):
    rows = rstd.numel()
    x, g = input.reshape(rows, -1).double(), grad_output.reshape(rows, -1).double()
    g = g if weight is None else g * weight.reshape(1, -1).double()
    scale = rstd.reshape(rows, 1).double()
    h = (x - mean.reshape(rows, 1).double()) * scale
    out = (g - (h * (h * g).mean(1, keepdim=True) + g.mean(1, keepdim=True))) * scale
    return out.reshape(input.shape).to(input.dtype)


@declaring(
    op="layer_norm_backward",
    language="torch",
    variance="two_pass",
    dtypes=("float32",),
    returns=("grad_input",),
)
def of_norm_without_weight(grad_output, input, mean, rstd):
    return only_grad_input(grad_output, input, None, mean, rstd)


@pytest.mark.parametrize(("kernel", "missed"), [(only_grad_input, True), (of_norm_without_weight, False)])
def test_a_gradient_of_a_given_weight_is_missed(kernel, missed):
    shapes = ((2, 5), (3, 4))
    found = outcomes_of(kernel, "gradient", count=8, shapes=shapes, max_elements=20)
    assert {o.output for o in failures(found)} == ({"grad_weight"} if missed else set())
    assert missed or passes(found)


# -- kernels for frozen weights ------------------------------------------------------------------------

DECLARED = {"op": "layer_norm", "language": "torch", "variance": "two_pass", "dtypes": ("float32",)}


def frozen(input, weight, bias, eps=1e-5):
    wide = input.double()
    centred = wide - wide.mean(-1, keepdim=True)
    rstd = 1 / (centred.square().mean(-1, keepdim=True) + eps).sqrt()
    return (centred * rstd * weight.detach().double() + bias.detach().double()).to(input.dtype)


def wrongly_frozen(input, weight, bias, eps=1e-5):
    wide = input.double()
    centred = wide - wide.mean(-1, keepdim=True).detach()
    rstd = 1 / (centred.square().mean(-1, keepdim=True) + eps).sqrt()
    return (centred * rstd * weight.detach().double() + bias.detach().double()).to(input.dtype)


def test_gradients_that_are_declared_away_are_not_demanded():
    demanded = failures(outcomes_of(declaring(**DECLARED)(frozen), "gradient", "float32", count=6))
    assert {o.output for o in demanded} == {"grad_weight", "grad_bias"}
    declared = declaring(**DECLARED, gradients=("input",))(frozen)
    for check in ("gradient", "partial_gradients", "context"):
        found = outcomes_of(declared, check, "float32", count=6)
        assert not failures(found)
    assert {o.output for o in passes(outcomes_of(declared, "gradient", "float32", count=6))} == {"grad_input"}


def test_the_gradient_that_is_left_is_judged():
    declared = declaring(**DECLARED, gradients=("input",))(wrongly_frozen)
    found = failures(outcomes_of(declared, "gradient", "float32", count=6))
    assert {o.output for o in found} == {"grad_input"}
