"""The benchmark of kernels counts bytes as tensors have them, calls everyone rightly and renders tables."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from verifier import machine
from verifier.subjects.load_file import builtin_files, load_subjects

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
COPY = 2e12  # bytes per second of the pretended device


@pytest.fixture(autouse=True)
def _benchmarks_on_the_path(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield
    for name in ("kernels", "kernel_contenders", "kernel_grids", "kernel_report"):
        sys.modules.pop(name, None)


def small(op, direction, dtype="float32"):
    from kernel_grids import Work

    image = (2, 32, 2, 2) if op in {"batch_norm", "group_norm"} else ()
    rows, columns = {"batch_norm": (32, 8), "group_norm": (64, 4)}.get(op, (256, 64))
    fixed = {"system": "S2", "op": op, "direction": direction, "dtype": dtype}
    return Work(rows=rows, columns=columns, image=image, **fixed)


OPS = ("layer_norm", "rms_norm", "batch_norm", "group_norm", "softmax", "log_softmax")
FORWARD_OPS = (*OPS, "add_layer_norm")


def corrected():
    from kernel_contenders import UNMEASURED

    subjects = [s for file in builtin_files() for s in load_subjects(file) if s.op not in UNMEASURED]
    return {s.name for s in subjects if s.language != "torch" and not s.known_defects}


class TestGrids:
    def test_they_are_the_published_ones(self):
        from kernel_grids import GRIDS

        first, second, third, fourth = (grid() for grid in GRIDS.values())
        assert {w.rows for w in first} == {4096}
        assert {w.dtype for w in first} == {"float16"}
        assert all(w.columns % 512 == 0 and 2 <= w.columns // 512 <= 31 for w in first)
        rows = [w for w in second if not w.image]
        assert (min(w.rows for w in rows), max(w.rows for w in rows)) == (128, 4096)
        assert (min(w.columns for w in rows), max(w.columns for w in rows)) == (256, 8192)
        assert {w.rows for w in third} == {49152}
        assert {w.columns for w in third} == {2**k for k in range(5, 16)}
        assert [(w.rows, w.columns, w.dtype) for w in fourth] == [(1024, 2048, "float32")]

    def test_an_image_is_its_matrix(self):
        from kernel_grids import GRIDS, points

        for work in points(tuple(GRIDS)):
            if work.image:
                assert torch.Size(work.image).numel() == work.rows * work.columns

    def test_a_short_run_sees_every_grid(self):
        from kernel_grids import GRIDS, points

        chosen = points(tuple(GRIDS))
        coarse = [w.coarse for w in chosen]
        assert coarse == sorted(coarse, reverse=True)
        assert {w.system for w in chosen if w.coarse} == set(GRIDS)
        assert len(chosen) == len(set(chosen)) == sum(len(grid()) for grid in GRIDS.values())

    def test_every_corrected_kernel_is_measured(self):
        from kernel_contenders import contenders
        from kernel_grids import GRIDS, points

        seen = {c.name for work in points(tuple(GRIDS)) if work.coarse for c in contenders(work, ())}
        assert corrected() <= seen


class TestBytes:
    @pytest.mark.parametrize("dtype", ["float16", "float32"])
    @pytest.mark.parametrize("op", FORWARD_OPS)
    def test_forward_is_every_tensor_once(self, op, dtype):
        from kernel_contenders import arguments
        from kernel_grids import least_bytes

        work = small(op, "forward", dtype)
        given = arguments(work, "cpu")
        names = ("input", "residual", "weight", "bias")
        tensors = [given["input"], *(given[n] for n in names if n in given)]  # the output is like the input
        statistics = {"softmax": 0, "log_softmax": 0, "rms_norm": 1}.get(op, 2) * work.rows * 4
        assert least_bytes(work) == sum(t.numel() * t.element_size() for t in tensors) + statistics

    @pytest.mark.parametrize("op", OPS)
    def test_backward_is_every_tensor_once(self, op):
        from kernel_contenders import arguments, leaves
        from kernel_grids import least_bytes

        work = small(op, "backward")
        given = arguments(work, "cpu")
        read = [given[n] for n in ("input", "weight", "grad_output") if n in given]
        tensors = [*read, *(given[n] for n in leaves(given))]  # what is written has the shape of its leaf
        statistics = {"softmax": 0, "log_softmax": 0, "rms_norm": 1}.get(op, 2) * work.rows * 4
        assert least_bytes(work) == sum(t.numel() * t.element_size() for t in tensors) + statistics

    def test_sets_exceed_twice_the_cache_unless_memory_ends(self):
        from kernel_grids import headline_bytes

        from kernels import MOST_BYTES, number_of_sets

        work = small("layer_norm", "forward")
        cache = 10 * headline_bytes(work)
        assert number_of_sets(work, cache) == 20
        assert number_of_sets(work, MOST_BYTES) == 256
        assert number_of_sets(work, 1) == 1


class TestCalls:
    @pytest.mark.parametrize("op", OPS)
    def test_torch_is_called_by_the_ops_own_names(self, op):
        from kernel_contenders import arguments, contenders

        from kernels import step

        work = small(op, "backward")
        torchs = next(c for c in contenders(work, ()) if c.name == "torch")
        given = arguments(work, "cpu")
        gradients = step(work, torchs, given)()
        assert gradients[0].shape == given["input"].shape
        assert all(g.isfinite().all() for g in gradients)

    @pytest.mark.parametrize(
        ("op", "direction"),
        [(op, d) for op in FORWARD_OPS for d in ("forward", "backward") if d == "forward" or op in OPS],
    )
    def test_our_kernels_are_called_rightly(self, op, direction):
        from kernel_contenders import arguments, contenders

        from kernels import step

        work = small(op, direction)
        found = {}
        with machine.session():
            for contender in contenders(work, ()):
                if contender.kind == "corrected":
                    found[contender.name] = step(work, contender, arguments(work, "cpu"))()
        assert set(found) <= corrected()
        assert found
        for result in found.values():
            first = result[0] if isinstance(result, tuple) else result
            assert first.shape == torch.Size(work.image or (work.rows, work.columns))
            assert first.isfinite().all()

    def test_a_fused_kernel_is_measured_without_what_its_subject_does_in_torch(self, monkeypatch):
        from kernel_contenders import FUSED, arguments, contenders

        work = small("add_layer_norm", "forward", "float16")
        given = arguments(work, "cpu")
        named = {c.name: c for c in contenders(work, ())}
        assert set(named) == {*FUSED, "torch"}
        assert not set(FUSED) & {c.name for c in contenders(small("layer_norm", "forward"), ())}
        path = next(f for f in builtin_files() if f.stem == "layer_norm_residual_cuda")
        (subject,) = load_subjects(path)

        def no_part_of_the_kernel(input):
            raise AssertionError("the operands were made from one tensor")

        monkeypatch.setitem(subject.function.__globals__, "split", no_part_of_the_kernel)
        with machine.session():
            output = named["layer_norm_residual_cuda"].call(given)
        assert output.dtype == torch.float16
        # The fused sum is not rounded: torch's unfused one differs from it, each element of it a little.
        assert not torch.equal(output, named["torch"].call(given))

    def test_the_raw_backward_is_called_with_statistics(self):
        from kernel_contenders import arguments, contenders

        from kernels import step

        work = small("layer_norm_backward", "backward")
        found = {c.name: c for c in contenders(work, ())}
        assert {"layer_norm_backward_cuda", "layer_norm_backward_published_thread_per_row_cuda"} <= set(found)
        with machine.session():
            for contender in found.values():
                gradients = step(work, contender, arguments(work, "cpu"))()
                assert [g.shape for g in gradients] == [(256, 64), (64,), (64,)]

    def test_a_package_that_is_absent_is_named_with_its_reason(self):
        from kernel_contenders import available

        usable, missing = available(("liger", "quack"))
        assert set(usable) | set(missing) == {"liger", "quack"}
        assert all("Error" in why for why in missing.values())


class TestCommand:
    def test_options(self, tmp_path):
        from kernels import parse

        options = parse(["--out", str(tmp_path), "--budget", "2m", "--systems", "S1,S4", "--with", "liger"])
        assert (options.budget, options.systems, options.with_) == (120.0, ("S1", "S4"), ("liger",))

    @pytest.mark.parametrize(
        "wrong", [["--budget", "soon"], ["--budget", "-1s"], ["--systems", "S9"], ["--with", "apex"], []]
    )
    def test_wrong_options_are_refused(self, wrong, tmp_path, capsys):
        from kernels import parse

        with pytest.raises(SystemExit) as ended:
            parse(wrong + (["--out", str(tmp_path)] if wrong else []))
        assert ended.value.code == 2
        assert capsys.readouterr().err

    def test_without_a_device_it_says_so(self, tmp_path, capsys, monkeypatch):
        from kernels import main

        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        assert main(["--out", str(tmp_path)]) == 2
        assert "no CUDA device" in capsys.readouterr().err
        assert not list(tmp_path.iterdir())


class TestRun:
    @pytest.fixture(autouse=True)
    def _pretended_device(self, monkeypatch):
        import kernels

        monkeypatch.setattr(kernels, "copy_bandwidth", lambda: COPY)
        monkeypatch.setattr(kernels, "contenders", lambda work, extra: [])
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def run(self, monkeypatch, measure, end=float("inf")):
        import kernels

        monkeypatch.setattr(kernels, "measure", measure)
        notes = []
        works = [small(op, "forward") for op in OPS]
        return *kernels.run(works, (), end, notes), notes

    def test_a_point_that_fails_costs_no_other(self, monkeypatch):
        def measure(work, found, notes):
            if work.op == "rms_norm":
                raise RuntimeError("out of memory")
            return [work.op]

        records, copies, reached, notes = self.run(monkeypatch, measure)
        assert records == [op for op in OPS if op != "rms_norm"]
        assert (reached, len(copies)) == (len(OPS) - 1, 2)
        assert ["rms_norm" in note and "out of memory" in note for note in notes] == [True]

    def test_a_lost_device_ends_the_run_with_what_there_is(self, monkeypatch):
        def measure(work, found, notes):
            if work.op == "batch_norm":
                monkeypatch.setattr(torch.cuda, "synchronize", broken)
                broken()
            return [work.op]

        def broken():
            raise RuntimeError("an illegal memory access")

        records, _, reached, notes = self.run(monkeypatch, measure)
        assert records == ["layer_norm", "rms_norm"]
        assert reached == 2
        assert "lost" in notes[-1]

    def test_the_clock_ends_the_run(self, monkeypatch):
        records, _, reached, _ = self.run(monkeypatch, lambda *_: [1], end=0.0)
        assert (records, reached) == ([], 0)


def recorded(work, contender, kind, fraction, *, graph=True):
    from dataclasses import asdict

    from kernel_grids import headline_bytes, least_bytes

    seconds = least_bytes(work) / (fraction * COPY)
    rest = {"least_bytes": least_bytes(work), "headline_bytes": headline_bytes(work)}
    times = {"seconds": seconds, "rounds": [seconds], "sets": 3, "graph": graph}
    return {**asdict(work), "contender": contender, "kind": kind, **times, **rest}


def with_few_panels(document):
    """Return the document with two panels of each grid: a plot takes half a second for each."""
    panels = {}
    for record in document["records"]:
        of_system = panels.setdefault(record["system"], {})
        panel = tuple(record[name] for name in ("op", "direction", "dtype"))
        if len(of_system) < 2 or panel in of_system:
            of_system.setdefault(panel, []).append(record)
    return {**document, "records": [r for found in panels.values() for rs in found.values() for r in rs]}


def pretended():
    from kernel_grids import GRIDS, points

    records = []
    for work in points(tuple(GRIDS)):
        if work.op == "layer_norm_backward":
            for number, step in enumerate(("thread_per_row", "warp_per_row", "warp_shared", "block_per_row")):
                name = f"layer_norm_backward_published_{step}_cuda"
                records.append(recorded(work, name, "published", (0.01, 0.5, 0.4, 0.25)[number]))
            continue
        records.append(recorded(work, "torch", "peer", 0.25, graph=work.columns != 1024))
        names = {"layer_norm": "layer_norm_welford_cuda", "rms_norm": "rms_norm_triton"}
        records.append(recorded(work, names.get(work.op, work.op + "_triton"), "corrected", 0.75))
    return {
        "device": "Pretended device",
        "l2_bytes": 50 * 2**20,
        "versions": {"torch": "0"},
        "copy_bytes_per_second": COPY,
        "copies": [COPY, COPY * 1.01],
        "seconds": 1.0,
        "notes": ["torch.compile is not measured: no compiler"] + [f"note {i}" for i in range(60)],
        "records": records,
    }


class TestReport:
    def test_at_most_eight_files_are_written(self, tmp_path):
        from kernel_report import write

        files = write(tmp_path / "new", with_few_panels(pretended()))
        assert sorted(f.name for f in (tmp_path / "new").iterdir()) == sorted(f.name for f in files)
        assert len(files) <= 8
        assert {f.suffix for f in files} == {".md", ".json", ".png"}
        for file in files:
            if file.suffix == ".png":
                assert file.read_bytes().startswith(b"\x89PNG")
        assert json.loads((tmp_path / "new" / "kernels.json").read_text())["device"] == "Pretended device"

    def test_the_tables_show_fractions_and_mark_what_was_not_captured(self):
        from kernel_report import page

        text = "\n".join(page(pretended()))
        assert "| rows x columns | rms_norm_triton | torch |" in text
        assert "| 4096 x 2048 | 0.75 | 0.25 |" in text
        assert "| 4096 x 1024 | 0.75 | 0.25* |" in text
        assert "2000 GB/s" in text
        assert "torch.compile is not measured: no compiler" in text
        assert "and 21 more" in text

    def test_the_page_says_at_which_shapes_torch_compile_was_measured(self):
        from kernel_grids import first
        from kernel_report import coverage

        compiled = [recorded(work, "torch.compile", "peer", 0.5) for work in first() if work.coarse]
        lines = list(coverage(pretended()["records"] + compiled))
        (line,) = [line for line in lines if line.startswith("| S1 |")]
        assert "k = 2 ... 31 (30 widths)" in line
        assert "4096 x 1024, 2048, 3072, 4096, 6144, 8192, 10240, 12288, 14336, 15872 (10)" in line
        assert line.endswith("| 4096 x 1024, 4096, 8192, 15872 (4) |")
        (line,) = [line for line in lines if line.startswith("| S4 |")]
        assert line.endswith("| 1024 x 2048 | none |")

    def test_shapes_that_are_no_product_are_all_named(self):
        from kernel_report import shapes

        assert shapes({(1, 2), (1, 4), (3, 2)}) == "1 x 2; 1 x 4; 3 x 2 (3)"
        assert shapes({(1, 2), (1, 4), (3, 2), (3, 4)}) == "1, 3 x 2, 4 (4)"

    def test_the_published_comparisons_are_repeated(self):
        from kernel_grids import PUBLISHED
        from kernel_report import headlines

        lines = list(headlines(pretended()["records"]))
        text = "\n".join(lines)
        assert all(entry.claim in text and entry.source in text for entry in PUBLISHED)
        assert "rms_norm_triton float16 3.0 times torch" in text
        assert "float32: 3.00 times torch, ahead at 11 of 11 N" in text
        assert "thread_per_row" in text
        assert "(50.00 x v2)" in text
        assert "not measured in this run" not in text
        assert "\n".join(headlines([])).count("not measured in this run") == 4

    def test_the_page_names_where_a_peer_is_faster(self):
        from kernel_grids import Work
        from kernel_report import beside_peers

        work = Work(system="S1", op="layer_norm", direction="forward", dtype="float16", rows=4096, columns=0)
        records = [
            recorded(replace(work, columns=columns), name, kind, share)
            for columns, kernel, other in (
                (64, 0.5, 0.5),
                (2048, 0.49, 0.5),
                (4096, 0.4, 0.5),
                (8192, 0.9, 0.5),
            )
            for name, kind, share in (
                ("layer_norm_slow_triton", "corrected", 0.1),
                ("layer_norm_triton", "corrected", kernel),
                ("published_series", "published", 0.95),
                ("torch", "peer", other),
            )
        ]
        text = "\n".join(beside_peers(records))
        assert "At 2 of 4 shapes" in text
        assert "at 1 slower by at most 3%, and at 1 by more" in text
        (line,) = [line for line in text.splitlines() if line.startswith("| S1")]
        assert "4096 x 4096 | 0.80 | layer_norm_triton" in line
        assert "torch" in line
        assert "Not measured" in "\n".join(beside_peers([]))
