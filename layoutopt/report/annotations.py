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

    commands = [
        f"::warning file={quoted(_relative(line.file), ':,')},line={max(line.line, 1)},"
        f"title=bank conflicts::{quoted(line.message)}"
        for line in conflict_lines(found.kernels)
    ]
    for launch, doubt in undecided(found.kernels):
        title, _, why = doubt.partition(": ")
        commands.append(f"::notice title={title}::{quoted(f'{name(launch)}: {why}')}")
    return "".join(f"{command}\n" for command in commands)


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
    doubts = (f"{name(launch)}: {why}" for launch, why in undecided(found.kernels))
    notes = [{"level": "note", "message": {"text": text}} for text in doubts]
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
    for launch in found.kernels:
        kernel = name(launch)
        block, grid = (",".join(map(str, n)) for n in (launch.launch.block or (), launch.launch.grid))
        shape = f"block {block} grid {grid}"
        seen[kernel, shape] += 1
        if (number := seen[kernel, shape]) > 1:  # servers take equal names for one test
            shape += f" ({number})"
        head = f"<testcase classname={_attribute(kernel)} name={_attribute(shape)}>"
        lines = [f"{line.place}: {line.message}" for line in conflict_lines([launch])]
        skipped = [f"<skipped message={_attribute(why)}/>" for _, why in undecided([launch])]
        body = "".join(skipped)
        skips += len(skipped)
        if lines:
            failures += 1
            message = f"{launch.conflicts:,} bank conflicts, {verdict(launch)}"
            body = f"<failure message={_attribute(message)}>{escape(xml_text(chr(10).join(lines)))}</failure>"
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
