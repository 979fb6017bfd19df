"""Make the pictures of the README: the head of a report, and errors against kappa under their bounds.

    python docs/pictures/make.py [--report report.json] [--out FOLDER] [--dtype float32]

Without a report the kernel of the README's pictures is audited, which takes some minutes. The head needs
Chromium and playwright; the other picture needs neither.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from chromium import chromium  # noqa: E402

from verifier.audit.report.json_parts import Document, parts  # noqa: E402
from verifier.commands.report.figures import error_against_kappa  # noqa: E402
from verifier.commands.report.files import write_report  # noqa: E402
from verifier.commands.report.html import TEMPLATES  # noqa: E402

KERNEL = ROOT / "kernels" / "layer_norm_two_pass_triton.py"
DTYPES = ("float16", "bfloat16", "float32")
HEAD, ERRORS = "report-head.png", "error-against-kappa.svg"
WIDTH = 860
"""CSS pixels of the head, which is drawn with two pixels for each."""
COLOURS = 64


def audited(folder: Path) -> Document:
    """Audit the kernel of the pictures for a release; return the report."""
    chosen = [word for dtype in DTYPES for word in ("--dtype", dtype)]
    words = ["audit", str(KERNEL), *chosen, "--release", "--certify", "--report", str(folder)]
    command = [sys.executable, "-m", "verifier", *words, "--findings", str(folder / "findings")]
    subprocess.run(command, cwd=ROOT, check=True)  # noqa: S603 (our own command)
    found: Document = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return found


def errors_picture(measured: Document) -> str:
    """Return the figure of a page as a file of its own: on white, in the colours of the light scheme."""
    figure = error_against_kappa(measured, "output", "figure")
    if not figure:
        raise SystemExit("the report has no errors of `output` to draw")
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    light = dict(re.findall(r"(--[\w-]+): ([^;]+);", style.split("}", 1)[0]))
    drawn = re.sub(r"var\((--[\w-]+)\)", lambda found: light[found[1]].replace('"', "'"), figure)
    _, _, width, height = re.findall(r"[\d.]+", drawn[drawn.index("viewBox=") :])[:4]
    paper = f'<rect width="{width}" height="{height}" fill="{light["--paper"]}"/>'
    head, body = drawn.split(">", 1)
    return f'{head} width="{width}pt" height="{height}pt">{paper}{body}\n'


def head_picture(page: Path) -> bytes:
    """Return what stands on top of a page as PNG: all above its errors."""
    from PIL import Image

    with chromium() as browser:
        shown = browser.new_page(viewport={"width": WIDTH, "height": 2000}, device_scale_factor=2)
        shown.goto(page.as_uri())
        end = shown.evaluate(
            "document.querySelector('main section:nth-of-type(2)').getBoundingClientRect().top"
        )
        drawn = shown.screenshot(clip={"x": 0, "y": 0, "width": WIDTH, "height": end})
    written = io.BytesIO()
    Image.open(io.BytesIO(drawn)).convert("RGB").quantize(COLOURS).save(written, "PNG", optimize=True)
    return written.getvalue()


def main(words: Sequence[str] | None = None) -> None:
    """Make both pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--report", type=Path, help="the JSON of an audit of one kernel with --release")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="where pictures are written")
    parser.add_argument("--dtype", default="float32", help="whose errors are drawn")
    asked = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        told = json.loads(asked.report.read_text(encoding="utf-8")) if asked.report else audited(where)
        (measured,) = [one for one in parts(told["release"], "dtypes") if one["dtype"] == asked.dtype]
        (asked.out / ERRORS).write_text(errors_picture(measured), encoding="utf-8")
        _, page = write_report(told, where / "page")
        (asked.out / HEAD).write_bytes(head_picture(page))


if __name__ == "__main__":
    main()
