"""Lanes that are copies of each other, as Triton makes them: any of their numbers may stay in one place."""

import pytest

pytest.importorskip("triton", reason="certified are Triton's kernels; Triton is missing")

from checks_support import KERNELS, machine_runner
from triton_release import ALL_LANES_STORE

from strategies.values import Values
from verifier.cases.recipe import build, recorded_recipe
from verifier.checks.support.certificate_at_shape import OF_COPIES, certified
from verifier.checks.support.recorded_code import COPIES, LAST_LANE
from verifier.ops import op
from verifier.records.certificate import Certificate, Refusal
from verifier.subjects.load_file import load

DIFFERS = "the code is the declared computation"
IMPORTS = """
import torch
import triton
import triton.language as tl
from verifier import subject, tree
"""
SUBJECT = """
@subject(
    op="rms_norm", language="triton", variance="rms", accumulates="float32", dtypes=("float32",),
    trees=tree(depth=lambda n: n), divide_by_n="division", mean_contraction="none", differentiable=False,
)
def attack(input, normalized_shape, eps=1e-5):
    x = input.detach().contiguous()
    y, columns = torch.empty_like(x), x.shape[-1]
    _forward[(x.numel() // columns,)](x, y, columns, eps, {constants}num_warps=4)
    return y
"""

KERNEL = """
@triton.jit
def _joined(a, i, b, j):
    return {joined}, tl.minimum(i, j)

@triton.jit
def _forward(x, y, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + lane).to(tl.float32)
    squares = tl.reshape(value * value, (4, BLOCK // 4))
    number = tl.reshape(lane, (4, BLOCK // 4))
    part, _ = tl.reduce((squares, number), 1, _joined)
    mean = tl.div_rn(tl.sum(part, axis=0), columns.to(tl.float32))
    tl.store(y + row * columns + lane, value * tl.div_rn(1.0, tl.sqrt_rn(mean + eps)))
"""


@pytest.fixture(scope="module")
def runner():
    with machine_runner() as found:
        yield found


def written(kernel, constants, folder):
    """Return a subject that launches the kernel with four warps for each row."""
    path = folder / "attack.py"
    path.write_text(IMPORTS + kernel + SUBJECT.format(constants=constants))
    return load(path).subjects[0]


def asked(subject, columns, runner):
    known = op(subject.op)
    recipe = recorded_recipe(known, subject, 2, columns, Values(seed=0))
    return certified(subject, build(known, subject, "float32", recipe, gradients=True), runner=runner)


@pytest.mark.parametrize(
    ("joined", "right", "right_in_the_first"),
    [
        ("a + b", True, True),
        ("tl.where(i > j, a + b, b + a)", True, True),
        ("tl.where(i > j, a + b, a + 2.0 * b)", False, False),
        ("tl.where(i < j, a + b, a + 2.0 * b)", False, True),
        ("tl.where((i == 13) | (j == 13), (a + 64.0 * b) - 63.0 * b, a + b)", False, False),
    ],
    ids=["plain", "commuted", "twice_in_the_first", "twice_in_the_last", "otherwise_in_one"],
)
def test_a_sum_that_differs_by_lane_is_refused(joined, right, right_in_the_first, tmp_path, runner):
    found = asked(written(KERNEL.format(joined=joined), "BLOCK=columns, ", tmp_path), 128, runner)
    if right if ALL_LANES_STORE else right_in_the_first:
        assert isinstance(found, Certificate), found
        assert OF_COPIES not in found.assumptions
    else:
        assert isinstance(found, Refusal)
        assert found.stage == (LAST_LANE if ALL_LANES_STORE else DIFFERS)


EXCHANGED = """
@triton.jit
def _joined(a, v, i, b, w, j):
    return {joined}, v, tl.minimum(i, j)

@triton.jit
def _forward(x, y, columns, eps):
    row = tl.program_id(0)
    warp, lane = tl.arange(0, 4), tl.arange(0, 32)
    place = warp[:, None] * 32 + lane[None, :]
    value = tl.load(x + row * columns + place)
    own = {own}
    first = tl.sum(tl.where(warp == 0, own, 0.0), axis=0)
    second = tl.sum(tl.where(warp == 1, own, 0.0), axis=0)
    third = tl.sum(tl.where(warp == 2, own, 0.0), axis=0)
    fourth = tl.sum(tl.where(warp == 3, own, 0.0), axis=0)
    mean = tl.div_rn((first + second) + (third + fourth), columns.to(tl.float32))
    out = value * tl.div_rn(1.0, tl.sqrt_rn(mean + eps))
    other = tl.where(warp == 0, first, tl.where(warp == 1, second, tl.where(warp == 2, third, fourth)))
    out = tl.where(lane[None, :] == 31, out + {added}, out)
    tl.store(y + row * columns + place, out)
"""
OWN = "tl.sum(value * value, axis=1)"
ROUNDED = """tl.inline_asm_elementwise(
        "mul.rn.f32 $0, $1, $1;", "=f,f", [value], dtype=tl.float32, is_pure=True, pack=1)"""
