"""Writes the generated reference.

`python -m verifier.commands.reference_pages FOLDER`; `--check` compares only.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from strategies.hazards import discover
from verifier.audit.declaration_text import tree_text
from verifier.bounds.variance import algorithms
from verifier.bounds.variance.options import option_rules
from verifier.cases.hazards import joint_hazards
from verifier.checks import checks
from verifier.commands import bounds_page as bounds_by_algorithm
from verifier.execution.backends import backends
from verifier.ops import ops
from verifier.records import witness
from verifier.records.case import Case
from verifier.records.subject import INPUT, KnownDefect, Subject
from verifier.subjects.load_file import builtin_files, load_subjects

FEW = 4
"""Elements of a tensor up to which a case is told with its numbers."""
_MANGLED = re.compile(r"\b_Z(\d+)(\w+)")
"""A C++ name as it stands in PTX: the length of the function's name, then the name and its types."""


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
        yield "| form | forward | backward |\n|---|---|---|"
        for form in op.forms.values():
            yield f"| {form.name} | {_first_line(form.forward)} | {_first_line(form.backward)} |"


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
        yield f"| {name} | {module.summary} | {', '.join(module.languages)} |"


def kernels_page() -> Iterator[str]:
    """Yield the page of built-in subjects: source, claim, known defects with the smallest case of each."""
    yield "# Built-in kernels\n"
    yield (
        "Kernels as published have the defects of their documents, which the verifier finds by itself. "
        "Corrected kernels are the same algorithms mended, and pass every check. "
        "The control group is what torch itself computes.\n"
    )
    found = [s for file in builtin_files() for s in load_subjects(file)]
    yield "| subject | op | source | claim | dtypes | what it is |\n|---|---|---|---|---|---|"
    for s in found:
        words = _cell(s.summary or _file_line(s.path))
        source = _cell(source_of(s))
        yield f"| {s.name} | {s.op} | {source} | {claim_of(s)} | {', '.join(s.dtypes)} | {words} |"
    yield "\n## Sources\n"
    yield "Every kernel is written afresh from what its document describes.\n"
    yield "| document | author or site | address that it gives | licence |\n|---|---|---|---|"
    for title, author, url, licence in dict.fromkeys(
        (s.source.title, s.source.author, s.source.url, s.source.licence) for s in found if s.source
    ):
        yield f"| {_cell(title)} | {_cell(author)} | {url or 'none'} | {_cell(licence)} |"
    yield "\n## Known defects, each with the smallest case that the verifier found"
    for s in (s for s in found if s.known_defects):
        yield f"\n### {s.name}\n"
        yield "| check | what is wrong, and where | smallest case | what is seen there |\n|---|---|---|---|"
        for defect in s.known_defects:
            yield f"| {defect.check} | {_cell(defect.reason)} | {' | '.join(_witness(s, defect))} |"


def source_of(subject: Subject) -> str:
    """Return the document that a subject is taken from and what was changed, in a few words."""
    return subject.source.summary if subject.source else "torch's own operators; control"


def claim_of(subject: Subject) -> str:
    """Return what a subject claims, in a few words: variance, form, format of the sums, trees, domain."""
    claim, domain = subject.claim, subject.domain
    over_columns = (*((claim.trees.statistics,) if claim.variance else ()), claim.trees.row_gradients)
    trees = dict.fromkeys(map(tree_text, over_columns))
    form = claim.formula if isinstance(claim.formula, str) else getattr(claim.formula, "name", None)
    words = [
        f"variance {claim.variance}" if claim.variance else "statistics given",
        *((f"form {form}",) if form else ()),
        "sums in the input's format" if claim.accumulates == "input" else f"sums in {claim.accumulates}",
        f"tree: {', '.join(trees)}",
    ]
    if domain is not None and domain.max_kappa is not None:
        words.append(f"kappa to {domain.max_kappa:g}")
    if domain is not None and domain.max_abs is not None:
        words.append(f"values to {domain.max_abs:g}")
    if domain is not None and domain.max_columns is not None:
        words.append(f"columns to {domain.max_columns}")
    if subject.parameter_dtypes != (INPUT,):
        words.append(f"parameters in {' or '.join(subject.parameter_dtypes)}")
    if subject.residual_dtypes != (INPUT,):
        words.append(f"residual in {' or '.join(subject.residual_dtypes)}")
    return "; ".join(words)


