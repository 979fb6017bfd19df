"""No execution that flushes subnormal operands and results leaves the bound that is composed for it."""

from dataclasses import replace

import numpy as np
import pytest
import rounded_ops
from checks_support import in_turn
from rounded_ops import RoundedKernel, declared, utilisation

from strategies.values import Values
from verifier.arithmetic.formats import FORMATS, Arithmetic, ieee
from verifier.arithmetic.simulated import RoundedArithmetic
from verifier.bounds import affine
from verifier.cases.recipe import Recipe, build
from verifier.checks.support.truth import Truth
from verifier.ops import Setting, op

FORMS = [(name, form) for name in ("batch_norm", "group_norm", "softmax") for form in op(name).forms]
FORMS = [(name, form) for name, form in FORMS if (name, form) != ("batch_norm", "torch_cpu")]
FAMILIES = (
    *(Values(scale=scale) for scale in (0, -20, -62, -64, -120, -126)),
    *(Values(hazard=h, strength=3) for h in ("subnormal", "wide_exponents", "single_nonzero")),
)


class Flushing(RoundedArithmetic):
    """Operations whose subnormal operands count as zero, as `.ftz` has it."""

    def add(self, a, b):
        return super().add(self.read(a), self.read(b))

    def subtract(self, a, b):
        return super().subtract(self.read(a), self.read(b))

    def multiply(self, a, b):
        return super().multiply(self.read(a), self.read(b))

    def divide(self, a, b):
        return super().divide(self.read(a), self.read(b))

    def square_root(self, a):
        return super().square_root(self.read(a))


def simulated(subject, dtype, accumulates, recipe):
    case = build(op(subject.op), subject, dtype, recipe, gradients=True)
    arithmetic = ieee(accumulates, flush_to_zero=True)
    truth = Truth(subject=subject, case=case, setting=Setting(arithmetic=arithmetic, trees=rounded_ops.TREES))
    kernel = RoundedKernel(truth, Flushing(format=FORMATS[accumulates], flush_to_zero=True), None)
    form = truth.op.form(subject.claim, dtype)
    run = rounded_ops._softmax if truth.solved.problem.compares else rounded_ops._normalization
    with np.errstate(all="ignore"):
        return truth, run(kernel, form, truth.solved.problem)


def worst_of(name, form, dtypes):
    worst = {}
    for index, family in enumerate(FAMILIES):
        for seed in (0, 1):
            recipe = Recipe(
                rows=(6, 4, 1)[index % 3],
                columns=(16, 30, 7)[(index + seed) % 3],
                input=replace(family, seed=seed),
                weight=Values(seed=5, scale=(0, -40)[seed]),
                bias=None if index % 2 else Values(seed=6),
                grad_output=Values(seed=seed + 3, scale=(0, -30, -100)[(index + seed) % 3]),
                eps=(1e-5, 1e-30)[(index // 3) % 2],
            )
            truth, found = simulated(declared(name, formula=form), *dtypes, recipe)
            for result, value in utilisation(truth, found).items():
                worst[result] = max(worst.get(result, 0.0), value)
    return worst


@pytest.mark.parametrize(
    ("named", "dtypes"), in_turn(FORMS, [("float32",) * 2, ("float16",) * 2, ("bfloat16", "float32")])
)
def test_every_form_stays_inside_its_bound_where_subnormals_are_flushed(named, dtypes):
    name, form = named
    worst = worst_of(name, form, dtypes)
    assert {n: w for n, w in worst.items() if not w <= 1.0} == {}
    assert max(worst.values()) > 0.1


def test_a_bound_of_gradual_underflow_is_refuted_by_this_data(monkeypatch):
    monkeypatch.setattr(affine.AffineNumbers, "read", lambda self, centre, role=None: self.exact(centre))
    monkeypatch.setattr(Arithmetic, "omega", property(lambda self: self.format.omega))
    monkeypatch.setattr(Arithmetic, "addition_omega", property(lambda self: 0.0))
    worst = worst_of("group_norm", "canonical", ("float32", "float32"))
    assert max(worst.values()) > 1.0