BY_LANE = f"tl.reduce(({ROUNDED}, value, tl.broadcast_to(lane[None, :], (4, 32))), 1, _joined)[0]"


@pytest.mark.parametrize(
    ("own", "joined", "added", "why"),
    [
        (OWN, "a + b", "0.0", ""),
        (OWN, "a + b", "(own - other)[:, None] * 1048576.0", "of which not all uses fuse the same product"),
        (BY_LANE, "a + b", "0.0", ""),
        # Not in what the first lane has.
        (BY_LANE, "tl.where(i - j == 16, tl.fma(v, v, b), a + b)", "0.0", COPIES if ALL_LANES_STORE else ""),
    ],
    ids=["right", "cancelled", "rounded", "fused_in_some_lanes"],
)
def test_what_stays_of_sums_that_fuse_each_its_own_product_is_not_what_a_lane_has(  # noqa: PLR0917
    own, joined, added, why, tmp_path, runner
):
    kernel = EXCHANGED.format(own=own, joined=joined, added=added)
    found = asked(written(kernel, "", tmp_path), 128, runner)
    assert isinstance(found, Refusal) == bool(why), found
    if why:
        assert why in found.why


BY_ORDER = """
@triton.jit
def _merge_by_lane(n_a, mean_a, m2_a, i_a, n_b, mean_b, m2_b, i_b):
    n, mean, m2 = _merge(n_a, mean_a, m2_a, n_b, mean_b, m2_b)
    return n, mean, {m2}, tl.maximum(i_a, i_b)


@triton.jit
def _moments("""
IN_WARPS = """
    lane = tl.broadcast_to(tl.arange(0, 32)[None, :], (4, 32))
    parts = tl.reshape(seen, (4, 32)), tl.reshape(means, (4, 32)), tl.reshape(m2, (4, 32)), lane
    seen, means, m2, _ = tl.reduce(parts, 1, _merge_by_lane)
    seen, mean, m2 = tl.reduce((seen, means, m2), 0, _merge)
"""


@pytest.mark.parametrize(
    ("m2", "right"),
    [
        ("m2", True),
        ("tl.where(i_a < i_b, 2.0, 1.0) * m2", False),
        ("tl.where(i_a < i_b, 0.99, 1.0) * m2", False),
    ],
    ids=["right", "twice", "by_a_hundredth"],
)
def test_merges_that_are_wrong_in_all_lanes_but_the_last_are_refused(m2, right, tmp_path, runner):
    text = (KERNELS / "layer_norm_welford_triton.py").read_text(encoding="utf-8")
    in_one = "    seen, mean, m2 = tl.reduce((seen, means, m2), 0, _merge)\n"
    ahead = "@triton.jit\ndef _moments("
    here = "Path(__file__).with_name("
    assert in_one in text
    assert ahead in text
    text = text.replace(in_one, IN_WARPS[1:]).replace(ahead, BY_ORDER[1:].format(m2=m2))
    (tmp_path / "attack.py").write_text(text.replace(here, f"Path({str(KERNELS)!r}, "))
    found = asked(load(tmp_path / "attack.py").subjects[0], 201, runner)
    assert isinstance(found, Certificate if right else Refusal), found
    if not right:
        assert found.stage == (LAST_LANE if ALL_LANES_STORE else DIFFERS)


def test_of_means_that_lanes_merge_in_orders_of_their_own_it_is_said_which_is_looked_at(runner):
    for stem, differ in (("layer_norm_welford_triton", True), ("layer_norm_two_pass_triton", False)):
        found = asked(load(KERNELS / f"{stem}.py").subjects[0], 1000, runner)
        assert isinstance(found, Certificate)
        assert (OF_COPIES in found.assumptions) is (differ and ALL_LANES_STORE)
