"""Write problems/problem.schema.json from the types."""

import argparse
import json
from pathlib import Path

from layoutopt.files.file import json_schema

if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    path = Path(__file__).parents[2] / "problems" / "problem.schema.json"
    path.write_text(json.dumps(json_schema(), indent=1) + "\n")
    print(f"wrote {path.name}")
