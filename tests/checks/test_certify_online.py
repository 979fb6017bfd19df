"""Online softmax: kernels that rescale rightly are certified, wrong ones refused, whatever they get wrong."""

import textwrap

import pytest

pytest.importorskip("triton", reason="certified are Triton's kernels; Triton is missing")

from verifier.cases.recipe import Recipe, Values, build
from verifier.checks.support.certify import certified
from verifier.execution.child_process import Runner
from verifier.ops import op
from verifier.records.certificate import Certificate, Refusal
from verifier.subjects.load_file import load

HEAD = """
import torch
import triton
import triton.language as tl
from verifier import subject, tree

LOWEST = tl.constexpr(-3.4028234663852886e38)
NONE = tl.constexpr(float("-inf"))

@triton.jit
def _joined(m_a, s_a, m_b, s_b):
    m = tl.maximum(m_a, m_b)
    return m, s_a * tl.exp(m_a - m) + s_b * tl.exp(m_b - m)

@triton.jit
def _forward(x, y, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    x += row * columns
    y += row * columns
"""
TAIL = """
    for start in range(0, columns, BLOCK):
        inside = start + lane < columns
        value = tl.load(x + start + lane, mask=inside, other=NONE).to(tl.float32)
        tl.store(y + start + lane, tl.div_rn(tl.exp(value - highest), total), mask=inside)

@subject(
    op="softmax", language="triton", variance="softmax", accumulates="float32", formula="online",
    dtypes=("float16", "float32"), trees=tree(depth=lambda n: n), differentiable=False,
)
def attack(input, dim):
    x = input.detach().movedim(dim, -1).contiguous()
    y, columns = torch.empty_like(x), x.shape[-1]
    _forward[(x.numel() // columns,)](x, y, columns, BLOCK=8, num_warps=1)
    return y.movedim(-1, dim)
"""
CHOOSES = """
value = tl.load(x + lane, mask=lane < columns, other=NONE).to(tl.float32)
top = tl.maximum(value, LOWEST)
lanes = tl.exp(value - top)
for start in range(BLOCK, columns, BLOCK):
    value = tl.load(x + start + lane, mask=start + lane < columns, other=NONE).to(tl.float32)
    above = value - top
    grows = above > 0.0
    factor = tl.exp(tl.where(grows, -above, above))
    lanes = tl.where(grows, lanes * factor + 1.0, lanes + factor)
    top = tl.where(grows, value, top)
highest = tl.max(top, axis=0)
top = tl.where(lanes > 0.0, top, highest)
total = tl.sum(lanes * tl.exp(top - highest), axis=0)
"""
RESCALES = """
top = tl.full((BLOCK,), NONE, tl.float32)
lanes = tl.zeros((BLOCK,), tl.float32)
for start in range(0, columns, BLOCK):
    value = tl.load(x + start + lane, mask=start + lane < columns, other=NONE).to(tl.float32)
    larger = tl.maximum(top, value)
    lanes = lanes * tl.exp(top - larger) + tl.exp(value - larger)
    top = larger
highest = tl.max(top, axis=0)
total = tl.sum(lanes * tl.exp(top - highest), axis=0)
"""
BY_TILES = """
highest = NONE
total = 0.0
for start in range(0, columns, BLOCK):
    value = tl.load(x + start + lane, mask=start + lane < columns, other=NONE).to(tl.float32)
    larger = tl.maximum(highest, tl.max(value, axis=0))
    total = total * tl.exp(highest - larger) + tl.sum(tl.exp(value - larger), axis=0)
    highest = larger
"""
IN_PAIRS = RESCALES.partition("highest")[0] + "highest, total = tl.reduce((top, lanes), 0, _joined)\n"
RIGHT = {"chooses": CHOOSES, "rescales": RESCALES, "by tiles": BY_TILES, "in pairs": IN_PAIRS}
COLUMNS = 21  # two tiles and a part of one


def source(body):
    """The source of a kernel whose sweep is `body`."""
    return HEAD + textwrap.indent(body, "    ") + TAIL


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    with Runner(backend="machine") as runner:

        def asked(text, dtype="float32"):
            path = tmp_path_factory.mktemp("online") / "attack.py"
            path.write_text(text)
            (subject,) = load(path).subjects
            recipe = Recipe(rows=2, columns=COLUMNS, input=Values(seed=0))
            case = build(op(subject.op), subject, dtype, recipe, gradients=False)
            return certified(subject, case, runner=runner)

        yield asked


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_kernel_is_certified_however_it_rescales(ask, name):
    found = ask(source(RIGHT[name]), "float16" if name == "chooses" else "float32")
    assert isinstance(found, Certificate), found
    assert all(one.terms == COLUMNS and one.depth < COLUMNS for proof in found.proofs for one in proof.sums)


