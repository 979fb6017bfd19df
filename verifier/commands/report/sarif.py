"""Findings as SARIF 2.1.0, for tools that show them at their source lines."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from verifier.audit.report.json_parts import Document, mapping, number, parts
from verifier.records.verdict import numberless

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
ROOT = "SRCROOT"
_SARIF_LINES = 2**31 - 1


def sarif(document: Document, root: Path) -> dict[str, object]:
    """Return the findings of a report as a SARIF log; root: the folder from which paths count.

    A rule is a check. Declared known defects are results that are suppressed.
    """
    findings = parts(document, "findings")
    rules = list(dict.fromkeys(str(f["check"]) for f in findings))
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "norm-verifier",
                        "version": str(mapping(document["versions"])["norm-verifier"] or "0"),
                        "rules": [_rule(name) for name in rules],
                    }
                },
                "originalUriBaseIds": {ROOT: {"uri": root.absolute().as_uri() + "/"}},
                "columnKind": "unicodeCodePoints",
                "results": [_result(f, rules, root.absolute()) for f in findings],
                "invocations": [
                    {
                        "executionSuccessful": document["status"] in {0, 1, 3},
                        "exitCode": int(number(document["status"])),
                    }
                ],
            }
        ],
    }


def _rule(name: str) -> dict[str, object]:
    from verifier.checks import checks

    module = checks().get(name)
    text = (getattr(module, "__doc__", None) or f"The check {name} failed.").strip().split("\n\n")[0]
    return {
        "id": name,
        "shortDescription": {"text": " ".join(text.split())},
        "defaultConfiguration": {"level": "error"},
    }


def _result(finding: Document, rules: list[str], root: Path) -> dict[str, object]:
    source = mapping(finding["source"])
    line = min(max(int(number(source["line"])), 1), _SARIF_LINES)
    named = ("subject", "check", "dtype", "backend", "verdict")
    words = [str(finding[key]) for key in named] + [numberless(str(finding["message"]))]
    found: dict[str, object] = {
        "ruleId": finding["check"],
        "ruleIndex": rules.index(str(finding["check"])),
        "level": "note" if finding["expected"] else "error",
        "kind": "fail" if not finding["expected"] else "informational",
        "message": {"text": _text(finding)},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": location(Path(str(source["file"])), root),
                    "region": {"startLine": line},
                }
            }
        ],
        "partialFingerprints": {"normVerifier/v1": _digest(words)},
    }
    if finding["expected"]:
        found["level"] = "none"
        why = str(finding["reason"]) or "declared known defect"
        found["suppressions"] = [{"kind": "inSource", "justification": why}]
    return found


def _text(finding: Document) -> str:
    lines = [f"{finding['verdict']} {finding['subject']} {finding['dtype']}: {finding['message']}"]
    lines += [str(finding[key]) for key in ("cause", "meaning") if finding[key]]
    lines += [f"Replay: {finding['replay']}"] if finding["replay"] else []
    return "\n".join(lines)


def location(path: Path, root: Path) -> dict[str, str]:
    """Return where a file is: from the root if it lies below, else whole."""
    try:
        return {"uri": _quoted(path.absolute().relative_to(root)), "uriBaseId": ROOT}
    except ValueError:
        return {"uri": path.absolute().as_uri()}


def _quoted(path: Path) -> str:
    from urllib.parse import quote

    return quote(path.as_posix(), errors="surrogateescape")


def _digest(words: Iterable[str]) -> str:
    return hashlib.sha256("|".join(words).encode(errors="replace")).hexdigest()[:32]
