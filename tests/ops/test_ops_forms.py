"""What autograd makes of a norm written out keeps the form that says so; sharper claims fail on it."""

import math
from dataclasses import replace

import pytest
import torch
from rounded_ops import declared

from strategies.values import Values
from verifier.arithmetic.formats import ieee
from verifier.cases.recipe import Recipe, build
from verifier.checks.support.output_verdict import judge
from verifier.checks.support.truth import Truth
from verifier.ops import Setting, op
from verifier.records.observation import Observation
from verifier.records.subject import Trees
from verifier.records.verdict import Verdict

ANY_ORDER = Trees()
HALVES = ("float16", "bfloat16")


def truths(name, form, dtype, *, recipes, variance="two_pass"):
    subject = declared(name, formula=form, variance=variance, trees=ANY_ORDER)
    setting = Setting(arithmetic=ieee("float32"), trees=ANY_ORDER)
    for recipe in recipes:
        case = build(op(name), subject, dtype, recipe, gradients=True)
        yield Truth(subject=subject, case=case, setting=setting)


def failing(function, truth_of_cases, *, names=None):
    """Return the results that are proved wrong in some case, of a function of case.given and eps."""
    found, decided = set(), 0
    for truth in truth_of_cases:
        case = truth.case
        leaves = {n: t.clone().requires_grad_() for n, t in case.given.items() if n != "grad_output"}
        with torch.enable_grad():
            output = function(leaves["input"], leaves.get("weight"), leaves.get("bias"), case)
        if isinstance(output, dict):
            results = output
        else:
            gradients = torch.autograd.grad(output, list(leaves.values()), case.given["grad_output"])
            results = {f"grad_{n}": g for n, g in zip(leaves, gradients, strict=True)}
            results["output"] = output.detach()
        for outcome in judge(truth, Observation(status="ok", outputs=results), names or tuple(results)):
            decided += outcome.decided
            if outcome.verdict is Verdict.FAIL:
                found.add(outcome.output)
    assert decided > 100
    return found


def norms(*, columns=(24, 33), hazards=("ordinary",), rows=16, **more):
    return [
        Recipe(
            rows=rows, columns=n, eps=eps, input=Values(seed=seed, hazard=hazard),
            weight=Values(seed=seed + 1), bias=Values(seed=seed + 2),
            grad_output=Values(seed=seed + 3), **more,
        )
        for n in columns for hazard in hazards for seed, eps in ((0, 1e-5), (5, 1e-3))
    ]  # fmt: skip


# -- the casts of Llama's order ----------------------------------------------------------------------


def llama(x, weight, bias, case):
    """Normalize in float32, round to the input's dtype, multiply there: Hugging Face's LlamaRMSNorm."""
    del bias
    wide = x.float()
    rounded = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + case.eps)).to(x.dtype)
    return rounded if weight is None else weight * rounded


def llama_by_hand(*, rounds=(), slip=1.0, sums="float32", forgets=False):
    """Return Llama's order with a backward pass by hand; `rounds` names its products in the input's dtype."""

    def function(x, weight, bias, case):
        del bias
        output = llama(x, weight, None, case).detach()
        x, weight, gradient = x.detach(), weight.detach(), case.given["grad_output"]
        wide, dtype = x.float(), x.dtype
        rstd = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + case.eps)
        normalized = wide * rstd
        g = (gradient * weight).float() if "g" in rounds else gradient.float() * weight.float()
        c1 = (normalized * g).mean(-1, keepdim=True) * slip
        held = normalized.to(dtype).float() if "normalized" in rounds else normalized
        products = gradient.float() * (1.0 if forgets else held)
        products = products.to(dtype).float() if "products" in rounds else products
        total = torch.zeros_like(weight, dtype=getattr(torch, sums))
        for row in products.to(total.dtype):
            total = total + row
        return {
            "output": output,
            "grad_input": ((g - normalized * c1) * rstd).to(dtype),
            "grad_weight": total.to(dtype),
        }

    return function


def llama_truths(form, dtype, **options):
    return truths("rms_norm", form, dtype, recipes=norms(**options), variance="rms")


@pytest.mark.parametrize("dtype", ["float32", *HALVES])
@pytest.mark.parametrize("variant", [0, 1, 4])
def test_llamas_order_under_autograd_keeps_the_form_that_follows_its_casts(dtype, variant):
    assert failing(llama, llama_truths("cast_before_weight", dtype, variant=variant)) == set()


@pytest.mark.parametrize("dtype", HALVES)
def test_casts_of_the_backward_pass_break_the_form_that_has_them_in_the_forward_pass_alone(dtype):
    found = failing(llama, llama_truths("cast_before_weight_forward", dtype))
    assert found == {"grad_input", "grad_weight"}
    assert "output" in failing(llama, llama_truths("canonical", dtype))