LOAD, GROWN = "x + start + lane, mask=start + lane < columns", "tl.exp(tl.where(grows, -above, above))"
NEW_TOP, LATER = "top = tl.where(grows, value, top)", "total = tl.where(larger > 1e6, total + total, total)"
WRONG = [
    # sums that are not rescaled, by the wrong factor, twice, or to a maximum of before
    (CHOOSES, "lanes * factor + 1.0", "lanes + 1.0"),
    (RESCALES, "lanes * tl.exp(top - larger) +", "lanes +"),
    (BY_TILES, "total * tl.exp(highest - larger)", "total"),
    (BY_TILES, "highest - larger", "larger - highest"),
    (CHOOSES, "lanes * tl.exp(top - highest)", "lanes"),
    (CHOOSES, "lanes * tl.exp(top - highest)", "lanes * tl.exp(2.0 * (top - highest))"),
    (BY_TILES, "    highest = larger", "    highest = larger if start < 16 else highest"),
    # maxima that are merged wrongly, or lack a lane
    (CHOOSES, NEW_TOP, f"top = tl.where(lane < 7, {NEW_TOP[6:]}, top)"),
    (CHOOSES, "tl.max(top, axis=0)", "tl.max(tl.where(lane == 5, NONE, top), axis=0)"),
    (RESCALES, "tl.max(top, axis=0)", "tl.min(top, axis=0)"),
    (RESCALES, "tl.max(top, axis=0)", "tl.max(top.to(tl.float16).to(tl.float32), axis=0)"),
    (CHOOSES, "above > 0.0", "above > 1e-30"),
    (CHOOSES, "above > 0.0", "above < 0.0"),
    (CHOOSES, "lanes > 0.0", "lanes > 1.0"),
    # elements that are taken twice, or not at all
    (RESCALES, LOAD, f"{LOAD} - 1"),
    (BY_TILES, LOAD, LOAD.replace("lane,", "lane // 2,")),
    (CHOOSES, "range(BLOCK, columns, BLOCK)", "range(0, columns, BLOCK)"),
    (CHOOSES, "lanes * factor + 1.0", "lanes * factor"),
    (CHOOSES, "lanes + factor", "lanes + 2.0 * factor"),
    (IN_PAIRS, "(top, lanes)", "(top, tl.where(lane == 3, lanes + lanes, lanes))"),
    # an ulp beside the scale, and roundings between
    (CHOOSES, "factor + 1.0", "factor + 1.00000012"),
    (RESCALES, "tl.exp(top - larger)", "tl.exp2((top - larger) * 1.44269514)"),
    (RESCALES, "tl.exp(top - larger)", "tl.exp2(top * 1.44269504 - larger * 1.44269504)"),
    (BY_TILES, "tl.exp(highest - larger)", "(tl.exp(highest - larger) * 0.99999994)"),
    (CHOOSES, GROWN, f"{GROWN}.to(tl.float16).to(tl.float32)"),
    (RESCALES, "    top = larger", "    top, lanes = larger, lanes.to(tl.bfloat16).to(tl.float32)"),
    # what rare data alone show
    (BY_TILES, "    highest = larger", f"    highest, total = larger, {LATER[8:]}"),
    (CHOOSES, GROWN, f"tl.maximum({GROWN}, 1e-30)"),
]


@pytest.mark.parametrize(("body", "before", "after"), WRONG, ids=range(len(WRONG)))
def test_a_kernel_that_rescales_wrongly_is_refused(ask, body, before, after):
    assert before in body
    found = ask(source(body.replace(before, after)))
    assert isinstance(found, Refusal), found
    assert found.stage == "the code is the declared computation"


@pytest.mark.parametrize("after", ["tl.exp(m_b - m_a)", "tl.exp(m - m_b)", "1.0"])
def test_a_merge_that_rescales_one_sum_wrongly_is_refused(ask, after):
    text, before = source(IN_PAIRS), "tl.exp(m_b - m)"
    assert before in text
    assert isinstance(ask(text.replace(before, after)), Refusal)
