"""What the Triton norms share that take a row, a group or a channel to one program: no subject.

Division and root are IEEE's; a row goes through tiles of at most 64 KB, whose sums are in fp32 (fp64 for
doubles); the gradients of weight and bias are sums of parts that a second kernel joins in a fixed order. The
number of programs, tiles and warps follows from the shape alone, so that no device changes the bits.

No batch changes those of a row either. Of code compiled for 1 row, or for a multiple of 16, a compiler may
fuse other products into a sum. Kernels that write rows take the number of rows, and what follows from it, as
numbers of any value (`do_not_specialize`). Where tiles of several rows would need a predicate for each so,
they leave a compiler nothing to fuse instead: a product is rounded before it is added (`product`), or added
by `tl.fma`.
"""

import contextlib
import itertools
import math

import torch
import triton
import triton.language as tl

from verifier import Trees, tile, tree

DTYPES = ("float16", "bfloat16", "float32", "float64")
PARAMETER_DTYPES = ("input", "float32")  # each tensor is read, and its gradient stored, in its own dtype
ROW_BYTES = 65536  # a tile is at most this wide, as in the tutorial: more would spill registers
CHUNKS = (128, 1024)  # programs of the backward: enough to fill a device, few enough to keep the parts small
LONGEST_ROW = 2**30  # columns are counted in 32 bits
FEW, MANY = (8, 256), (128, 16)  # parts that the last kernel joins in one step, and columns of a program
GUARANTEES = frozenset(
    {"determinism", "batch_invariance", "gradgradcheck", "special_values", "layouts", "large_offsets"}
)

# ---- Arithmetic ----


@triton.jit
def divide(numerator, denominator):
    # Triton's `/` is an approximation in fp32, and ptxas may contract it with what follows.
    return numerator / denominator if numerator.dtype == tl.float64 else tl.div_rn(numerator, denominator)


@triton.jit
def root(value):
    return tl.sqrt(value) if value.dtype == tl.float64 else tl.sqrt_rn(value)


@triton.jit
def product(a, b):
    # Rounded before any sum takes it: no compiler fuses it into one, in no turn of a loop that is unrolled.
    return tl.fma(a, b, 0.0)


@triton.jit
def _plus(a, b, c, d):
    return a + c, b + d


@triton.jit
def sums(a, b, axis: tl.constexpr):
    # Two sums along one axis at once: the warps wait for each other once.
    return tl.reduce((a, b), axis, _plus)


# ---- Launches ----


