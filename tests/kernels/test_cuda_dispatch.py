"""The dispatcher of the row kernels: every column has an owner, the declared trees are those executed."""

from pathlib import Path

import pytest
import torch

from verifier import load

KERNELS = Path(__file__).parents[2] / "kernels"
COLUMNS = (
    *range(1, 130),
    255,
    256,
    257,
    768,
    769,
    1000,
    1023,
    1024,
    1025,
    1026,
    1028,
    4096,
    8191,
    8192,
    20000,
    70000,
)
FLOATS = (torch.float16, torch.float32, torch.float64)


@pytest.fixture(scope="module")
def tiers():
    return load(KERNELS / "row_norm_skeleton_cuda.py").module


@pytest.fixture(scope="module")
def backward():
    return load(KERNELS / "layer_norm_backward_cuda.py").module


def owned(columns, pack, width):
    """Return how many columns each thread has, if packs go round the threads."""
    packs = columns // pack
    return [(packs // width + (thread < packs % width)) * pack for thread in range(width)]


def merged(counts):
    """Merge threads as the kernels do: lanes of a warp at falling distance, then warps.

    Returns (longest chain of additions, largest ratio of a partner to the node that takes it in).
    """
    warps = [counts[i : i + 32] for i in range(0, len(counts), 32)]
    tops, ratio = [], 0.0
    for level in (*warps, None):
        nodes = [(c, c - 1) for c in level] if level is not None else list(tops)
        width = 1 << (len(nodes) - 1).bit_length()
        nodes += [(0, 0)] * (width - len(nodes))
        while width > 1:
            width //= 2
            for lane in range(width):
                (n, depth), (m, other) = nodes[lane], nodes[lane + width]
                if m:
                    ratio = max(ratio, m / n)
                    nodes[lane] = (n + m, max(depth, other) + 1)
        tops.append(nodes[0])
    return tops[-1][1], ratio


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_plan_covers_the_row(tiers, dtype):
    for columns in COLUMNS:
        plan = tiers.plan(columns, dtype)
        assert columns % plan.pack == 0, (columns, plan)
        assert plan.pack * dtype.itemsize <= 16, (columns, plan)
        if plan.tier == "warp":
            assert plan.width in {1, 2, 4, 8, 16, 32}, (columns, plan)
            assert plan.columns_per_thread <= 32, (columns, plan)
            assert plan.columns_per_thread % plan.pack == 0, (columns, plan)
            assert plan.width * plan.columns_per_thread >= columns, (columns, plan)
            assert plan.padding == (plan.width * plan.columns_per_thread > columns), (columns, plan)
            assert max(owned(columns, plan.pack, plan.width)) == plan.columns_per_thread, (columns, plan)
        else:
            assert columns > 1024, (columns, plan)
            assert plan.width in {128, 256, 512, 1024}, (columns, plan)
            assert plan.shared_bytes in {0, columns * max(dtype.itemsize, 4)}, (columns, plan)


def test_declared_depth_and_stages_are_those_of_the_kernel(tiers):
    for columns in COLUMNS:
        found = []
        for dtype in (torch.float32, torch.float64):
            plan = tiers.plan(columns, dtype)
            depth, ratio = merged(owned(columns, plan.pack, plan.width))
            found.append(depth)
            assert ratio <= tiers.stages(columns).imbalance, (columns, dtype)
            most = max(owned(columns, plan.pack, plan.width))
            assert most - 1 <= tiers.stages(columns).updates, (columns, dtype)
        assert max(found) == tiers.additions(columns), columns


def test_declared_depth_of_the_backward_is_that_of_the_kernel(backward):
    for columns in COLUMNS:
        found = []
        for dtype in (torch.float16, torch.float64):
            pack, threads, packs_per_thread = backward.row_layout(columns, dtype)
            counts = owned(columns, pack, threads)
            if packs_per_thread:
                held = packs_per_thread * pack
                assert max(counts) <= held <= backward.cached_values(dtype), (columns, dtype)
            found.append(merged(counts)[0])
        assert max(found) == backward.row_additions(columns), columns


ROWS = (1, 2, 3, 31, 33, 255, 256, 257, 300, 513, 4096, 4097, 49152)
BLOCKS = (32, 64, 128, 256, 512, 1024)


@pytest.mark.parametrize("threads", BLOCKS)
def test_every_row_belongs_to_one_part(backward, threads):
    for rows in ROWS:
        run = backward.rows_per_part(rows, threads)
        parts = -(-rows // run)
        assert parts <= max(256, 131072 // threads), rows  # 256 blocks of 512 threads
        assert (parts - 1) * run < rows <= parts * run


def joined(rows, run):
    """Return the most additions that a row meets: in its part, in its lane's four sums, over the lanes."""
    parts = [min(run, rows - first) for first in range(0, rows, run)]
    lanes = []
    for lane in range(32):
        turns = [parts[lane + 32 * turn :: 128] for turn in range(4)]
        first, second = (chain(turns[i], turns[i + 2]) for i in (0, 1))
        lanes.append(add(first, second))
    width = 32
    while width > 1:
        width //= 2
        lanes = [add(lanes[i], lanes[i + width]) for i in range(width)]
    return lanes[0]


def chain(one, other):
    depths = [max((part - 1 + len(t) - 1 for part in t), default=None) for t in (one, other)]
    return add(*depths)


def add(left, right):
    """Depth of a sum of two partial sums; None is an empty one, which costs nothing."""
    if left is None or right is None:
        return left if right is None else right
    return max(left, right) + 1


@pytest.mark.parametrize("rows", ROWS)
def test_declared_depth_over_rows_is_that_of_the_kernel(backward, rows):
    needed = max(joined(rows, backward.rows_per_part(rows, threads)) for threads in BLOCKS)
    assert needed <= backward.column_additions(rows) <= needed + 6  # small numbers of rows leave lanes empty
    if rows > 2000:
        assert needed == backward.column_additions(rows)


def test_a_row_has_the_same_threads_on_every_device(tiers):
    for architecture in (*tiers.RESOURCES, 75):
        for columns in COLUMNS:
            plan, reference = (tiers.plan(columns, torch.float32, a) for a in (architecture, 90))
            assert (plan.pack, plan.width) == (reference.pack, reference.width)


def test_a_row_that_does_not_fit_is_streamed(tiers):
    assert tiers.plan(20000, torch.float32, 90).tier == "shared"
    assert tiers.plan(30000, torch.float32, 86).tier == "streamed"  # 117 KiB; a block gets 99
    assert tiers.plan(13000, torch.float32, 75).tier == "streamed"  # an unknown device: 48 KiB
    assert tiers.plan(70000, torch.float32, 90).tier == "streamed"


@pytest.mark.parametrize(
    ("threads", "kib", "blocks"), [(128, 0, 16), (1024, 0, 2), (128, 16, 13), (256, 16, 8), (1024, 128, 1)]
)
def test_resident_blocks_follow_the_documented_limits(tiers, threads, kib, blocks):
    assert tiers.resident_blocks(threads, kib * 1024, 90) == blocks


def test_the_block_is_the_largest_that_keeps_as_many_blocks_resident(tiers):
    for columns in (2048, 4096, 8192, 16384, 32768):
        plan = tiers.plan(columns, torch.float32)
        held = tiers.resident_blocks(128, plan.shared_bytes)
        assert tiers.resident_blocks(plan.width, plan.shared_bytes) == held
        larger = plan.width * 2
        assert larger > 1024 or tiers.resident_blocks(larger, plan.shared_bytes) < held


class TestVectorLoads:
    @pytest.fixture
    def four(self, tiers):
        return tiers.plan(2048, torch.float32)

    def test_contiguous_rows_are_read_in_packs(self, tiers, four):
        assert tiers.vectorises(four, torch.zeros(3, 2048), None, torch.zeros(2048))

    @pytest.mark.parametrize(
        "tensor",
        [
            torch.zeros(2048, 3).t(),
            torch.zeros(3, 2049)[:, :2048],
            torch.zeros(3 * 2048 + 1)[1:].view(3, 2048),
            torch.zeros(4096)[::2],
        ],
        ids=["transposed", "padded", "misaligned", "strided weight"],
    )
    def test_other_layouts_are_read_element_by_element(self, tiers, four, tensor):
        assert not tiers.vectorises(four, tensor)

    def test_an_expanded_row_is_read_in_packs(self, tiers, four):
        assert tiers.vectorises(four, torch.zeros(1, 2048).expand(3, 2048))


class TestRefusals:
    def refuse(self, match, input, *arguments):
        (layer_norm,) = load(KERNELS / "layer_norm_welford_cuda.py").subjects
        with pytest.raises(ValueError, match=match):
            layer_norm(input, *arguments)

    def test_dtype(self):
        self.refuse("not torch.int32", torch.zeros(2, 3, dtype=torch.int32), (3,))

    def test_normalized_shape(self):
        self.refuse("not the end", torch.zeros(2, 3), (2,))

    def test_shape_of_weight(self):
        self.refuse("weight has shape", torch.zeros(2, 3), (3,), torch.zeros(4))

    def test_dtype_of_bias(self):
        self.refuse("bias is torch.float16", torch.zeros(2, 3), (3,), None, torch.zeros(3).half())
