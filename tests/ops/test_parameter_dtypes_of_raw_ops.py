"""Raw backward ops with a float32 weight beside halves: each gradient is judged in its own dtype."""

import inspect

import pytest
from checks_support import examination

from verifier import Domain, subject
from verifier.audit.budget import Budget
from verifier.audit.rules import line_verdict, unexpected
from verifier.records.verdict import Verdict


def gradients(x, dy, w, mean, rstd):
    """Return the gradients of canonical rows; w: of each element, mean and rstd: (rows, 1)."""
    hat, g = (x - mean) * rstd, dy * w
    c1, c2 = (hat * g).mean(1, keepdim=True), g.mean(1, keepdim=True)
    return (g - (hat * c1 + c2)) * rstd, dy * hat


def column(values):
    return values.reshape(-1, 1).double()


def layer_norm(grad_output, input, weight, mean, rstd):
    columns = input.numel() // mean.numel()
    x, dy = (t.double().reshape(-1, columns) for t in (input, grad_output))
    dx, terms = gradients(x, dy, weight.double().reshape(-1), column(mean), column(rstd))
    return dx.reshape(input.shape), terms.sum(0).reshape(weight.shape), dy.sum(0).reshape(weight.shape)


def batch_norm(grad_output, input, weight, mean, rstd):
    x, dy = (t.double().transpose(0, 1) for t in (input, grad_output))
    dx, terms = gradients(x.flatten(1), dy.flatten(1), column(weight), column(mean), column(rstd))
    return dx.reshape(x.shape).transpose(0, 1), terms.sum(1), dy.flatten(1).sum(1)


def group_norm(grad_output, input, weight, *, num_groups, mean, rstd):
    like = weight.reshape(1, -1, *[1] * (input.dim() - 2)).double().expand(input.shape)
    x, dy, w = (t.double().reshape(len(input) * num_groups, -1) for t in (input, grad_output, like))
    dx, terms = gradients(x, dy, w, column(mean), column(rstd))
    over = [axis for axis in range(input.dim()) if axis != 1]
    return dx.reshape(input.shape), *(t.reshape(input.shape).sum(over) for t in (terms, dy))


def declared(function, spoils):
    """Return the raw backward subject of a function, of whose results one goes through the input's dtype."""
    names = ("grad_input", "grad_weight", "grad_bias")
    kernel = subject(
        op=f"{function.__name__}_backward",
        language="torch",
        formula="canonical",
        dtypes=("float16",),
        domain=Domain(min_rows=2, min_columns=4, optional=False, parameter_dtypes=("float32",)),
        returns=names,
    )(function)

    def call(**given):
        x, weight = given["input"], given["weight"]
        found = dict(zip(names, function(**given), strict=True))
        if spoils:
            found[spoils] = found[spoils].to(x.dtype)
        return tuple(t.to(x.dtype if name == "grad_input" else weight.dtype) for name, t in found.items())

    call.__signature__ = inspect.signature(function)
    return kernel.differing(function=call)


@pytest.mark.parametrize("spoils", ["", "grad_weight", "grad_bias"])
@pytest.mark.parametrize("function", [layer_norm, batch_norm, group_norm])
def test_a_gradient_keeps_the_digits_of_its_parameter(function, spoils):
    kernel = declared(function, spoils)
    line = examination(kernel, "gradient", budget=Budget(cases=6, findings=1)).run()
    if not spoils:
        assert line_verdict(line) is Verdict.PASS, [f.outcome.message for f in line.findings]
        return
    (found,) = unexpected(line.findings)
    assert (found.verdict, found.outcome.output) == (Verdict.FAIL, spoils)
