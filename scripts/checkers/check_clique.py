"""Check a clique by hand's rules.

    python scripts/checkers/check_clique.py PROBLEM.json CERTIFICATE.json

Words that pairwise meet need a bank each, so more of them than banks conflict in every layout. Twenty
lines that use nothing of layoutopt; `check_certificate.py` checks that the hardware serves those lanes
together, and everything else of a certificate. It evaluates the file's expressions: trust the file.
"""

import argparse
import itertools
import json
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("problem", type=Path)
parser.add_argument("certificate", type=Path)
files = parser.parse_args()
problem, certificate = (json.loads(file.read_text()) for file in (files.problem, files.certificate))
clique, lanes = certificate["clique"], certificate["lanes"]
accesses, met = {a["name"]: a for a in problem["accesses"]}, set()
for meeting in clique["meetings"]:
    access = accesses[meeting["access"]]
    for word, lane in zip(meeting["words"], meeting["lanes"], strict=True):
        tid = meeting["warp"] * lanes + lane
        env = {"tid": tid, "lane": lane, "warp": meeting["warp"], **meeting["iteration"]}
        assert eval(access.get("where", "1"), {}, env), (meeting, "the lane is off")
        *outer, last = (eval(str(text), {}, env) for text in access["index"])
        *rows, start = clique["words"][word]["element"]
        assert outer == rows, (meeting, "another element")
        assert 0 <= start - last <= 15, (meeting, "beyond the widest access")
    met.add(tuple(sorted(meeting["words"])))
assert met == set(itertools.combinations(range(len(clique["words"])), 2)), "some pair never meets"
assert len(clique["words"]) > clique["banks"], "as many banks as words"
print(f"{len(clique['words'])} words meet in pairs; there are {clique['banks']} banks for them")
