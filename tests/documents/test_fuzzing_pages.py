"""The pages on fuzzing say what works: a cluster is set up and used, arguments are drawn, as they show."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from dask_cluster import Cluster
from waiting import until

ROOT = Path(__file__).parents[2]
CLUSTER, FUZZ = (
    (ROOT / "docs" / "how-to" / f"{name}.md").read_text(encoding="utf-8") for name in ("cluster", "fuzz")
)
PORT = "8786"
DEMONSTRATED = set(re.findall(r'"(--\w+)"', (ROOT / "benchmarks" / "cluster_demo.py").read_text("utf-8")))
(DECLARATION,) = re.findall(
    r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
)


def commands(page):
    blocks = re.findall(r"^```\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


@pytest.fixture
def cluster(tmp_path, warm_python):
    pytest.importorskip("distributed", reason="dask.distributed is not installed")
    (tmp_path / "cluster").mkdir()
    made = Cluster(tmp_path / "cluster", warm_python)
    yield made
    made.close()


def test_a_cluster_is_set_up_and_used_as_the_page_says(cluster, tmp_path, warm_python):
    """With one worker for two and 25 cases for eight hours; units run in a process that the worker starts."""
    install, scheduler, worker, fuzz, *demonstrations = (
        [word.replace(PORT, str(cluster.port)) for word in words] for words in commands(CLUSTER)
    )
    assert install == ["pip", "install", "norm-verifier[distributed]"]
    for words in demonstrations:
        assert words[:2] == ["python", "benchmarks/cluster_demo.py"]
        assert {word for word in words if word.startswith("--")} <= DEMONSTRATED
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert any(one.startswith("distributed") for one in extras["distributed"])
    for words in (scheduler, worker):
        assert words.pop(0) == "dask"
    worker[worker.index("--nworkers") + 1] = "1"
    cluster.start(*scheduler)
    started = cluster.start(*worker)
    assert until(started.exists, seconds=30)
    (tmp_path / "my_kernel.py").write_text(DECLARATION)
    assert fuzz[:3] == ["norm-verifier", "fuzz", "my_kernel.py"]
    fuzz[fuzz.index("--budget") + 1] = "quick"
    ended = warm_python.run(
        "-m", "verifier", *fuzz[1:], "--check", "finite", "--dtype", "float32", folder=tmp_path
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"on 1 worker behind tcp://127.0.0.1:{cluster.port}" in ended.stdout
    assert (tmp_path / "fuzzing" / "journal.jsonl").read_text().count('"place"') == 1
    assert list((tmp_path / "fuzzing" / "corpus").rglob("*.json"))


def test_arguments_are_drawn_as_the_page_says(tmp_path, warm_python):
    (shown,) = re.findall(r"```python\n(.*?)```", FUZZ, re.DOTALL)
    (tmp_path / "mine.py").write_text(shown)
    ended = warm_python.run("mine.py", folder=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    wrong = shown.replace("return powers / powers", "return 0 * powers / 0 * powers")
    assert wrong != shown
    (tmp_path / "mine.py").write_text(wrong)
    ended = warm_python.run("mine.py", folder=tmp_path)
    assert ended.returncode == 1
    assert "test_no_probability_is_nan" in ended.stderr
