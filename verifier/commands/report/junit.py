"""The report as JUnit XML: a test case for each line, and one for each demand that is not met."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable

from verifier.audit.report.json_parts import Document, number, parts
from verifier.records.verdict import Verdict

_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 has no way to write. Source: XML 1.0 (fifth edition), production 2 (Char)."""


def junit_xml(document: Document) -> str:
    """Return the report as JUnit XML; what decided nothing is skipped, never passed."""
    root = ET.Element("testsuites", name="norm-verifier")
    by_subject: dict[str, list[Document]] = {}
    for line in parts(document, "lines"):
        by_subject.setdefault(str(line["subject"]), []).append(line)
    findings = parts(document, "findings")
    for name, lines in by_subject.items():
        _suite(root, name, [_case(line, findings) for line in lines])
    unmet = [str(one["text"]) for one in parts(document, "unmet")]
    errors, unusable = (_texts(document, key) for key in ("errors", "unusable"))
    demands = [_element("requirements", text, "failure", text) for text in unmet]
    demands += [_element("verifier", text, "error", text) for text in (*errors, *unusable)]
    if demands:
        _suite(root, "requirements", demands)
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _suite(root: ET.Element, name: str, cases: list[ET.Element]) -> None:
    suite = ET.SubElement(root, "testsuite", name=_clean(name), tests=str(len(cases)))
    for key, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(key, str(sum(case.find(tag) is not None for case in cases)))
    suite.extend(cases)


def _case(line: Document, findings: Iterable[Document]) -> ET.Element:
    keys = ("subject", "check", "dtype", "backend")
    own = [f for f in findings if all(f[key] == line[key] for key in keys)]
    verdict, name = str(line["verdict"]), f"{line['check']}[{line['dtype']}]"
    text = "\n".join(f"{f['message']}\nreplay: {f['replay']}" for f in own if not f["expected"])
    told = ("", "")
    if line["unexpected"]:
        told = "failure", text
    elif verdict == Verdict.ERROR:
        told = "error", "\n".join(_texts(line, "errors"))
    elif verdict not in {Verdict.PASS, *(str(f["verdict"]) for f in own)}:
        told = "skipped", str(line["skipped"]) or ", ".join(_texts(line, "undecided")) or verdict
    case = _element(str(line["subject"]), name, *told)
    case.set("time", f"{number(line['seconds']):.3f}")
    return case


def _element(group: str, name: str, tag: str, text: str) -> ET.Element:
    case = ET.Element("testcase", classname=_clean(group), name=_clean(name))
    if tag:
        ET.SubElement(case, tag, message=_clean(text.partition("\n")[0])).text = _clean(text)
    return case


def _texts(document: Document, name: str) -> list[str]:
    found = document[name]
    assert isinstance(found, list | dict)
    return [str(one) for one in found]


def _clean(text: str) -> str:
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)
