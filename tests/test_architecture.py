"""Who may import whom, and which names are public."""

import ast
import importlib
import inspect
import re
from functools import cache

import pytest
from conftest import ROOT

import layoutopt

PACKAGE = ROOT / "layoutopt"

# The rooms, in the order in which a problem walks through them. Each imports from those before it; `engine`
# and `model` stand side by side and never touch. On top stands the front, whose names are those of others.
GROUND = "ground"  # and the modules at the top of the package
ROOMS = (
    f"{GROUND} expressions hardware layout problems accesses index files imports engine kernels "
    "ownership model source proof search study codegen report sweeps cli"
).split()
FRONT = "layoutopt"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}


@cache
def nodes(path):
    return list(ast.walk(ast.parse(path.read_text())))


def imports(path):
    """Modules of the package or of others that a file imports, wherever (`if TYPE_CHECKING` included)."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inner & set(MODULES) or {node.module}
    return found


@cache
def imports_by_module():
    return {name: imports(path) for name, path in MODULES.items()}


def room(module):
    parts = module.split(".")
    if module in (FRONT, f"{FRONT}.__main__"):
        return FRONT
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else GROUND


def importers(name):
    return {
        MODULES[path].relative_to(PACKAGE).as_posix()
        for path, modules in imports_by_module().items()
        if any(module == name or module.startswith(name + ".") for module in modules)
    }


def test_every_folder_is_a_room():
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(ROOMS)
    assert len([path for path in PACKAGE.iterdir() if not path.name.startswith("__")]) <= 23


def test_imports_come_from_rooms_below():
    level = {module: (*ROOMS, FRONT).index(room(module)) for module in MODULES}
    upward = {
        (module, other)
        for module, found in imports_by_module().items()
        for other in found & set(MODULES)
        if level[other] > level[module]
    }
    assert not upward


def test_no_circle():
    """Modules can be put in an order in which each imports only those before it."""
    left = {m: found & set(MODULES) - {m} for m, found in imports_by_module().items()}
    while ready := {module for module, needed in left.items() if not needed & set(left)}:
        for module in ready:
            del left[module]
    assert not left


def test_model_and_conflict_engine_share_only_data():
    for one, other in (("engine", "model"), ("model", "engine")):
        found = {m for name, modules in imports_by_module().items() if room(name) == one for m in modules}
        assert other not in map(room, found)
    conflicts = {m for m in imports_by_module()["layoutopt.engine.conflicts"] if m.startswith("layoutopt")}
    assert conflicts <= {
        "layoutopt.ground.arrays",
        "layoutopt.hardware.devices",
        "layoutopt.hardware.operations",
    }


def test_the_oracle_shares_nothing_with_what_it_judges():
    """Plain loops that tests and fuzzers hold the package against; the hardware is its data alone."""
    found = {m for path in (ROOT / "tests/oracle").glob("*.py") for m in imports(path) if m in MODULES}
    assert found <= {"layoutopt.hardware.devices", "layoutopt.problems.types"}


def test_tests_lie_in_rooms():
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert folders <= set(ROOMS)
    assert len(list((ROOT / "tests").glob("*.py"))) <= 12


def test_heavy_libraries_have_one_importer():
    assert importers("ortools") == {"model/cp_sat.py"}
    assert importers("distributed") == {"sweeps/workers.py"}
    assert importers("pyarrow") == {"sweeps/export.py"}
    assert importers("sympy") == {"expressions/sympy_form.py"}
    assert all(p.startswith("cli/") for p in importers("click"))


PUBLIC = """
Arrangement Audit Block Comparison Conversion Explanation Launch Layout Problem Result Status
capture check check_kernel compare convert emit explain import_kernel load load_all problem solve sweep
"""


def test_public_names():
    assert layoutopt.__all__ == PUBLIC.split() == sorted(PUBLIC.split())
    assert set(dir(layoutopt)) == {*PUBLIC.split(), "__version__"}
    assert len(PUBLIC.split()) <= 24
    assert all(getattr(layoutopt, name) is not None for name in dir(layoutopt))


@pytest.mark.parametrize("name", PUBLIC.split())
def test_help_says_what_there_is(name):
    """Signatures are what one would type; every field of a class has its line."""
    public = getattr(layoutopt, name)
    if name == "Status":
        assert all(f"{status}: " in public.__doc__ for status in public)
    elif isinstance(public, type):
        fields = public.__struct_fields__
        told = "\n".join(re.findall(r"^ {8}(\w+(?:, \w+)*):", public.__doc__, re.MULTILINE))
        assert set(fields) - {"schema_"} <= set(re.findall(r"\w+", told))
    else:
        assert not re.search(r"lambda|<function|object at|UNSET", str(inspect.signature(public)))


def test_a_module_and_a_function_are_one_idea():
    assert not [name for name, path in MODULES.items() if len(path.read_text().splitlines()) > 600]
    assert not [
        (name, node.name)
        for name, path in MODULES.items()
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= 60
    ]


def test_names_of_the_last_release_warn():
    for old, new in layoutopt._RENAMED.items():
        home, _, name = new.rpartition(".")
        with pytest.warns(DeprecationWarning, match=f"layoutopt.{old} is now {new}"):
            assert getattr(layoutopt, old) is getattr(importlib.import_module(home), name)
