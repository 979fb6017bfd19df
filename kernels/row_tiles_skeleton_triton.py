"""What the Triton kernels share that keep whole rows in registers, several short ones at a time: no subject.

A tile is `tall` rows of `block` columns. Forward, a program has one tile. Backward, where columns are summed
too, a fixed number of programs takes the tiles in turns, and the next tiles are on their way while one is
computed; each program keeps its part of the sums, and a last kernel joins the parts in a fixed order.
Of few rows other programs of the same launch sum the columns, each some columns of all rows.
A row of two pieces has two programs: each keeps and writes its own piece, and reads the other, which the
cache still holds, for the row's sums.
Tiles, warps and programs follow from shape and dtype alone, so that no device changes the bits; a row's lanes
follow from its length alone, so that no batch changes them.
"""

from pathlib import Path

import torch
import triton
import triton.language as tl

from verifier import load, tile

skeleton = load(Path(__file__).with_name("row_norm_skeleton_triton.py")).module
divide, product = skeleton.divide, skeleton.product
LONGEST_ROW = 2**16  # of the forward; beyond it nothing is left in registers
WIDEST = 8192  # elements of a tile of a backward that sums columns: two inputs and two sums fill 8 warps
PIECES = 2  # of a row that several programs share: each reads all of it, and three would read too much
PROGRAMS = 132  # of that backward: one on each multiprocessor of an H100, and as many on every other device
COLUMN_TILE = 32, 128  # rows and columns of a tile where nothing but columns is summed
FEW_ROWS, FEW_ELEMENTS = 768, 2**21  # of a backward that sums columns in the same launch: all are read twice

# ---- Tiles ----


def as_rows(rows):
    """The matrix with the elements of a row side by side: others are copied.

    A compiler gives lanes their elements by the strides that it sees; where those of a row's elements change
    with the number of rows, so would the order of a row's sum.
    """
    return rows if rows.shape[1] == 1 or rows.stride(1) == 1 else rows.contiguous()


def forward_tile(rows, columns, dtype):
    """Rows and columns of a tile of a norm, its warps, and when and where its lanes hold what they need.

    Short rows have few warps, so that little waits at a barrier. How many rows of at most 128 columns a tile
    has follows from their length alone: of two tiles of other heights lanes add other elements of a row.
    Half rows of 256 have four warps, each a row where vectors are loaded. Longer rows of one warp fill it,
    whatever lies beside them, and go several at a time where there are many; so do half rows of 2048, which
    fill four.
    Weight and bias are loaded with the row (early) where it does not fill the registers, or where there are
    so few rows that nobody else would use them. Else the compiler may use so many registers a lane, which
    leave room for a second tile. None of this changes which lane adds what.
    """
    block, size = triton.next_power_of_2(columns), dtype.itemsize
    few = rows * block <= 2**20
    early = few or block <= (4096 if size > 2 else 512)
    if block < 256:
        elements = 2048 if block == 128 and size == 2 else 1024
        return elements // block, block, 4, early, None
    if block == 256 and size == 2:
        return 4, block, 4, early, None
    if block <= 1024:
        at_once = 1 if rows * block < 2**20 else 2 if rows * block < 2**21 else 4
        return min(at_once, 1024 // block), block, 1, early, None
    if block == 2048:
        return 2 if size == 2 and not few else 1, block, 2 if size == 4 else 4, early, None
    registers = {2: {4096: 64, 8192: 64, 16384: 64}, 4: {8192: 80, 16384: 64}}.get(size, {})
    return 1, block, forward_warps(block), early, None if early else registers.get(block)


def forward_warps(block):
    return min(max(block // 1024, 4), 32)


def backward_tile(rows, columns, dtype):
    """Rows and columns of a tile, tiles that are loaded ahead, warps, and tiles beside each other.

    A warp has 1024 elements. Tiles have half the rows where whole ones would leave multiprocessors without
    work.
    """
    block = min(triton.next_power_of_2(columns), WIDEST)
    warps = 4 if block <= 1024 else 8
    elements = 1024 * warps
    if rows * block < elements * 64:
        elements //= 2
    ahead = {2: 3, 4: warps // 4}.get(dtype.itemsize, 1)
    return max(1, elements // block), block, ahead, warps, triton.cdiv(columns, block)


def backward_programs(rows, tall, warps, pieces):
    """Programs that share the tiles: eight warps on each multiprocessor, and one program of each piece."""
    return min(triton.cdiv(rows, tall), PROGRAMS * 8 // warps // pieces)


def sums_at_once(rows, columns, pieces):
    """Whether other programs of the same launch sum the columns."""
    return pieces == 1 and rows <= FEW_ROWS and rows * columns <= FEW_ELEMENTS


def columns_at_once(rows, columns):
    """Rows and columns of a tile of these programs."""
    if rows <= skeleton.FEW[0]:
        return skeleton.FEW
    if columns <= 256:
        return 256, 8
    return (256, 16) if columns <= 2048 else (128, 32)


def column_chunks(rows, columns):
    """Programs along the rows where nothing but columns is summed, and rows of each: some 1024 in all."""
    tall, block = COLUMN_TILE
    tiles = triton.cdiv(rows, tall)
    programs = min(tiles, triton.cdiv(1024 * block, columns))
    chunk = triton.cdiv(tiles, programs) * tall
    return triton.cdiv(rows, chunk), chunk


# ---- Loads ----


@triton.jit
def entries(parameter, column, step, within):
    """The entries of weight or bias for a tile's columns, the same for all its rows.

    They are loaded as a vector: a compiler gives all loads of one shape the same lanes, so that in a tile of
    one row the alignment of weight would decide which lane adds what.
    """
    return tl.load(parameter + column * step, mask=within, other=0.0)[None, :]


# ---- Means ----


@triton.jit
def mean_of(total, columns, BLOCK: tl.constexpr, WHOLE: tl.constexpr):
    """total / columns. Those of a whole block are a power of two, whose inverse is exact: the same number."""
    return product(total, 1.0 / BLOCK) if WHOLE else divide(total, tl.cast(columns, total.dtype))


# ---- Depths of the trees ----


def forward_depth(columns):
    """Additions that a leaf of a row's sum meets at most in a tile of the forward, in whichever dtype."""
    tiled = (forward_tile(1, columns, dtype) for dtype in (torch.float16, torch.float32))
    return max(tile(block=t[1], threads=32 * t[2], element_bytes=2).depth(columns) for t in tiled)


def backward_depth(columns):
    """Additions that a leaf of a row's sum meets at most in a tile of the backward."""
    _, block, _, warps, _ = backward_tile(1, columns, torch.float16)
    return tile(block=block, threads=32 * warps, element_bytes=2).depth(columns)


def column_depth(rows):
    """Additions that a leaf of a column's sum meets at most, for rows of whichever length.

    A lane adds a row of each tile in turns: some PROGRAMS programs share the tiles, half as many where rows
    have two pieces, and twice as many of four warps; or 2 and more share tiles of 32 rows; or one has tiles
    of 128 or more. Then a tile's rows are added, at most 32 of them by one lane and 256 lanes by halves, then
    parts.
    """
    turns = max(triton.cdiv(rows, PROGRAMS // PIECES), triton.cdiv(rows, 2 * COLUMN_TILE[0]))
    parts = skeleton.joined_depth(min(rows, 2 * PROGRAMS))
    return turns - 1 + min(rows - 1, 31 + 8) + parts
