"""Problems for the oracle's tests: ordinary rows, and the hostile ones that its proofs single out."""

import numpy as np

from verifier.oracle.rows.problem import RowProblem

DTYPES = ("float16", "float32", "float64")


def rounded(values, dtype):
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(dtype).astype(np.float64)


def ordinary(dtype, *, seed=0, rows=3, columns=21, mean=0.0, eps=1e-5, **changes):
    random = np.random.default_rng(seed)

    def draw(*shape):
        return rounded(random.normal(size=shape), dtype)

    fields = {
        "input": rounded(mean + random.normal(size=(rows, columns)), dtype),
        "weight": draw(1, columns),
        "bias": draw(1, columns),
        "grad_output": draw(rows, columns),
        "eps": eps,
    }
    return RowProblem(**(fields | changes))


def hostile(seed=0):
    """Yield (name, problem) with rows that break careless oracles; all within the fast rungs' window."""
    random = np.random.default_rng(seed)
    n = 13
    signs = random.choice([-1.0, 1.0], size=(2, n))
    small = rounded(random.normal(size=(2, n)), "float32")

    def make(x, **changes):
        fields = {"grad_output": small, "weight": small[:1], "bias": small[1:], "eps": 1e-5}
        return RowProblem(input=np.asarray(x, dtype=np.float64), **(fields | changes))

    yield "constant rows", make(np.full((2, n), 1.1))
    yield "constant rows without eps are refused", make(np.ones((2, n)), eps=0.0)
    yield "zero rows", make(np.zeros((2, n)))
    yield "mean 2**50 times std, float64", make(2.0**50 + np.round(random.normal(size=(2, n)) * 8) / 8)
    yield "mean 2**20 times std", make(rounded(2.0**20 + random.normal(size=(2, n)), "float32"))
    yield (
        "exact cancellation",
        make(
            np.tile([1.0, -1.0], (2, n))[:, : 2 * (n // 2)],
            weight=None,
            bias=None,
            grad_output=np.tile([1.0, 1.0], (2, n))[:, : 2 * (n // 2)],
        ),
    )
    yield "subnormal float32", make(signs * random.integers(1, 99, size=(2, n)) * 2.0**-149, eps=0.0)
    yield (
        "subnormal float32 everywhere",
        make(
            signs * 2.0**-149,
            eps=1e-45,
            weight=small[:1] * 0 + 2.0**-149,
            grad_output=signs[::-1] * 2.0**-149,
        ),
    )
    yield "exponents -100 to 100", make(signs * 2.0 ** random.integers(-100, 101, size=(2, n)))
    yield (
        "exponents everywhere",
        make(
            signs * 2.0 ** random.integers(-100, 101, size=(2, n)),
            weight=2.0 ** random.integers(-100, 101, size=(2, n)),
            grad_output=signs[::-1] * 2.0 ** random.integers(-100, 101, size=(2, n)),
        ),
    )
    yield (
        "largest float32",
        make(signs * 3.3e38, grad_output=signs[::-1] * 3.3e38, weight=small[:1] * 0 + 3.3e38),
    )
    yield "zero weights", make(small, weight=np.zeros((1, n)))
    yield "one outlier", make(np.eye(2, n) * 1e30)
    yield "one column", make(small[:, :1], weight=None, bias=None, grad_output=small[:, 1:2])
    yield "negative eps", make(small * 100, eps=-0.5)
    yield "grad_input exactly zero", make(small, weight=None, grad_output=np.ones((2, n)))
    weight = random.normal(size=(1, n))
    yield "null-space gradient, float64", make(small, weight=weight, grad_output=np.pi / weight + 0 * small)
    yield "N = 5 row of the proofs", five()


def five():
    """Products underflow here: without its floor the radius would be 0, the error 2**-1074."""
    return RowProblem(
        input=np.array([[2.0**127, -(2.0**127), 2.0**-149, 0.0, 0.0]]),
        grad_output=np.array([[0.0, 0.0, 2.0**-149, -(2.0**-149), 0.0]]),
        weight=np.full((1, 5), 2.0**-149),
        eps=0.0,
    )


def scalable(seed=0):
    """Yield (name, problem) of float64 rows outside the window that a power of two brings back."""
    random = np.random.default_rng(seed)
    x, grad = (random.normal(size=(2, 7)) for _ in range(2))
    weight = random.normal(size=(1, 7))

    def make(values, **changes):
        return RowProblem(**({"input": values, "grad_output": grad, "weight": weight, "eps": 1e-5} | changes))

    yield "1e300", make(x * 1e300)
    yield "1e-300", make(x * 1e-300, eps=0.0)
    yield "1e-100 with a little eps", make(x * 1e-100, eps=1e-201)
    yield "1e-100 with much eps", make(x * 1e-100, eps=1e-40)
    limit = np.finfo(np.float64).max
    yield "largest", make(np.where(x > 0, limit, -limit))
    yield "largest and smaller", make(x / np.abs(x).max() * limit)
    yield "subnormal", make(x * 2.0**-1022, grad_output=grad * 1e-9, eps=0.0)
    yield "kappa 1e12 at 1e200", make((1.0 + x * 1e-12) * 1e200)
    yield "one row of three", make(np.concatenate([x, x[:1] * 1e200]), grad_output=x[[0, 1, 0]])
    given = {"mean": np.array([[1e300], [-2e299]]), "rstd": np.array([[1e-300], [3e-301]])}
    yield "given statistics", make(x * 1e300, **given)
    running = {"mean": np.array([[1e-200], [0.0]]), "variance": np.array([[3e-300], [1e-308]])}
    yield "running statistics", make(x * 1e-150, eps=1e-300, **running)


def beyond_window(seed=0):
    """Yield (name, problem) whose last row only Arb can do: too wide, or a result far from its terms."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(2, 7))
    grad = random.normal(size=(2, 7))
    yield "1e-300 with eps", RowProblem(input=x * 1e-300, grad_output=grad, eps=1e-5)
    yield "huge weight", RowProblem(input=x * 1e300, weight=1e60 * x[:1], grad_output=grad, eps=1e-5)
    yield (
        "mixed",
        RowProblem(input=x * 10.0 ** random.integers(-290, 290, size=(2, 7)), grad_output=grad, eps=1e-5),
    )
    wide = np.concatenate([x, x[:1] * np.array([1e200, *[1.0] * 6])])
    yield "one row of three", RowProblem(input=wide, grad_output=x[[0, 1, 0]], eps=1e-5)
