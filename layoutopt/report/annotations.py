"""Lines with bank conflicts for continuous integration: GitHub's annotations, SARIF 2.1.0, JUnit's XML."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

from layoutopt.ground.escape import xml_text
from layoutopt.ground.version import __version__
from layoutopt.report.launches_text import conflict_lines, name, undecided, verdict
from layoutopt.study.launches import Application

_HOME: Final = "https://json.schemastore.org/sarif-2.1.0.json"


def _relative(file: str) -> str:
    """As repositories name it, where it lies below the working directory."""
    path = os.path.relpath(file)
    return file if path.startswith("..") else path


def github(found: Application) -> str:
    """Workflow commands: a warning at each line.

    Format: https://docs.github.com/actions/reference/workflow-commands-for-github-actions
    """

    def quoted(text: str, more: str = "") -> str:
        for character in "%\r\n" + more:
            text = text.replace(character, f"%{ord(character):02X}")
        return text

    told = [
        f"::warning file={quoted(_relative(line.file), ':,')},line={max(line.line, 1)},"
        f"title=bank conflicts::{quoted(line.message)}"
        for line in conflict_lines(found.kernels)
    ]
    notices = [(why.partition(": "), name(one)) for one, why in undecided(found.kernels)]
    told += [f"::notice title={what}::{quoted(f'{kernel}: {why}')}" for (what, _, why), kernel in notices]
    return "".join(f"{line}\n" for line in told)


def sarif(found: Application) -> str:
    """SARIF 2.1.0 (https://docs.oasis-open.org/sarif/sarif/v2.1.0/): a result a line."""
    results: list[dict[str, Any]] = []
    for line in conflict_lines(found.kernels):
        place: dict[str, Any] = {
            "artifactLocation": {"uri": quote(_relative(line.file).encode("utf-8", "surrogateescape"))}
        }
        if line.line:
            place["region"] = {"startLine": line.line}
        mark = hashlib.sha256(f"{line.kernel}\0{line.array}\0{line.op}\0{line.place}".encode()).hexdigest()
        results.append(
            {
                "ruleId": "bank-conflicts",
                "level": "warning",
                "message": {"text": line.message},
                "locations": [{"physicalLocation": place}],
                "partialFingerprints": {"kernelLine/v1": mark},
            }
        )
    notes = [
        {"level": "note", "message": {"text": f"{name(o)}: {why}"}} for o, why in undecided(found.kernels)
    ]
    rule = {"id": "bank-conflicts", "shortDescription": {"text": "Bank conflicts in shared memory"}}
    driver = {"name": "layoutopt", "version": __version__, "rules": [rule]}
    run: dict[str, Any] = {"tool": {"driver": driver}, "results": results}
    if notes:
        run["invocations"] = [{"executionSuccessful": True, "toolExecutionNotifications": notes}]
    return json.dumps({"$schema": _HOME, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def junit(found: Application) -> str:
    """JUnit's XML: a test a launch, which fails with its lines; one that is not decided is skipped."""
    cases, failures, skips = [], 0, 0
    seen: Counter[tuple[str, str]] = Counter()
    for one in found.kernels:
        sizes = [",".join(map(str, extents)) for extents in (one.launch.block or (), one.launch.grid)]
        shape = f"block {sizes[0]} grid {sizes[1]}"
        seen[name(one), shape] += 1
        if (number := seen[name(one), shape]) > 1:  # servers take equal names for one test
            shape += f" ({number})"
        head = f"<testcase classname={_attribute(name(one))} name={_attribute(shape)}>"
        own = [f"{line.place}: {line.message}" for line in conflict_lines([one])]
        skipped = [f"<skipped message={_attribute(why)}/>" for _, why in undecided([one])]
        body = "".join(skipped)
        skips += len(skipped)
        if own:
            failures += 1
            said = f"{one.conflicts:,} bank conflicts, {verdict(one)}"
            body = f"<failure message={_attribute(said)}>{escape(xml_text(chr(10).join(own)))}</failure>"
        cases.append(f"{head}{body}</testcase>\n")
    counts = f'tests="{len(cases)}" failures="{failures}" skipped="{skips}"'
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuite name="layoutopt" {counts}>\n'
        f"{''.join(cases)}</testsuite>\n"
    )


def _attribute(text: str) -> str:
    return quoteattr(xml_text(text))


FORMATS: Final[dict[str, Callable[[Application], str]]] = {
    "github": github,
    "sarif": sarif,
    "junit": junit,
}