def _witness(subject: Subject, defect: KnownDefect) -> tuple[str, str]:
    """Return the smallest case of a defect, and what was seen there."""
    for dtype in subject.dtypes:
        path = witness.stored(subject, defect, dtype)
        if path is not None:
            case, document = witness.load(path)
            said, seen = plain_message(document["message"]), document.get("seen", "")
            seen = f"{said.removesuffix(':')}: {seen}" if seen else said
            return _cell(f"{case_text(subject, case)}, on {document['backend']}"), _cell(seen)
    if defect.backends and not {"machine", "eager"} & set(defect.backends):
        return "", f"not observable without a device (backend {', '.join(defect.backends)})"
    return "", "none stored"


def case_text(subject: Subject, case: Case) -> str:
    """Return a case in words: extents, dtype, layouts, what is missing, and numbers where they are few."""
    words = [f"{case.rows} x {case.columns}", case.dtype]
    for name, tensor in case.tensors.items():
        if name not in subject.signature and name != "grad_output":
            continue
        layout = case.layouts.get(name)
        settings = layout.to_json() if layout is not None else {}
        placed = "".join(f" {key}={value}" for key, value in settings.items())
        if tensor is None:
            words.append(f"no {name}")
        elif 0 < tensor.numel() <= FEW:
            words.append(f"{name} [{', '.join(f'{v:.4g}' for v in tensor.flatten().tolist())}]{placed}")
        elif placed:
            words.append(f"{name}{placed}")
    return ", ".join(words)


def plain_message(message: str) -> str:
    """Return a message with the kind of an error named once and C++ names as they are written."""
    parts = message.replace("\n", " ").split(": ")
    kinds = [part.replace("_", "").lower() for part in parts]
    kept = [
        part
        for part, kind, next_kind in zip(parts, kinds, [*kinds[1:], ""], strict=True)
        if kind != next_kind
    ]
    return _MANGLED.sub(lambda found: found[2][: int(found[1])], ": ".join(kept))


def _file_line(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    return text.split('"""')[1].strip().split("\n")[0] if '"""' in text else ""


def _first_line(thing: object) -> str:
    return _cell((inspect.getdoc(thing) or "").split("\n\n")[0])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def bounds_page() -> Iterator[str]:
    """Yield the page of bounds by algorithm, with what the kernels did in the machine."""
    yield from bounds_by_algorithm.page()


PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "checks": checks_page,
    "ops": ops_page,
    "variance": variance_page,
    "hazards": hazards_page,
    "backends": backends_page,
    "kernels": kernels_page,
    "bounds-by-algorithm": bounds_page,
}


def proved_part(text: str) -> str:
    """Return a page without what was observed, which another compiler may change in its last digit."""
    return re.sub(r"((?:no theorem|\d\.\de[-+]\d\d)), \d\.\de[-+]\d\d", r"\1", text)


def is_current(name: str, kept: str) -> bool:
    """Return whether a page is what would be written; observed errors are not looked at."""
    if name != "bounds-by-algorithm":
        return kept == _text(PAGES[name]())
    return proved_part(kept) == _text(bounds_by_algorithm.page(run=False))


def _text(lines: Iterator[str]) -> str:
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the pages, or say which of them are out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", action="store_true", help="change nothing; status 1 if a page is stale")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    stale = []
    for name, page in PAGES.items():
        path = options.folder / f"{name}.md"
        if not path.is_file() or not is_current(name, path.read_text(encoding="utf-8")):
            stale.append(path.name)
            if not options.check:
                path.write_text(_text(page()), encoding="utf-8")
    if options.check and stale:
        command = f"python -m verifier.commands.reference_pages {options.folder}"
        print(f"out of date: {', '.join(stale)}; run {command}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