@pytest.mark.parametrize("dtype", HALVES)
def test_each_cast_alone_is_seen_by_the_form_without_it(dtype):
    wanted = {"g": {"grad_input"}, "normalized": {"grad_weight"}, "products": {"grad_weight"}}
    for product, results in wanted.items():
        kernel = llama_by_hand(rounds=(product,))
        assert failing(kernel, llama_truths("cast_before_weight_forward", dtype)) == results
        assert failing(kernel, llama_truths("cast_before_weight", dtype)) == set()
    for form in ("cast_before_weight", "cast_before_weight_forward"):
        assert failing(llama_by_hand(), llama_truths(form, dtype)) == set()


@pytest.mark.parametrize(
    ("wrong", "results"),
    [({"slip": 1.05}, {"grad_input"}), ({"forgets": True}, {"grad_weight"})],
    ids=["slip", "no rstd"],
)
@pytest.mark.parametrize("dtype", HALVES)
def test_the_casts_excuse_no_wrong_factor(dtype, wrong, results):
    kernel = llama_by_hand(rounds=("g", "normalized", "products"), **wrong)
    assert failing(kernel, llama_truths("cast_before_weight", dtype)) == results


def positive(truth):
    """Return the case with positive numbers, whose sums grow until a half sum stands still."""
    tensors = {n: None if t is None else t.abs() for n, t in truth.case.tensors.items()}
    return replace(truth, case=replace(truth.case, tensors=tensors))


@pytest.mark.parametrize("dtype", HALVES)
def test_the_casts_excuse_no_half_sums(dtype):
    for sums, results in (("float32", set()), (dtype, {"grad_weight"})):
        kernel = llama_by_hand(rounds=("g", "normalized", "products"), sums=sums)
        cases = map(positive, llama_truths("cast_before_weight", dtype, rows=900, columns=(8,)))
        assert failing(kernel, cases) == results


# -- what autograd gives of the formula written out -------------------------------------------------


def rows_of(x, case):
    """Return the input in float32 as rows, and the shape that brings weight and bias beside them."""
    wide = x.float()
    if case.op == "layer_norm":
        return wide, (-1,)
    return wide.reshape(x.shape[0], case.scalars["num_groups"], -1), (-1, *(1 for _ in x.shape[2:]))


def scaled(y, x, weight, bias, shape):
    y = y.reshape(x.shape)
    y = y if weight is None else y * weight.float().reshape(shape)
    y = y if bias is None else y + bias.float().reshape(shape)
    return y.to(x.dtype)


def by_einsum(x, weight, bias, case):
    rows, shape = rows_of(x, case)
    n = rows.shape[-1]
    d = rows - (torch.einsum("...d->...", rows) / n).unsqueeze(-1)
    var = torch.einsum("...d,...d->...", d, d) / n
    return scaled(d * torch.rsqrt(var + case.eps).unsqueeze(-1), x, weight, bias, shape)


def by_deviations_twice(x, weight, bias, case):
    rows, shape = rows_of(x, case)
    mean = rows.mean(-1, keepdim=True)
    var = (rows - mean).square().mean(-1, keepdim=True)
    return scaled((rows - mean) * torch.rsqrt(var + case.eps), x, weight, bias, shape)


def by_torch_var(x, weight, bias, case):
    rows, shape = rows_of(x, case)
    var, mean = torch.var_mean(rows, -1, correction=0, keepdim=True)
    return scaled((rows - mean) / torch.sqrt(var + case.eps), x, weight, bias, shape)


def without_the_variances_share(x, weight, bias, case):
    """Take the variance for a constant: its gradient is left out."""
    rows, shape = rows_of(x, case)
    mean = rows.mean(-1, keepdim=True)
    rstd = torch.rsqrt((rows - mean).square().mean(-1, keepdim=True) + case.eps)
    return scaled((rows - mean) * rstd.detach(), x, weight, bias, shape)


def slipping(x, weight, bias, case):
    """Compute the right output, and a gradient that is wrong by 1e-4."""
    output = by_einsum(x, weight, bias, case)
    return output + 1e-4 * (output - output.detach())


WRITTEN_OUT = (by_einsum, by_deviations_twice, by_torch_var)
HARD = ("ordinary", "cancellation", "one_outlier", "near_constant_row")


def autograd_truths(name, dtype="float32", *, form="autograd", **options):
    return truths(name, form, dtype, recipes=norms(hazards=HARD, **options))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", ["layer_norm", "group_norm"])
@pytest.mark.parametrize("function", WRITTEN_OUT)
def test_what_autograd_gives_of_a_norm_written_out_keeps_its_form(function, name, dtype):
    assert failing(function, autograd_truths(name, dtype)) == set()


@pytest.mark.parametrize("name", ["layer_norm", "group_norm"])
def test_a_wrong_gradient_breaks_the_form_of_autograd(name):
    found = failing(without_the_variances_share, autograd_truths(name))
    assert found == {"grad_input"}
    assert failing(slipping, autograd_truths(name)) == {"grad_input", "grad_weight", "grad_bias"}