def on(tensor):
    """Triton launches on the current device, which need not be the tensor's."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()


def row_tile(columns, dtype):
    block = min(ROW_BYTES // dtype.itemsize, triton.next_power_of_2(columns))
    return block, min(max(block // 256, 1), 8)


def chunks(rows, columns):
    """Programs of the backward and rows of each, from the shape alone: no device may change the bits."""
    programs = min(rows, max(CHUNKS[0], min(CHUNKS[1], 2**20 // columns)))
    chunk = triton.cdiv(rows, programs)
    return triton.cdiv(rows, chunk), chunk


def accumulator(dtype):
    return (torch.float64, tl.float64) if dtype == torch.float64 else (torch.float32, tl.float32)


def step(vector):
    return 0 if vector is None else vector.stride(0)


def scalar(value, like):
    """A Python float reaches a kernel as fp32: doubles get theirs through memory."""
    if like.dtype != torch.float64:
        return value
    return torch.full((1,), value, dtype=like.dtype, device=like.device)


# ---- The second kernel of a backward ----


def sum_over(rows, shape, dtype, device):
    """Memory for a sum over rows: kernels write all of it, unless there is no row to sum."""
    return (torch.empty if rows else torch.zeros)(shape, dtype=dtype, device=device)


@triton.jit
def _total(parts, count, column, columns, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    total = tl.zeros((PARTS, BLOCK), parts.dtype.element_ty)
    for start in range(0, count, PARTS):
        part = start + tl.arange(0, PARTS).to(tl.int64)
        inside = (part[:, None] < count) & (column[None, :] < columns)
        total += tl.load(parts + part[:, None] * columns + column[None, :], mask=inside, other=0.0)
    return tl.sum(total, axis=0)


@triton.jit
def _join(parts, out, others, other_out, count, columns, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """Joins `count` parts of one tile of columns, always in the same order, of one sum or of two."""
    column = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if tl.program_id(1) == 0:
        tl.store(out + column, _total(parts, count, column, columns, PARTS, BLOCK), mask=column < columns)
    elif others is not None:
        total = _total(others, count, column, columns, PARTS, BLOCK)
        tl.store(other_out + column, total, mask=column < columns)


def join_parts(sums, count, columns):
    """Joins the parts of each sum, (parts, out), two sums a launch; without an out there is none to join."""
    wanted = [(parts, out) for parts, out in sums if out is not None]
    at_once, block = FEW if count <= FEW[0] else MANY
    for first, second in itertools.zip_longest(wanted[::2], wanted[1::2]):
        grid = (triton.cdiv(columns, block), 1 if second is None else 2)
        _join[grid](*first, *(second or (None, None)), count, columns, PARTS=at_once, BLOCK=block)


# ---- What no kernel takes ----


def refuse_dtype(op, input):
    if str(input.dtype).removeprefix("torch.") not in DTYPES:
        raise ValueError(f"{op} takes {', '.join(DTYPES)}, not {input.dtype}.")


def refuse_vectors(input, shape, **vectors):
    """Raises where weight, bias or a statistic has another shape or device than the input gives it."""
    for name, vector in vectors.items():
        if vector is not None and tuple(vector.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(vector.shape)}, expected {shape}.")
        if vector is not None and vector.device != input.device:
            raise ValueError(f"{name} is on {vector.device}, input on {input.device}.")


def normalized_columns(op, input, normalized_shape, longest_row=LONGEST_ROW, **vectors):
    """Returns the number of columns, or raises before the first launch what the kernels cannot take."""
    shape = tuple(normalized_shape)
    refuse_dtype(op, input)
    if not shape or tuple(input.shape[-len(shape) :]) != shape:
        raise ValueError(f"normalized_shape {shape} is not the end of shape {tuple(input.shape)}.")
    refuse_vectors(input, shape, **vectors)
    if math.prod(shape) > longest_row:
        raise ValueError(f"Rows of more than {longest_row} columns are not supported.")
    return math.prod(shape)


# ---- Depths of the trees ----


def grouped_depth(columns, tile_of):
    """Additions that a leaf of a sum meets at most, tiles being the same in every dtype."""
    block, warps = tile_of(columns)
    return tile(block=block, threads=32 * warps, element_bytes=2).depth(columns)


def row_depth(columns):
    """Additions that a leaf of a row's sum meets at most, in whichever dtype."""
    sizes = [getattr(torch, dtype) for dtype in DTYPES]
    tiles = [(*row_tile(columns, dtype), dtype.itemsize) for dtype in sizes]
    return max(tile(block=b, threads=32 * w, element_bytes=size).depth(columns) for b, w, size in tiles)


def column_depth(rows):
    """Additions that a leaf of a column's sum meets at most: within its chunk, then over the parts."""
    return triton.cdiv(rows, CHUNKS[0]) - 1 + joined_depth(min(rows, CHUNKS[1]))


def joined_depth(count):
    """Additions that a part meets at most, of so many: step by step in its lane, then over the tile's parts.

    A lane of four warps holds 16 values of a tile. Those of one column are added in turn, at most 16, and
    the lanes by halves.
    """
    at_once, block = MANY
    held = at_once * block // 128
    return triton.cdiv(count, at_once) - 1 + held - 1 + (at_once // held).bit_length() - 1


TREES = Trees(
    statistics=tree(depth=row_depth),
    row_gradients=tree(depth=row_depth),
    columns=tree(depth=column_depth),
)
