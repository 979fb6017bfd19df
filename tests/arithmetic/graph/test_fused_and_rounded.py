"""Products that are fused in one place and rounded in another stand for two numbers, which do not cancel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.graph import Builder
from verifier.arithmetic.graph.normal_form import NormalForm, Normaliser, cancelled_ambiguously
from verifier.arithmetic.graph.signs import Signs

CONSTANTS = {"0.75": 0x3F400000, "third": 0x3EAAAAAB, "2^64": 0x5F800000, "2^-75": 0x1A000000}


def formed(text: list[str], terms: SharedTerms | None = None) -> NormalForm:
    """Form lines "name = opcode operands" of inputs a, b, c and constants; the last is the output."""
    builder = Builder()
    known = {name: builder.append(f"input:{name}") for name in "abc"}
    known |= {name: builder.append("literal:f32", value=bits) for name, bits in CONSTANTS.items()}
    for line in text:
        name, _, opcode, *operands = line.split()
        known[name] = builder.append(opcode, *(known[one] for one in operands))
    graph = builder.graph({"y": known[name]}, dict.fromkeys("abc", "f32"))
    return Normaliser(terms or SharedTerms(), "EZFC").normal(graph)


PART = "p = mul.f32 a 0.75"
FUSED, ROUNDED = "t = fma.rn.f32 a b c", ["p = mul.f32 a b", "s = add.f32 p c"]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (["p = mul.f32 a b", "n = neg.f32 p", "y = fma.rn.f32 a b n"], "equal_terms"),
        ([PART, "n = neg.f32 0.75", "r = fma.rn.f32 a n a", "y = add.f32 p r"], "parts_of_whole"),
        ([PART, "r = sub.f32 a p", "y = fma.rn.f32 a 0.75 r"], "parts_of_whole"),
    ],
    ids=["error_of_a_product", "rest_is_fused", "part_is_fused"],
)  # fmt: skip
def test_a_product_that_is_not_rounded_cancels_nothing(text, rule):
    form = formed(text)
    assert form.fired["contraction"] == 1
    assert rule not in form.fired


@pytest.mark.parametrize("factors", ["0.75 third", "2^64 2^64", "2^-75 2^-75"])
def test_a_product_of_constants_that_would_be_rounded_stays_fused(factors):
    assert "contraction" not in formed([f"y = fma.rn.f32 {factors} a"]).fired  # 1 + w, say, where w is -1
    assert formed(["y = fma.rn.f32 0.75 0.75 a"]).fired["contraction"] == 1


def test_the_same_sum_fused_and_rounded_is_named():
    assert formed([FUSED, *ROUNDED, "y = mul.f32 t s"]).mixed.size == 1
    for text in ([FUSED, "u = fma.rn.f32 b a c", "y = mul.f32 t u"], [*ROUNDED, "y = mul.f32 s s"]):
        assert formed(text).mixed.size == 0
    with_one = ["one = div.rn.f32 0.75 0.75", "t = fma.rn.f32 a one c", "s = add.f32 a c", "y = mul.f32 t s"]
    assert formed(with_one).mixed.size == 0  # a * 1 is exact


def test_a_quotient_whose_last_product_is_fused_is_one_number_or_refused():
    fused = "t = divfma.full.f32 a b c"
    form = formed([fused, "y = mul.f32 t t"])
    assert (form.fired["contraction"], form.mixed.size) == (1, 0)
    assert formed([fused, "q = div.full.f32 a b", "y = mul.f32 t q"]).mixed.size == 1
    negative = ["n = neg.f32 a", "t = divfma.full.f32 n b c", "q = div.full.f32 a b", "y = mul.f32 t q"]
    assert formed(negative).mixed.size == 1  # the sign is taken out, the quotient is the same
    assert formed([*negative[:2], "s = divfma.full.f32 n b c", "y = mul.f32 t s"]).mixed.size == 0
    assert (
        formed(["q = div.full.f32 a b", "n = neg.f32 q", "y = divfma.full.f32 a b n"]).fired.get(
            "equal_terms"
        )
        is None
    )


def test_what_was_fused_is_two_numbers():
    """The numbers of the first test: what the rule of equal terms would have made of them is 0."""
    a = np.float32(1 + 2.0**-12)
    product = a * a
    assert float(a) * float(a) - float(product) == 2.0**-24


def test_a_sum_of_two_products_of_which_either_is_fused_is_named_and_so_is_what_cancels():
    both = ["p = mul.f32 a b", "q = mul.f32 b c", "t = fma.rn.f32 a b q", "s = fma.rn.f32 b c p"]
    form = formed([*both, "y = mul.f32 t s"])
    assert (form.either.size, form.mixed.size, form.cancelled.size) == (1, 0, 0)
    form = formed([*both, "n = neg.f32 s", "y = add.f32 t n"])
    assert (form.either.size, form.cancelled.tolist()) == (1, [2 * int(form.either[0])])
    assert formed([*both[:3], "u = fma.rn.f32 b a q", "y = mul.f32 t u"]).either.size == 0


def test_a_rounding_error_and_its_negative_are_two_numbers_and_one_term():
    """fma(a, b, -a * b) is e where fma(-a, b, a * b) is -e; their difference is 2 e."""
    error = [
        "p = mul.f32 a b",
        "n = neg.f32 p",
        "t = fma.rn.f32 a b n",
        "m = neg.f32 a",
        "s = fma.rn.f32 m b p",
    ]
    form = formed([*error, "y = sub.f32 t s"])
    assert (form.either.size, form.cancelled.tolist()) == (1, [2 * int(form.either[0])])
    assert formed(["p = mul.f32 a b", "y = fma.rn.f32 a b p"]).either.size == 0


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (
            ["p = mul.f32 t 0.75", "r = mul.f32 s 0.75", "d = sub.f32 s r", "y = add.f32 p d"],
            "parts_of_whole",
        ),
        (["d = sub.f32 t a", "l = setp.gt.f32 d z", "y = ite l s a"], "larger_by_difference"),
        (["d = sub.f32 a t", "l = setp.gt.f32 d z", "y = ite l a s"], "larger_by_difference"),
    ],
    ids=["whole", "larger", "smaller"],
)  # fmt: skip
def test_rules_that_take_equal_terms_for_one_number_say_of_which(text, rule):
    """Of t and s, which are one term: the part is of one and the rest of the other, or so a choice."""
    both = ["f = mul.f32 a b", "q = mul.f32 b c", "t = fma.rn.f32 a b q", "s = fma.rn.f32 b c f"]
    terms = SharedTerms()
    form = formed([*both, "z = sub.f32 0.75 0.75", *text], terms)
    assert form.fired[rule] == form.either.size == 1
    assert cancelled_ambiguously(terms, [form]).tolist() == form.either.tolist()
    assert form.cancelled.size == (2 if rule == "larger_by_difference" else 1)
    assert np.isin(form.cancelled, form.vanished).all()


@pytest.mark.parametrize(
    "clamp",
    [
        "l = setp.lt.f32 t z; c = ite l z {}",
        "l = setp.gt.f32 t z; c = ite l {} z",
        "l = setp.gt.f32 z t; c = ite l z {}",
        "l = setp.lt.f32 z t; c = ite l {} z",
    ],
)
@pytest.mark.parametrize(("kept", "ambiguous"), [("t", 0), ("s", 1)])
def test_a_clamp_that_asks_of_one_of_two_numbers_and_gives_the_other_is_named(clamp, kept, ambiguous):
    both = ["p = mul.f32 a b", "q = mul.f32 b c", "t = fma.rn.f32 a b q", "s = fma.rn.f32 b c p"]
    lines = ["z = sub.f32 0.75 0.75", *clamp.format(kept).split("; "), "y = add.f32 c s"]
    terms = SharedTerms()
    form = formed([*both, *lines], terms)
    assert form.either.size == 1
    assert cancelled_ambiguously(terms, [form]).size == ambiguous


def test_what_may_be_two_numbers_is_no_square():
    terms = SharedTerms()
    builder = Builder()
    a, b = (builder.append(f"input:{name}") for name in "ab")
    total = builder.append("add.f32", builder.append("mul.f32", a, b), builder.append("mul.f32", b, b))
    graph = builder.graph({"y": builder.append("mul.f32", total, total)}, dict.fromkeys("ab", "f32"))
    (edge,) = Normaliser(terms, "EZ").normal(graph).outputs["y"].ravel()
    two = terms.edges[edge >> 1, :1] >> 1
    assert Signs(terms, np.array([edge])).nonnegative(edge)
    assert not Signs(terms, np.array([edge]), two).nonnegative(edge)


@pytest.mark.parametrize("family", ["ex2.approx", "exp.cuda"])
def test_a_power_of_what_is_left_of_a_fused_product_is_perhaps_a_zero(family):
    """a * b - m with m the product rounded is its rounding error, which a constant may make large."""
    terms, builder = SharedTerms(), Builder()
    a, b = (builder.append(f"input:{name}") for name in "ab")
    two = builder.append("literal:f32", value=0x40000000)
    product = builder.append("mul.f32", a, b)
    largest = builder.append("max.f32", product, b)
    rests = [builder.append("sub.f32", one, largest) for one in (product, b)]
    shifted = [builder.append("mul.f32", one, two) if family == "ex2.approx" else one for one in rests]
    total = builder.append("add.f32", *(builder.append(f"{family}.f32", one) for one in shifted))
    graph = builder.graph({"y": total, "rest": rests[0]}, dict.fromkeys("ab", "f32"))
    found = Normaliser(terms, "EZ").normal(graph).outputs
    (edge,), (rest,) = (found[name].ravel() for name in ("y", "rest"))
    assert Signs(terms, np.array([edge])).nonzero(edge)
    assert not Signs(terms, np.array([edge]), fused=np.array([rest >> 1])).nonzero(edge)


@pytest.mark.parametrize("copied", [False, True])
def test_a_number_in_whose_place_that_of_a_copy_may_stay_does_not_cancel(copied):
    """What a choice compares may lie in a register, and what it gives in memory; so may two that cancel."""
    builder = Builder()
    a, b, c = (builder.append(f"input:{name}") for name in "abc")
    total = builder.append("fma.rn.f32", a, b, c)
    zero = builder.append("literal:f32", value=0)
    chosen = builder.append("ite", builder.append("setp.lt.f32", total, zero), zero, total)
    less = builder.append("sub.f32", total, total)
    half = builder.append("mul.f32", total, builder.append("literal:f32", value=0x3F000000))
    of_it = builder.append("ite", builder.append("setp.lt.f32", half, zero), zero, half)
    for result, claims in ((chosen, "EZ"), (of_it, "EZ"), (less, "EZF")):
        graph = builder.graph({"y": result}, dict.fromkeys("abc", "f32"))
        several = np.arange(len(graph)) == total
        terms = SharedTerms()
        form = Normaliser(terms, claims).normal(replace(graph, several=several if copied else None))
        assert cancelled_ambiguously(terms, [form]).size == copied
