"""What has to hold beside a comparison: removed values are finite, divisors no zeros, branches go one way."""

import numpy as np
import pytest

from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.graph import Builder
from verifier.arithmetic.graph.normal_form import Normaliser
from verifier.checks.support.obligations import discharged
from verifier.checks.support.only_path import CONSTANTS, same_for_all
from verifier.checks.support.recorded_code import RefusedError

HOLDS = "holds"
FINITE = "values that a rule has removed are finite"
NONZERO = "no divisor is a zero whose sign a rule has changed"
NO_ZERO = "values that a rule took for other than 0 are so"
DATA = "nothing decides on data"
NUMBERS = {"0": 0, "1": 0x3F800000, "-1": 0xBF800000}


def graph_of(text, outputs):
    """A graph of lines "name = opcode operands" of inputs a, b, c and constants."""
    builder = Builder()
    known = {name: builder.append(f"input:{name}") for name in "abc"}
    known |= {name: builder.append("literal:f32", value=bits) for name, bits in NUMBERS.items()}
    for line in text:
        name, _, opcode, *operands = line.split()
        known[name] = builder.append(opcode, *(known[one] for one in operands))
    found = {
        name: np.concatenate([np.zeros(0, np.int64), *(np.atleast_1d(known[one]).ravel() for one in nodes)])
        for name, nodes in outputs.items()
    }
    return builder.graph(found, dict.fromkeys("abc", "f32"))


def shown(text):
    """Whether what the last of these lines, the result, needs is shown, or where it is refused."""
    terms = SharedTerms()
    form = Normaliser(terms, "EZF").normal(graph_of(text, {"y": [text[-1].split()[0]]}))
    try:
        discharged(terms, form.outputs.values(), form.divisors, form.vanished, nonzero=form.nonzero)
    except RefusedError as error:
        return error.refusal.stage
    return HOLDS


GONE = ["p = mul.f32 a b", "z = sub.f32 p p"]
ABOVE_ONE = ["q = mul.f32 b b", "s = add.f32 q 1"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ([*GONE, "y = add.f32 z p"], HOLDS),
        ([*GONE, "y = add.f32 z c"], FINITE),
        (["z = sub.f32 a a", "y = add.f32 z c"], HOLDS),
        ([GONE[0], "z = mul.f32 p 0", "y = add.f32 z c"], FINITE),
        ([*ABOVE_ONE, "r = div.rn.f32 0 s", "z = sub.f32 r r", "y = add.f32 z s"], HOLDS),
        ([*ABOVE_ONE, "r = div.rn.f32 0 s", "z = sub.f32 r r", "y = add.f32 z c"], FINITE),
        ([*ABOVE_ONE, "r = div.rn.f32 1 s", "z = sub.f32 r r", "y = add.f32 z s"], FINITE),
        ([*ABOVE_ONE, "y = div.rn.f32 a s"], HOLDS),
        (["y = div.rn.f32 a b"], NONZERO),
        (["y = div.rn.f32 1 b"], HOLDS),
        (["y = div.rn.f32 -1 b"], HOLDS),
        (["y = div.rn.f32 0 b"], NO_ZERO),
        ([*ABOVE_ONE, "y = div.rn.f32 0 s"], FINITE),
        ([*ABOVE_ONE, "p = setp.eq.f32 s 0", "q = ite p 1 s", "y = div.rn.f32 a q"], HOLDS),
        (["p = setp.eq.f32 b 0", "y = ite p 1 b"], NO_ZERO),
        (["p = setp.eq.f32 b 0", "q = ite p 1 b", "y = div.rn.f32 1 q"], NO_ZERO),
        (["y = rsqrt.approx.f32 b"], HOLDS),
        (["r = rsqrt.approx.f32 b", "z = sub.f32 r r", "y = add.f32 z c"], FINITE),
        (["q = div.rn.f32 1 b", "r = div.rn.f32 a b", "y = add.f32 q r"], HOLDS),
    ],
    ids=[
        *("part_of_a_result", "in_no_result", "an_element", "times_zero", "zero_over_a_part"),
        *("zero_over_what_is_gone", "one_over_a_part", "above_one", "any_divisor", "infinite", "negative"),
        *("zero_over_zero", "zero_over_above_one", "choice_above_one", "choice", "divisor_that_is_chosen"),
        *("root", "root_that_is_gone", "infinite_elsewhere"),
    ],
)
def test_what_rules_need_beside_them_is_shown_or_refused(text, found):
    assert shown(text) == found


