"""Each rule of the normal form, tried on all numbers of a tiny format; sharing and types of terms."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from verifier.arithmetic.formats import FORMATS, Array, Format
from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.constants import folded, format_of
from verifier.arithmetic.graph.graph import Builder, Ids, ids
from verifier.arithmetic.graph.normal_form import NormalForm, Normaliser, first_difference
from verifier.arithmetic.graph.rules import RULES
from verifier.arithmetic.simulated import round_to

TINY = Format(name="tiny", precision=3, minimum_exponent=-2, maximum=14.0)
POINTS = np.unique(round_to(TINY, np.concatenate([np.arange(0, 2, 1 / 16), np.arange(2, 15, 0.5)])))
VALUES = np.concatenate([-POINTS[::-1], [-0.0], POINTS, [np.inf, -np.inf, np.nan]])
LITERALS = {"0": 0, "-0": 0x80000000, "1": 0x3F800000, "-1": 0xBF800000, "2": 0x40000000, "-4": 0xC0800000}
LITERALS |= {"0.5": 0x3F000000, "0.75": 0x3F400000}
LITERALS |= {"inf": 0x7F800000, "-inf": 0xFF800000, "-3.4028234663852886e38": 0xFF7FFFFF}
EXAMPLES = {
    "subtraction": "sub.f32 a b",
    "negation": "neg.f32 a",
    "widening": "cvt.f32.f16 h",
    "narrow_sum": "add.f16 h h; sub.f16 h (neg.f16 h); add.rn.f16 (neg.f16 h) h",
    "narrow_product": "mul.f16 h h; mul.rn.f16 h (neg.f16 h)",
    "narrowed_again": "cvt.rn.f16.f32 (cvt.f32.f16 h); cvt.rn.f16.f32 (neg.f32 (cvt.f32.f16 h)); "
    "cvt.rn.f16.f32 (cvt.f32.f16 (cvt.rn.f16.f32 a))",
    "magnitude": "abs.f32 (neg.f32 a)",
    "signs_of_factors": "mul.f32 (neg.f32 a) b; div.rn.f32 a (neg.f32 b); mul.f32 (neg.f32 a) (neg.f32 b)",
    "sign_of_dividend": "div.full.f32 (neg.f32 a) b; div.full.f32 (neg.f32 a) (neg.f32 b)",
    "sign_of_narrowed": "cvt.rn.f16.f32 (neg.f32 a)",
    "sign_of_product": "fma.rn.f32 b (neg.f32 a) c; fma.rn.f32 (neg.f32 b) (neg.f32 a) c",
    "folding": "add.f32 1 1; mul.f32 2 -0; fma.rn.f32 -1 0 -0; div.rn.f32 1 -4; add.f32 -0 -0; add.f32 -1 1;"
    " max.f32 1 -4",
    "comparison": "setp.gt.f32 2 1; setp.leu.f32 1 -inf; setp.neu.f32 0 -0; setp.equ.f32 inf inf",
    "choice": "ite (setp.lt.f32 1 2) a b; ite (setp.lt.f32 2 1) a b",
    "times_one": "mul.f32 a 1; mul.f32 -1 a",
    "over_one": "div.rn.f32 a 1; div.rn.f32 a -1",
    "over_power_of_two": "div.rn.f32 a 2; div.rn.f32 a -4",
    "fused_with_one": "fma.rn.f32 1 b c; fma.rn.f32 b -1 c",
    "infinite_sum_of_constants": "add.f32 inf 2; add.f32 -4 -inf; sub.f32 1 inf",
    "infinite_product": "mul.f32 2 -inf; mul.f32 inf -4; mul.f32 -inf -inf",
    "power_of_minus_infinity": "ex2.approx.f32 -inf; ex2.approx.ftz.f32 -inf; exp.cuda.f32 -inf",
    "power_of_zero": "ex2.approx.f32 0; ex2.approx.ftz.f32 -0; exp.cuda.f32 0",
    "tangent_of_zero": "tanh.approx.f32 0; tanh.libdevice.f32 -0",
    "larger_than_all": "max.f32 a -inf; max.f32 -inf a; min.f32 a inf; max.f32 a -3.4028234663852886e38",
    "larger_by_difference": "ite (setp.gt.f32 (sub.f32 a b) 0) a b; "
    "ite (setp.gt.f32 (add.f32 (neg.f32 a) b) 0) b a",
    "compared_with_infinity": "setp.eq.f32 a -inf; setp.equ.f32 inf a; setp.neu.f32 a inf; "
    "setp.ne.f32 -inf a",
    "zero_over": "div.rn.f32 0 a; div.rn.f32 -0 a; div.full.f32 0 a",
    "chosen_unless_zero": "ite (setp.eq.f32 a 0) 1 a; ite (setp.neu.f32 -0 a) a 2",
    "infinite_sum": "add.f32 inf a; add.f32 a -inf; sub.f32 -inf a",
    "parts_of_whole": "add.f32 (mul.f32 a 0.5) (sub.f32 a (mul.f32 a 0.5)); "
    "add.f32 (sub.f32 a (mul.f32 0.75 a)) (mul.f32 0.75 a)",
    "plus_zero": "add.f32 a 0; add.f32 -0 a",
    "fused_with_zero": "fma.rn.f32 0 2 c; fma.rn.f32 -4 0 c",
    "fused_into_zero": "fma.rn.f32 a b 0; fma.rn.f32 a b -0",
    "equal_terms": "sub.f32 a a",
    "times_zero": "mul.f32 a 0; mul.f32 -0 a",
    "fused_with_data_times_zero": "fma.rn.f32 0 b c; fma.rn.f32 b -0 c",
    "contraction": "fma.rn.f32 a b c",
    "commuted": "add.f32 b a; mul.f32 b a",
    "commuted_extremes": "max.f32 b a; min.f32 b a",
    "sign_of_sum": "sub.f32 b a; sub.f32 (neg.f32 b) a",
    "sign_of_fused": "fma.rn.f32 a (neg.f32 b) c",
}


def parsed(builder: Builder, leaves: dict[str, Ids], text: str) -> Ids:
    """Append one expression such as `add.f32 a (neg.f32 b)`."""
    words = text.replace("(", " ( ").replace(")", " ) ").split()

    def operand() -> Ids:
        word = words.pop(0)
        if word != "(":
            return leaves[word]
        node = operation()
        words.pop(0)
        return node

    def operation() -> Ids:
        name, operands = words.pop(0), []
        while words and words[0] != ")":
            operands.append(operand())
        return builder.append(name, *operands)

    return operation()


COMPUTES: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "fma": lambda a, b, c: a * b + c,  # exact in float64 for numbers of three bits
    "neg": np.negative,
    "abs": np.abs,
    "max": np.fmax,
    "ex2": np.exp2,
    "exp": np.exp,
    "tanh": np.tanh,
    "min": np.fmin,
    "cvt": lambda a: a,
    "ite": lambda p, a, b: np.where(p != 0.0, a, b),
}
ASKS = {"gt": np.greater, "lt": np.less, "leu": np.less_equal, "neu": np.not_equal, "equ": np.equal}
ASKS |= {"eq": np.equal, "ne": np.not_equal}


def computed(name: str, operands: list[Array]) -> Array:
    if name.startswith("setp"):
        return ASKS[name.split(".")[1]](*operands).astype(float)
    with np.errstate(all="ignore"):
        exact = COMPUTES[name.split(".", maxsplit=1)[0]](*operands)
        return round_to(TINY, exact)


def value_of(terms: SharedTerms, edge: int, leaves: dict[str, Array]) -> Array:
    """Evaluate an edge; leaves are told apart by their values in the table."""
    term = edge >> 1
    name = terms.names[int(terms.operation[term])]
    below = [value_of(terms, int(e), leaves) for e in terms.edges[term] if e >= 0]
    if below:
        found = computed(name, below)
    elif name == "constant":
        found = np.full_like(leaves["a"], terms.number[term])
    else:
        found = leaves[name.split(":")[1]]
    return -found if edge & 1 else found


def leaves_in(builder: Builder) -> dict[str, Ids]:
    found = {name: builder.append(f"input:{name}") for name in "abch"}
    return found | {text: builder.append("literal:f32", value=bits) for text, bits in LITERALS.items()}


FORMATS_OF_INPUTS = {"a": "f32", "b": "f32", "c": "f32", "h": "f16"}


def test_every_rule_has_an_example() -> None:
    assert set(EXAMPLES) == {rule.name for rule in RULES}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_keeps_what_it_claims_on_all_numbers_of_a_tiny_format(rule) -> None:
    points = VALUES if " c" in EXAMPLES[rule.name] else np.concatenate([VALUES, VALUES])
    width = 3 if " c" in EXAMPLES[rule.name] else 2
    grid = np.array(list(itertools.product(points, repeat=width))).T
    given = {"a": grid[0], "b": grid[1], "c": grid[-1], "h": grid[0]}
    constants = {text: np.full(grid.shape[1], float(text)) for text in LITERALS}
    for text in EXAMPLES[rule.name].split(";"):
        builder = Builder()
        leaves = leaves_in(builder)
        root = parsed(builder, leaves, text)
        graph = builder.graph({"y": root}, FORMATS_OF_INPUTS)
        claims = "EZ" if rule.name != "contraction" else "EZC"
        claims += "F" if rule.claim == "F" else ""
        terms = SharedTerms()
        form = Normaliser(terms, claims if rule.claim != "E" else "E").normal(graph)
        assert form.fired.get(rule.name), text
        named = {int(leaf): name for name, leaf in leaves.items()}
        raw: list[Array] = []
        for node in range(len(graph)):
            below = [raw[i] for i in graph.operands[node] if i >= 0]
            name = graph.names[graph.operation[node]]
            raw.append(computed(name, below) if below else (given | constants)[named[node]])
        was, now = raw[int(root)], value_of(terms, int(form.outputs["y"]), given)
        if rule.name == "contraction":
            was = computed("add", [computed("mul", [given["a"], given["b"]]), given["c"]])
        if rule.claim == "F":
            finite = np.isfinite(grid).all(axis=0) & ((grid[0] != 0) | (form.nonzero.size == 0))
            was, now = was[finite], now[finite]
        same = (was == now) | (np.isnan(was) & np.isnan(now))
        if rule.claim == "E":
            same &= (np.signbit(was) == np.signbit(now)) | np.isnan(was)
        assert same.all(), text


HALVED = "(mul.f32 a 0.5)"


def narrowed(text: str) -> str:
    return f"(cvt.f32.f16 (cvt.rn.f16.f32 {text}))"


PART = narrowed("(mul.f32 (cvt.f32.f16 h) 0.5)")
LITERALS_BESIDE = {
    "tiny": 1,
    "0.25": 0x3E800000,
    "1.5": 0x3FC00000,
    "least/2": 0xFEFFFFFF,
    "-65504": 0xC77FE000,
}
NO_EXAMPLES = {
    "sign_of_dividend": "rcp.approx.f32 (neg.f32 a); ex2.approx.f32 (neg.f32 a)",
    "narrowed_again": "cvt.rn.f16.f32 a; cvt.rn.f16.f32 (add.f32 a b); cvt.rn.bf16.f32 (cvt.f32.f16 h)",
    "comparison": "setp.gt.ftz.f32 tiny 0; setp.gt.f32 a 0",
    "over_power_of_two": "div.rn.f32 a tiny; div.rn.f32 a 1.5; div.rn.f32 a 0; div.rn.f32 a inf",
    "equal_terms": "sub.f32 inf inf; add.f32 a a; sub.f32 a b",
    "parts_of_whole": f"add.f32 (neg.f32 {HALVED}) (add.f32 a {HALVED});"
    f"add.f32 {HALVED} (sub.f32 b {HALVED}); add.f32 (mul.f32 a 0.25) (sub.f32 a (mul.f32 a 0.25));"
    "add.f32 (mul.f32 a 1.5) (sub.f32 a (mul.f32 a 1.5));"
    f"add.f32 (mul.f32 a b) (sub.f32 a (mul.f32 a b)); sub.f32 {HALVED} (sub.f32 a {HALVED});"
    f"add.f32 {narrowed(HALVED)} {narrowed(f'(sub.f32 a {narrowed(HALVED)})')};"
    f"add.f32 {PART} {narrowed(f'(sub.f32 b {PART})')};"
    f"add.f32 (neg.f32 {PART}) {narrowed(f'(add.f32 (cvt.f32.f16 h) {PART})')}",
    "times_zero": "mul.f32 inf 0; mul.f32 a tiny",
    "fused_with_zero": "fma.rn.f32 0 inf c; fma.rn.f32 a 0 c",
    "fused_with_data_times_zero": "fma.rn.f32 0 inf c; fma.rn.f32 0 2 c",
    "larger_than_all": "max.f32 a least/2; max.f32 a -65504; max.f32 a inf; min.f32 a -inf; max.f32 a b",
    "larger_by_difference": "ite (setp.gt.f32 (sub.f32 a b) 1) a b; ite (setp.gt.f32 (sub.f32 a b) 0) b a;"
    "ite (setp.gt.f32 (sub.f32 a c) 0) a b; ite (setp.gt.f32 (add.f32 a b) 0) a b;"
    "ite (setp.lt.f32 (sub.f32 a b) 0) a b",
    "compared_with_infinity": "setp.gt.f32 a -inf; setp.eq.f32 a 1; setp.eq.f32 inf inf; setp.eq.f32 a b",
    "zero_over": "div.rn.f32 1 a; div.rn.f32 a 0; div.rn.f32 0 0; rcp.approx.f32 0; div.rn.f32 a b",
    "chosen_unless_zero": "ite (setp.eq.f32 a 0) a 1; ite (setp.neu.f32 a 0) 1 a; ite (setp.equ.f32 a 0) 1 a;"
    "ite (setp.ne.f32 a 0) a 1; ite (setp.eq.f32 a 1) 1 a; ite (setp.eq.f32 b 0) 1 a;"
    "ite (setp.eq.f32 a 0) b a",
    "infinite_sum": "add.f32 inf -inf; add.f32 a b",
    "infinite_sum_of_constants": "add.f32 inf -inf; add.f32 inf a",
    "infinite_product": "mul.f32 inf 0; mul.f32 -0 -inf; mul.f32 inf a",
    "power_of_minus_infinity": "tanh.approx.f32 -inf; rcp.approx.f32 -inf; ex2.approx.f32 inf",
    "power_of_zero": "tanh.approx.f32 0; rsqrt.approx.f32 0; ex2.approx.f32 tiny",
    "tangent_of_zero": "rcp.approx.f32 0; sqrt.approx.f32 0; tanh.approx.f32 tiny",
    "contraction": "fma.rn.f32 1.5 tiny c; fma.rn.f32 -3.4028234663852886e38 2 c",
}
"""On which a rule is not applied: it would be wrong of them, or of others like them."""


def test_a_number_is_its_two_parts_where_both_are_rounded_to_its_format() -> None:
    builder = Builder()
    text = f"add.f32 {PART} {narrowed(f'(sub.f32 (cvt.f32.f16 h) {PART})')}"
    graph = builder.graph({"y": parsed(builder, leaves_in(builder), text)}, FORMATS_OF_INPUTS)
    assert Normaliser(SharedTerms(), "EZF").normal(graph).fired["parts_of_whole"] == 1


@pytest.mark.parametrize("rule", NO_EXAMPLES)
def test_a_rule_is_not_applied_to_what_only_looks_like_it(rule: str) -> None:
    for text in NO_EXAMPLES[rule].split(";"):
        builder = Builder()
        leaves = leaves_in(builder)
        leaves |= {name: builder.append("literal:f32", value=bits) for name, bits in LITERALS_BESIDE.items()}
        graph = builder.graph({"y": parsed(builder, leaves, text)}, FORMATS_OF_INPUTS)
        claims = next(known.claim for known in RULES if known.name == rule)
        for admitted in {"EZF", "EZFC", "EZF" + claims}:
            assert not Normaliser(SharedTerms(), admitted).normal(graph).fired.get(rule), text


def test_a_sum_rounded_twice_is_that_rounded_once_where_the_first_format_has_digits_enough() -> None:
    low, high = np.meshgrid(VALUES[np.isfinite(VALUES)], VALUES[np.isfinite(VALUES)])
    for precision, same in ((2 * TINY.precision + 2, True), (TINY.precision + 1, False)):
        wide = Format(name="wide", precision=precision, minimum_exponent=-8, maximum=2.0**8)
        twice = round_to(TINY, round_to(wide, low + high))
        assert bool((twice == round_to(TINY, low + high)).all()) is same
    for held in ("float16", "bfloat16"):
        narrow, single = FORMATS[held], FORMATS["float32"]
        assert single.precision >= 2 * narrow.precision + 2
        assert single.minimum_exponent <= narrow.minimum_exponent
        assert single.maximum >= narrow.maximum


@pytest.mark.parametrize("name", ["float16", "float32"])
def test_constants_fold_as_numpy_rounds(name: str) -> None:
    held, kind = format_of({"float16": "f16", "float32": "f32"}[name]), np.dtype(name).type
    draw = np.random.default_rng(0)
    bits = draw.integers(0, 2 ** (8 * np.dtype(name).itemsize), (300, 2))
    pairs = bits.astype(f"uint{8 * np.dtype(name).itemsize}").view(name)
    pairs = pairs[np.isfinite(pairs).all(axis=1)]
    with np.errstate(all="ignore"):
        for a, b in pairs:
            for family, result in (("add", a + b), ("mul", a * b), ("div", a / b)):
                mine = folded(family, held, [float(a), float(b)])
                assert mine is not None
                assert mine == float(kind(result)), (family, a, b)


@pytest.mark.parametrize(
    ("family", "operands"),
    [
        *((family, pair) for family in ("max", "min") for pair in ((0.0, -0.0), (-0.0, 0.0))),
        *(("div", (a, b)) for a in (1.0, 0.0) for b in (0.0, -0.0)),
        *((family, (np.inf, 1.0)) for family in ("add", "mul", "div", "max")),
        *((family, (np.nan, 1.0)) for family in ("add", "mul", "div", "max")),
    ],
)
def test_what_is_left_open_or_no_number_is_not_folded(family: str, operands: tuple[float, float]) -> None:
    assert folded(family, format_of("f32"), operands) is None


@pytest.mark.parametrize(("name", "sign"), [("max.f32", 1), ("min.f32", -1)])
def test_of_two_constants_that_are_beyond_all_numbers_the_extreme_one_is_kept(name: str, sign: int) -> None:
    least, none = -sign * 3.4028234663852886e38, -sign * np.inf
    for pair in ((least, none), (none, least), (none, -none), (-none, none)):
        builder = Builder()
        bits = np.array(pair, dtype=np.float32).view(np.uint32).tolist()
        root = builder.append(name, *(builder.append("literal:f32", value=one) for one in bits))
        terms = SharedTerms()
        form = Normaliser(terms, "EZF").normal(builder.graph({"y": root}, {}))
        assert terms.numbers(form.outputs["y"]) == max(pair, key=lambda number: sign * number)


def two(
    make: Callable[[Builder, Ids, Ids], tuple[Ids, Ids]], claims: str = "EZ", kind: str = "f32"
) -> tuple[SharedTerms, NormalForm]:
    builder = Builder()
    a, b = (builder.append("input:x", value=i) for i in range(2))
    left, right = make(builder, a, b)
    graph = builder.graph({"left": left, "right": right}, {"x": kind})
    terms = SharedTerms()
    return terms, Normaliser(terms, claims).normal(graph)


def test_an_operand_in_another_format_equals_nothing() -> None:
    def widened(builder: Builder, a: Ids, _: Ids) -> tuple[Ids, Ids]:
        return builder.append("cvt.f32.f16", a), builder.append("cvt.f32.f16", a)

    for kind, equal in (("f16", True), ("bf16", False)):
        _, form = two(widened, kind=kind)
        assert bool(form.outputs["left"] == form.outputs["right"]) is equal


def test_a_number_is_rounded_where_it_is_of_another_format() -> None:
    def rounded(builder: Builder, a: Ids, _: Ids) -> tuple[Ids, Ids]:
        wide = builder.append("cvt.f32.f16", a)
        other = builder.append("cvt.f32.bf16", builder.append("cvt.rn.bf16.f32", wide))
        return builder.append("cvt.rn.f16.f32", wide), builder.append("cvt.rn.f16.f32", other)

    terms, form = two(rounded, kind="f16")
    assert terms.text(int(form.outputs["left"])) == "x:f16[0]"
    assert form.outputs["left"] != form.outputs["right"]


def test_operations_that_round_differently_are_different_terms() -> None:
    names = ("div.rn.f32", "div.full.f32", "div.approx.f32", "add.ftz.f32", "add.f32", "sub.f32", "mul.f32")
    for first, second in itertools.combinations(names, 2):
        _, form = two(lambda t, a, b, n=(first, second): (t.append(n[0], a, b), t.append(n[1], a, b)))
        assert form.outputs["left"] != form.outputs["right"]


def test_sums_in_another_order_differ_and_the_first_difference_is_named() -> None:
    def sums(builder: Builder, a: Ids, b: Ids) -> tuple[Ids, Ids]:
        c = builder.append("input:x", value=2)
        left = builder.append("add.f32", builder.append("add.f32", a, b, line="k.py:3"), c)
        return left, builder.append("add.f32", a, builder.append("add.f32", b, c))

    terms, form = two(sums)
    pair = first_difference(terms, int(form.outputs["left"]), int(form.outputs["right"]))
    assert pair[0] != pair[1]
    assert form.line_of(int(form.outputs["left"])) == ""
    assert "k.py:3" in {form.line_of(int(e)) for e in terms.edges[int(form.outputs["left"]) >> 1] if e >= 0}


def test_a_divisor_is_an_obligation() -> None:
    terms, form = two(lambda t, a, b: (t.append("div.rn.f32", a, b), t.append("rsqrt.approx.f32", a)))
    assert [terms.text(int(edge)) for edge in form.divisors] == ["x:f32[0]", "x:f32[1]"]


@pytest.mark.parametrize(
    ("name", "operands", "which"),
    [
        ("div.full.f32", "ab", "b"),
        ("divfma.full.f32", "abb", "b"),
        ("rcp.approx.f32", "a", "a"),
        ("rcp.rn.f32", "a", "a"),
        ("rsqrt.approx.ftz.f32", "a", "a"),
        ("lg2.approx.f32", "a", "a"),
        ("ex2.approx.f32", "a", ""),
        ("sqrt.rn.f32", "a", ""),
    ],
)
def test_what_tells_zeros_apart_is_an_obligation(name: str, operands: str, which: str) -> None:
    def made(builder: Builder, a: Ids, b: Ids) -> tuple[Ids, Ids]:
        node = builder.append(name, *({"a": a, "b": b}[one] for one in operands))
        return node, node

    terms, form = two(made)
    named = {"x:f32[0]": "a", "x:f32[1]": "b"}
    assert "".join(named[terms.text(int(edge))] for edge in form.divisors) == which


def test_what_is_typed_or_ordered_in_no_known_way_equals_nothing() -> None:
    def alike(make: Callable[[Builder, Ids, Ids], Ids]) -> bool:
        _, form = two(lambda builder, a, b: (make(builder, a, b), make(builder, a, b)), "EZF")
        return bool(form.outputs["left"] == form.outputs["right"])

    def chosen(builder: Builder, a: Ids, b: Ids, *, narrow: bool) -> Ids:
        other = builder.append("cvt.rn.f16.f32", b) if narrow else b
        return builder.append("ite", builder.append("setp.gt.f32", a, b), a, other)

    assert alike(lambda builder, a, b: chosen(builder, a, b, narrow=False))
    assert not alike(lambda builder, a, b: chosen(builder, a, b, narrow=True))
    assert not alike(lambda builder, a, b: builder.append("ite", a, a, b))
    assert not alike(lambda builder, a, _: builder.append("add.f32", a))
    assert not alike(lambda builder, a, b: builder.append("torch.sum.f32", a, b))


def test_many_nodes_become_few_terms_whatever_the_order() -> None:
    draw = np.random.default_rng(1)
    builder = Builder()
    x = builder.append("input:x", value=np.arange(64))
    left = draw.integers(0, 64, 5000)
    right = draw.integers(0, 64, 5000)
    sums = builder.append("add.f32", x[left], x[right])
    terms = SharedTerms()
    form = Normaliser(terms).normal(builder.graph({"y": sums}, {"x": "f32"}))
    pairs = {tuple(sorted(p)) for p in zip(left.tolist(), right.tolist(), strict=True)}
    assert terms.count == 64 + len(pairs)
    assert len(np.unique(form.outputs["y"])) == len(pairs)
    assert ids(form.edges).min() >= 0


@pytest.mark.parametrize(("name", "digits", "grid"), [("float16", 11, -24), ("bfloat16", 8, -133)])
def test_a_product_of_halves_may_be_rounded_to_float32_first(name, digits, grid) -> None:
    """All products of two significands of bfloat16, every seventh of float16, about the least numbers."""
    whole = np.arange(1, 2**digits, 7 if name == "float16" else 1, dtype=np.float64)
    products = np.outer(whole, whole)
    for exponent in range(2 * grid - 4, grid + 20, 1 if name == "float16" else 3):
        exact = np.ldexp(products, max(exponent, -1074))
        first = exact.astype(np.float32).astype(np.float64)
        assert np.array_equal(round_to(FORMATS[name], exact), round_to(FORMATS[name], first))


def test_what_asks_for_a_sign_bit_is_not_asked_of_a_zero_whose_sign_is_lost() -> None:
    builder = Builder()
    leaves = leaves_in(builder)
    roots = [parsed(builder, leaves, text) for text in ("within.f32 a", "within.f32 (add.f32 a 0)")]
    form = Normaliser(SharedTerms(), "EZ").normal(builder.graph({"y": np.array(roots)}, FORMATS_OF_INPUTS))
    assert len(set(form.outputs["y"].ravel().tolist())) == len(form.divisors) == 1
