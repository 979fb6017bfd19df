"""The report as Markdown: nothing of it that a subject has written is taken for markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from verifier.audit.report.json_parts import Document, mapping, number, parts
from verifier.commands.report.html import changes, digits, main_steps, percent, ran
from verifier.commands.report.view import FindingGroup, SubjectView, headline, subject_views

_MARKS = re.compile(r"([\\`*_{}\[\]()#+\-.!|~@:$>])")
_SHOWN = 50
"""Kinds of findings and lines that are told of one subject at most."""
_MARK = {"good": "✅", "bad": "❌", "open": "❔"}


def markdown(document: Document, *, limit: int | None = None) -> str:
    """Return the report as Markdown; limit: bytes, beyond which the end is left out and said so."""
    blocks = list(_blocks(document))
    if limit is None:
        return "\n\n".join(blocks) + "\n"
    kept, room = [], limit - 200
    for block in blocks:
        room -= len(block.encode()) + 2
        if room < 0:
            kept.append("The rest is left out: there is no room for it here.")
            break
        kept.append(block)
    text = "\n\n".join(kept) + "\n"
    return text if len(text.encode()) <= limit else ""


def escaped(text: object) -> str:
    """Return text in which nothing is markup, on one line."""
    words = " ".join(str(text).split())
    words = words.replace("&", "&amp;").replace("<", "&lt;")
    return _MARKS.sub(r"\\\1", words)


def code(text: object) -> str:
    """Return text as a code span, whatever backticks are in it; it is for no table, whose bars part cells."""
    words = " ".join(str(text).split()) or "-"
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", words)), default=0))
    pad = " " if words.startswith("`") or words.endswith("`") else ""
    return f"{fence}{pad}{words}{pad}{fence}"


def _blocks(document: Document) -> Iterator[str]:
    views, head = subject_views(document), headline(document)
    many = f"{len(views)} kernels" if len(views) != 1 else escaped(views[0].name)
    yield f"# {_MARK[head.kind]} {escaped(head.word)}: {many}\n\n{escaped(head.text)}."
    if unmet := parts(document, "unmet"):
        yield "Required and not so:\n\n" + "\n".join(f"- {escaped(str(one['text']))}" for one in unmet)
    if len(views) != 1:
        yield _table(
            ("kernel", "op", "verdict", "dtypes", "findings"),
            (
                (
                    escaped(v.name),
                    escaped(v.about.get("op", "")),
                    f"{_MARK[v.headline.kind]} {escaped(v.headline.word)}",
                    ", ".join(f"{d} {_MARK[v.of_dtype(d).kind]}" for d in v.dtypes),
                    str(v.findings),
                )
                for v in views
            ),
        )
    for view in views:
        if len(views) == 1 or view.headline.kind != "good":
            yield from _subject(view, titled=len(views) != 1)
    yield from map(_library, parts(document, "libraries", missing=()))
    yield _ending(document)


def _subject(view: SubjectView, *, titled: bool) -> Iterator[str]:
    if titled:
        yield f"## {escaped(view.name)}"
    yield _table(
        ("dtype", "verdict", "worst error (ulp)", "certificates"),
        (
            (
                dtype,
                f"{_MARK[view.of_dtype(dtype).kind]} {escaped(view.of_dtype(dtype).word)}",
                digits(view.error(dtype)),
                view.certified(dtype),
            )
            for dtype in view.dtypes
        ),
    )
    for found in view.measured:
        yield from _measured(found)
    if view.certificates:
        yield "Certificates:\n\n" + "\n".join(map(_certificate, view.certificates))
    for group in view.groups[:_SHOWN]:
        yield _finding(group)
    if len(view.groups) > _SHOWN:
        yield f"And {len(view.groups) - _SHOWN} more kinds of findings."
    for one in view.reach:
        yield (
            f"Ran: of the functions {ran(one['functions'])}, of the loops more than once "
            f"{ran(one['loops'])}, of the wrapper's lines {ran(one['wrapper_lines'])}."
        )


def _measured(found: Document) -> Iterator[str]:
    title = f"### What {found['dtype']} costs"
    if found["refused"]:
        yield f"{title}\n\nNot measured: {escaped(found['refused'])}"
        return
    figures = parts(found, "figures")
    heads = ("output", "worst", "99.9 %", "mean", "signed", "bits lost", "bound", "kappa within 1, 4, 16 ulp")
    yield f"{title}\n\n" + _table(
        heads,
        (
            (
                escaped(one["output"]),
                *(digits(one[key]) for key in ("worst", "tail", "mean", "signed", "bits_lost")),
                digits(one["bound"], "no theorem"),
                ", ".join(digits(trust["kappa"], "none") for trust in parts(one, "trust")),
            )
            for one in figures
        ),
    )
    trusted = [
        f"- {escaped(one['output'])}: "
        + "; ".join(
            f"within {digits(trust['limit'])} ulp up to kappa {digits(trust['kappa'], 'none')}, "
            f"{digits(trust['columns'], 'no')} columns, magnitude {digits(trust['magnitude'], 'none')}"
            for trust in parts(one, "trust")
        )
        for one in figures
    ]
    yield "Domain of trust:\n\n" + "\n".join(trusted)
    yield f"Overflows from magnitude {digits(found['overflow'], 'none that was tried')}."
    lost = [
        f"- {escaped(one['output'])} at kappa {digits(at['kappa'])}: "
        + ", ".join(
            f"{stage['stage']} {percent(stage['share'])} ({code(stage['place'])})" for stage in main_steps(at)
        )
        for one in figures
        for at in parts(one, "lost")
    ]
    lost += [
        f"- rounding of the input at kappa {digits(one['kappa'])} moves {escaped(one['output'])} by up to "
        f"{digits(one['worst'])} ulp, whatever the kernel"
        for one in parts(found, "input_rounding")
    ]
    if lost:
        yield "Where its bits are lost:\n\n" + "\n".join(lost)
    what = changes(found)
    told = [f"- no proved bound changes with {', '.join(what.none)}"] if what.none else []
    told += [
        f"- {one['change']}, {escaped(one['output'])} at kappa {digits(one['kappa'])}: the proved bound is "
        f"{digits(one['changed'], 'none')} for {digits(one['declared'], 'none')} ulp"
        for one in what.some
    ]
    if told:
        yield "What other arithmetic would give:\n\n" + "\n".join(told)


def _certificate(one: Document) -> str:
    named = f"- {one['dtype']}"
    if one.get("rows"):
        named += f", {one['rows']} x {one['columns']} {'with gradients' if one['gradients'] else 'forward'}"
    if one["contradicted"]:
        return f"{named}: the verifier itself failed: certified, and yet {escaped(one['contradicted'])}"
    if "refused" in one:
        refused = mapping(one["refused"])
        return f"{named}: refused, not shown: {escaped(refused['stage'])}: {escaped(refused['why'])}"
    return f"{named}: certified for all inputs"


def _finding(group: FindingGroup) -> str:
    one = group.first
    source = mapping(one["source"])
    head = f"### ❌ {escaped(one['verdict'])} {escaped(one['check'])} {escaped(one['dtype'])}"
    lines = [head, "", escaped(one["message"]), ""]
    lines += [f"- {key}: {escaped(one[key])}" for key in ("cause", "meaning") if one[key]]
    place = f"{source['file']}:{source['line']}"
    lines.append(f"- source: {code(place)}")
    given = ", ".join(f"{name} {text}" for name, text in mapping(one["tensors"]).items() if text)
    lines.append(f"- minimal case: {one['rows']} x {one['columns']}, {escaped(one['hazard'])}; {code(given)}")
    lines += [f"- replay: {code(one['replay'])}"] if one["replay"] else []
    lines += [f"- also met {len(group.others)} times"] if group.others else []
    return "\n".join(lines)


def _library(one: Document) -> str:
    """Return what of a library was not audited; lists of names are lists of texts."""
    named = f"{escaped(one['distribution'])} {escaped(one['version'])}"
    left = [
        f"- no declaration reaches {escaped(module)}: {_names(found)}"
        for module, found in mapping(one["unreached"]).items()
    ]
    left += [
        f"- {escaped(subject)}: this version has no {_names(found)}"
        for subject, found in mapping(one["absent"]).items()
    ]
    return f"Of {named} not audited:\n\n" + "\n".join(left) if left else f"All norms of {named} are audited."


def _names(found: object) -> str:
    assert isinstance(found, list)
    return escaped(", ".join(map(str, found)))


def _ending(document: Document) -> str:
    named = mapping(document["versions"]).items()
    versions = ", ".join(f"{name} {version}" for name, version in named if version)
    return (
        f"Seed {document['seed']}, budget {escaped(document['budget'])}, "
        f"{number(document['seconds']):.0f} s, exit status {document['status']}; {escaped(versions)}."
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)