def test_the_gradient_by_autograd_needs_the_form_that_says_so():
    """Autograd adds up a slope that the canonical gradient never makes, and two columns cancel it."""
    tensors = {
        "input": [[1.31133401, 1.25]],
        "weight": [0.0, 1.0],
        "bias": [0.0, 0.0],
        "grad_output": [[0.0, 1.0]],
    }
    (ordinary,) = truths("layer_norm", "autograd", "float32", recipes=[Recipe(rows=1, columns=2)])
    case = replace(ordinary.case, tensors={name: torch.tensor(given) for name, given in tensors.items()})
    verdicts = {}
    for form in ("autograd", "canonical"):
        truth = replace(ordinary, case=case, subject=ordinary.subject.differing(formula=form))
        leaves = [t.clone().requires_grad_() for t in (case.given[n] for n in ("input", "weight", "bias"))]
        gradients = torch.autograd.grad(by_einsum(*leaves, case), leaves, case.given["grad_output"])
        seen = Observation(status="ok", outputs={"grad_input": gradients[0]})
        verdicts[form] = judge(truth, seen, ("grad_input",))[0].verdict
    assert verdicts == {"autograd": Verdict.PASS, "canonical": Verdict.FAIL}


@pytest.mark.parametrize("function", ["power", "product", "quotient"])
def test_what_autograd_gives_of_an_rms_norm_written_out_keeps_its_form(function):
    def rms(x, weight, bias, case):
        del bias
        wide = x.float()
        square = wide * wide if function == "product" else wide.pow(2)
        mean = square.mean(-1, keepdim=True) + case.eps
        y = wide / torch.sqrt(mean) if function == "quotient" else wide * torch.rsqrt(mean)
        return (y if weight is None else y * weight.float()).to(x.dtype)

    recipes = norms(hazards=HARD)
    assert failing(rms, truths("rms_norm", "autograd", "float32", recipes=recipes, variance="rms")) == set()


# -- exponentials in base 2, and logarithms of sums --------------------------------------------------


LOG2_E = math.log2(math.e)


def folded(x, weight, bias, case, *, reciprocal=False, scale=LOG2_E, top=torch.amax):
    del weight, bias, case
    powers = torch.exp2(x * scale - top(x, -1, keepdim=True) * scale)
    total = powers.sum(-1, keepdim=True)
    return powers * (1.0 / total) if reciprocal else powers / total


def joined(x, weight, bias, case, *, logarithm=torch.log):
    del weight, bias, case
    top = x.amax(-1, keepdim=True)
    return x - (top + logarithm((x - top).exp().sum(-1, keepdim=True)))


def softmaxes(name, form, *, scales=(0, 5, 10), hazards=("ordinary",)):
    recipes = [
        Recipe(rows=12, columns=n, input=Values(seed=seed, scale=scale, hazard=hazard))
        for scale in scales for n in (24, 33) for seed in (0, 1) for hazard in hazards
    ]  # fmt: skip
    return truths(name, form, "float32", recipes=recipes, variance="softmax")


OUTPUT = ("output",)


@pytest.mark.parametrize("reciprocal", [False, True])
def test_a_softmax_with_its_scale_folded_in_keeps_the_form_that_says_so_and_no_other(reciprocal):
    def function(*given):
        return folded(*given, reciprocal=reciprocal)

    assert failing(function, softmaxes("softmax", "folded"), names=OUTPUT) == set()
    assert failing(function, softmaxes("softmax", "canonical"), names=OUTPUT) == {"output"}
    assert failing(function, softmaxes("softmax", "canonical", scales=(-6,)), names=OUTPUT) == set()


@pytest.mark.parametrize(
    "wrong",
    [{"scale": LOG2_E * (1 + 1e-5)}, {"scale": 1.0}, {"top": torch.mean}],
    ids=["scale off by 1e-5", "base 2", "mean for maximum"],
)
def test_a_wrong_softmax_breaks_the_folded_form(wrong):
    cases = softmaxes("softmax", "folded", scales=(0, 3))
    if "top" in wrong:  # any shift is right in exact arithmetic; this one overflows
        cases = softmaxes("softmax", "folded", scales=(10,))
    assert failing(lambda *given: folded(*given, **wrong), cases, names=OUTPUT) == {"output"}


def test_a_log_softmax_of_one_subtraction_keeps_the_form_that_says_so_and_no_other():
    assert failing(joined, softmaxes("log_softmax", "logsumexp_recomputed")) == set()
    assert failing(joined, softmaxes("log_softmax", "online_logsumexp_recomputed")) == set()
    assert failing(joined, softmaxes("log_softmax", "recomputed"), names=OUTPUT) == {"output"}
    wrong = failing(
        lambda *given: joined(*given, logarithm=torch.log1p),
        softmaxes("log_softmax", "logsumexp"),
        names=OUTPUT,
    )
    assert wrong == {"output"}
