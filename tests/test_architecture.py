"""Who may import whom, and which names are public."""

import ast

from conftest import ROOT

import layoutopt

PACKAGE = ROOT / "layoutopt"


def imports(path):
    """Modules that a file imports, wherever it does so (`if TYPE_CHECKING` included)."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def importers(name):
    return {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if any(module == name or module.startswith(name + ".") for module in imports(path))
    }


def test_model_and_conflict_engine_share_only_data():
    model = set().union(*(imports(p) for p in (PACKAGE / "cpmodel").glob("*.py")))
    assert "layoutopt.conflicts" not in model
    assert "layoutopt.synthesize" not in model
    engine = {m for m in imports(PACKAGE / "conflicts.py") if m.startswith("layoutopt")}
    assert engine <= {"layoutopt.devices", "layoutopt.operations"}
    both = {p for p in importers("layoutopt.cpmodel") if "cpmodel/" not in p} & importers(
        "layoutopt.conflicts"
    )
    assert both == {"synthesize.py"}


def test_heavy_libraries_have_one_importer():
    assert importers("ortools") == {"cpmodel/solver.py"}
    assert importers("sympy") == {"emit/expand.py"}
    assert importers("matplotlib") == {"draw/plot.py"}
    assert all(p.startswith("cli/") for p in importers("click"))


def test_public_names():
    assert layoutopt.__all__ == [
        "Arrangement",
        "Layout",
        "Problem",
        "Result",
        "Status",
        "TileSet",
        "__version__",
        "arrange",
        "check",
        "load",
        "load_any",
        "solve",
    ]
    for name in layoutopt.__all__:
        assert getattr(layoutopt, name) is not None
