"""Integers of sources: literals and what they come to, and those that a wrapper compares with."""

from checks_support import subject_of

from verifier.subjects.source_integers import MOST_OF_WRAPPER, literals, tabled_sizes, wrapper_sizes


def test_literals_are_integers_of_python_and_of_cuda_without_comments(tmp_path):
    python, cuda = tmp_path / "a.py", tmp_path / "a.cu"
    python.write_text("# 7\nX = 96\nY = True\nZ = 1.5\nV = X + 1\n")
    cuda.write_text("// 7\n/* 8\n9 */ int x = 96 + 1000;\n")
    assert literals([str(python), str(tmp_path / "none.py")]) == {96, 1}
    assert literals([str(cuda)]) == {96, 1000}


def test_products_sums_and_shifts_of_literals_are_integers_of_a_source(tmp_path):
    python = tmp_path / "a.py"
    python.write_text("A = 5 * 1024\nB = (1 << 11) + 3\nC = 7 << 1000\nD = 9 - 2 * 1.5\n")
    found = literals([str(python)])
    assert {5120, 2048, 2051, 7 << 21} <= found
    assert max(found) == 7 << 21


WRAPPER = """
import torch
from verifier import subject

LONG = 3 * 1024
OTHER = 777


@subject(op="softmax", language="torch", dtypes=("float32",))
def compares(input):
    columns = input.shape[-1]
    y = input + 5000
    if columns > LONG or columns % 96 == 0:
        y = y * 1
    return y if columns * 4 <= (1 << 16) else torch.softmax(input, -1)


def unused(x):
    return x > 8888
"""


def test_a_wrapper_compares_with_literals_of_its_statements_and_with_names_at_the_top(tmp_path):
    file = tmp_path / "compares.py"
    file.write_text(WRAPPER)
    assert wrapper_sizes(subject_of(file)) == (96, 3072, 65536)


def test_a_few_are_returned(tmp_path):
    file = tmp_path / "compares.py"
    more = "".join(f"    y = y if columns > {n} else y\n" for n in range(20, 40))
    file.write_text(WRAPPER.replace("    return y if", f"{more}    return y if"))
    assert len(wrapper_sizes(subject_of(file))) == MOST_OF_WRAPPER


def test_keys_of_dictionaries_that_may_be_lengths_are_returned_the_least_first(tmp_path):
    file = tmp_path / "compares.py"
    table = "{5 * 1024: (4096, False), 4096: 1, 3: 2, 'a': 5000, 2560: {96: 1}, **{7168: 1, 1 << 21: 2}}"
    file.write_text(WRAPPER.replace("LONG =", f"TILES = {table}\nLONG ="))
    assert tabled_sizes(subject_of(file)) == (96, 2560, 5120, 7168)