def path(text, *, true=(), false=(), results=("y",)):
    """What is shown of predicates that held, and of others, or where it is refused."""
    predicates, result = graph_of(text, {"true": true, "false": false}), graph_of(text, {"y": results})
    try:
        return same_for_all(predicates, result)
    except RefusedError as error:
        return error.refusal.stage


SQUARES = ["q = mul.f32 a a", "r = mul.f32 b b", "s = add.f32 q r", "y = add.f32 s c"]
ASKED = [*SQUARES, "p = setp.lt.f32 s 0", "g = setp.gt.f32 0 s", "u = setp.lt.f32 y 0", "t = setp.lt.f32 s 1"]


@pytest.mark.parametrize(
    ("text", "true", "false", "found"),
    [
        (ASKED, (), ("p", "g"), ("add.f32(mul.f32(...), mul.f32(...)) is not below 0",)),
        (ASKED, ("p",), (), DATA),
        (ASKED, (), ("u",), DATA),
        (ASKED, (), ("t",), DATA),
        ([*SQUARES, "p = setp.lt.f32 1 0"], (), ("p",), (CONSTANTS,)),
        ([*SQUARES, "p = setp.leu.f32 s 0"], (), ("p",), DATA),
        ([*SQUARES, "o = add.f32 s 1", "p = within.f32 o"], ("p",), (), DATA),
        ([*SQUARES[:3], "o = add.f32 s 1", "y = add.f32 o c", "p = within.f32 o"], (), ("p",), DATA),
        ([*SQUARES, "p = within.f32 s"], ("p",), (), NONZERO),
        ([*SQUARES, "d = div.rn.f32 a b", "e = mul.f32 d d", "p = setp.lt.f32 e 0"], (), ("p",), NONZERO),
        (
            [*SQUARES, "d = mul.rn.f32 b c", "z = sub.f32 d d", "e = add.f32 s z", "p = setp.lt.f32 e 0"],
            *((), ("p",), FINITE),
        ),
        (
            [*SQUARES, "d = mul.f32 b c", "z = sub.f32 d d", "e = add.f32 s z", "p = setp.lt.f32 e 0"],
            *((), ("p",), DATA),
        ),
    ],
    ids=[
        *("not_below_zero", "below_zero", "any_sign", "below_one", "constants", "or_equal"),
        *("positive_and_gone", "not_within", "perhaps_zero", "divisor", "removed", "of_a_product"),
    ],
)
def test_a_branch_is_shown_to_go_the_way_it_went_or_refused(text, true, false, found):
    assert path(text, true=true, false=false) == found


def test_a_number_that_is_positive_and_in_a_result_is_within():
    text = [*SQUARES[:3], "o = add.f32 s 1", "y = add.f32 o c", "p = within.f32 o"]
    (why,) = path(text, true=("p",))
    assert why.endswith("is positive and finite")


def test_a_branch_on_two_numbers_of_one_term_that_would_cancel_is_refused():
    """d is the difference of two rounding errors, not 0, though both sums are one term."""
    sums = ["m = mul.f32 a a", "n = mul.f32 b b", "f = fma.rn.f32 a a n", "g = fma.rn.f32 b b m"]
    text = [*sums, "d = sub.f32 f g", "e = sub.f32 d 0", "p = setp.lt.f32 e 0", "y = add.f32 f g"]
    assert path(text, false=("p",)) == DATA
