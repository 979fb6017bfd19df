"""Writes the generated reference: `python -m verifier.documentation FOLDER`; `--check` compares only."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from strategies.hazards import discover
from verifier.backends import backends
from verifier.checks import checks
from verifier.hazards import joint_hazards
from verifier.loading import builtin_files, load_subjects
from verifier.ops import ops
from verifier.subjects import KnownDefect, Subject
from verifier.variance import algorithms
from verifier.variance.options import option_rules


def checks_page() -> Iterator[str]:
    """Yield the page of checks."""
    yield "# Checks"
    for name, module in checks().items():
        yield f"\n## {name}\n"
        yield f"Demands: {module.DEMANDS}.\n"
        yield f"Why: {module.WHY}.\n"
        yield f"Catches: {', '.join(f'`{c}`' for c in module.CATCHES)} (in `tests/faulty_kernels`)."


def ops_page() -> Iterator[str]:
    """Yield the page of ops with their forms."""
    yield "# Ops"
    for name, op in ops().items():
        yield f"\n## {name}\n"
        yield f"{op.summary}.\n"
        optional = f" Optional: {', '.join(op.optional)}." if op.optional else ""
        yield f"Tensors: {', '.join(op.tensors)}.{optional}\n"
        yield "| form | forward |\n|---|---|"
        for form in op.forms.values():
            yield f"| {form.name} | {_first_line(form.forward)} |"


def variance_page() -> Iterator[str]:
    """Yield the page of variance algorithms."""
    yield "# Variance algorithms\n"
    yield "| name | theorems | computed variance never negative | options | what it is |"
    yield "|---|---|---|---|---|"
    for name, module in algorithms().items():
        never = "yes" if module.NONNEGATIVE else "no"
        theorems, named = ", ".join(module.THEOREMS), ", ".join(sorted(option_rules(name))) or "none"
        yield f"| {name} | {theorems} | {never} | {named} | {_first_line(module)} |"
    yield "\n## Options\n"
    yield "Given as `@subject(variance=..., variance_options={...})`.\n"
    yield "| option | of | values | default |\n|---|---|---|---|"
    for option, rule in sorted({o: r for n in algorithms() for o, r in option_rules(n).items()}.items()):
        of = ", ".join(n for n in algorithms() if option in option_rules(n))
        yield f"| {option} | {of} | {rule.metadata.get('wanted', 'any')} | {rule.default} |"


def hazards_page() -> Iterator[str]:
    """Yield the page of hazards, of one tensor and joint."""
    yield "# Hazards\n"
    yield "| hazard | what it is |\n|---|---|"
    for name, hazard in discover().items():
        yield f"| {name} | {_cell(hazard.description)} |"
    for name, joint in joint_hazards().items():
        yield f"| {name} (joint) | {_first_line(joint)} Aims at: {_cell(joint.AIMS_AT)}. |"


def backends_page() -> Iterator[str]:
    """Yield the page of backends."""
    yield "# Backends\n"
    yield "| backend | what runs there | languages |\n|---|---|---|"
    for name, module in backends().items():
        yield f"| {name} | {module.SUMMARY} | {', '.join(module.LANGUAGES)} |"


def kernels_page() -> Iterator[str]:
    """Yield the page of built-in subjects with their known defects."""
    yield "# Built-in kernels\n"
    subjects = [s for file in builtin_files() for s in load_subjects(file)]
    yield "| subject | op | language | variance | dtypes | what it is |\n|---|---|---|---|---|---|"
    for s in subjects:
        claim, words = s.claim.variance or "none", _cell(s.summary or _file_line(s.path))
        yield f"| {s.name} | {s.op} | {s.language} | {claim} | {', '.join(s.dtypes)} | {words} |"
    yield "\n## Known defects, each with the smallest case that the verifier found\n"
    yield "| subject | check | defect | minimal case |\n|---|---|---|---|"
    for s in subjects:
        for defect in s.known_defects:
            yield f"| {s.name} | {defect.check} | {_cell(defect.reason)} | {_witness(s, defect)} |"


def _witness(subject: Subject, defect: KnownDefect) -> str:
    for dtype in subject.dtypes:
        path = subject.witness_file(defect, dtype)
        if path.is_file():
            document = json.loads(path.read_text(encoding="utf-8"))
            shape = f"{document['rows']} x {document['columns']}, {dtype}, {document['backend']}"
            return f"{shape}: {_cell(document['message'])}"
    return "none stored"


def _file_line(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    return text.split('"""')[1].strip().split("\n")[0] if '"""' in text else ""


def _first_line(thing: object) -> str:
    return _cell((inspect.getdoc(thing) or "").split("\n\n")[0])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "checks": checks_page,
    "ops": ops_page,
    "variance": variance_page,
    "hazards": hazards_page,
    "backends": backends_page,
    "kernels": kernels_page,
}


def main() -> int:
    """Write the pages, or say which of them are out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", action="store_true", help="change nothing; status 1 if a page is stale")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    stale = []
    for name, page in PAGES.items():
        path, text = options.folder / f"{name}.md", "\n".join(page()) + "\n"
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(path.name)
            if not options.check:
                path.write_text(text, encoding="utf-8")
    if options.check and stale:
        print(f"out of date: {', '.join(stale)}; run python -m verifier.documentation {options.folder}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
