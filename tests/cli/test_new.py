"""From nothing to a problem that solves: `new`, `problems`, names of the catalogue."""

import json
import os
import re
import sys
import venv
import zipfile

import pytest
from command import answer, layoutopt, python, refused
from conftest import PROBLEMS, ROOT, TILE_SETS

from layoutopt import load, solve
from layoutopt.accesses.trace import trace
from layoutopt.cli.new import KINDS as OFFERED
from layoutopt.files.catalogue import find, problems, short_names
from layoutopt.files.file import from_data
from layoutopt.files.starters import KINDS, starter
from layoutopt.hardware.devices import device
from layoutopt.hardware.fragments import executes, fragments

TILE_ELEMENT = {"s8": "i8", "s32": "i32"}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("hopper", "convert")])
def test_every_kind_solves_as_it_is(kind, tmp_path):
    assert kind in OFFERED
    path = tmp_path / "tile.json"
    done = layoutopt("new", kind, "-o", path)
    assert (done.returncode, done.stdout) == (0, "")
    problem = load(path)
    assert all(described.notes for described in (problem, *problem.accesses))
    result = solve(problem, time_limit=30)
    assert (result.status, result.excess) == ("optimal", 0)
    refused("exists already", "new", kind, "-o", path)


@pytest.mark.parametrize(
    ("options", "stages", "threads", "bytes_"),
    [
        ((), 6, 384, 229376),
        (("--tile", "64x256", "--element", "e4m3"), 4, 256, 196608),
        (("--tile", "256x128", "--element", "bf16", "--stages", "3"), 3, 384, 212992),
        (("--tile", "192x96", "--element", "f32"), 5, 256, 221184),
    ],
)
def test_a_hopper_block_solves_as_it_is(options, stages, threads, bytes_, tmp_path):
    path = tmp_path / "block.json"
    assert layoutopt("new", "hopper", *options, "-o", path).returncode == 0
    tiles = load(path)
    assert (tiles.tiles[0].stages, tiles.threads) == (stages, threads)
    found = solve(tiles)
    assert (found.status, found.excess, found.bytes) == ("optimal", 0, bytes_)


def shapes():
    """Every mma shape with each of its elements, on the first target that has it, if that is after sm_90."""
    for name, held in fragments().items():
        match = re.fullmatch(r"mma\.(\w+)\.([ABC])\.(\w+)", name)
        if match and held.matrices == 1:
            target = "sm_120" if held.since == "sm_120" else "sm_90"
            yield match[1], match[2], TILE_ELEMENT.get(match[3], match[3]), target


@pytest.mark.parametrize(("mma", "operand", "element", "target"), list(shapes()))
def test_gemm_of_every_mma_shape_is_conflict_free(mma, operand, element, target):
    depth = int(mma.rpartition("k")[2]) if operand != "C" else 32
    options = {"mma": mma, "operand": operand, "element": element, "tile": (64, max(32, depth))}
    result = solve(from_data(starter("gemm", target, **options)), time_limit=30)
    assert (result.status, result.excess) == ("optimal", 0)


@pytest.mark.filterwarnings("ignore::layoutopt.errors.DisputedRuleWarning")
def test_gemm_of_every_shape_of_amd_is_a_problem():
    for name, held in fragments().items():
        match = re.fullmatch(r"(mfma\.\w+|wmma\.[\w.]+)\.([ABC])\.(\w+)", name)
        if match:
            element, target = TILE_ELEMENT.get(match[3], match[3]), held.since
            target = {"gfx940": "gfx942", "gfx1200": "gfx1201"}.get(target, target)
            data = starter("gemm", target, mma=match[1], operand=match[2], element=element)
            accesses = trace(from_data(data), device(target)).accesses
            assert {"fragment": held.name}.items() <= data["accesses"][match[2] != "C"].items()
            assert len(accesses) == 2


@pytest.mark.filterwarnings("ignore::layoutopt.errors.DisputedRuleWarning")
@pytest.mark.parametrize(
    ("target", "element", "operand", "name", "op"),
    [
        ("sm_90", "f16", "A", "mma.m16n8k16.A.f16", "ldmatrix.x4"),
        ("turing", "f16", "A", "mma.m16n8k8.A.f16", "ldmatrix.x4"),
        ("sm_75", "f32", "C", "mma.m16n8k8.C.f32", "store"),
        ("sm_75", "i8", "B", "mma.m8n8k16.B.s8", "ldmatrix.x4"),
        ("sm_75", "s4", "A", "mma.m8n8k32.A.s4", "ldmatrix.x4"),
        ("sm_80", "f16", "C", "mma.m16n8k16.C.f16", "store"),
        ("sm_90", "f16", "C", "mma.m16n8k16.C.f16", "stmatrix.x4"),
        ("ada", "e4m3", "A", "mma.m16n8k32.A.e4m3", "ldmatrix.x4"),
        ("rtx50", "e2m1", "A", "mma.m16n8k64.A.e2m1", "ldmatrix.x4"),
        ("sm_90", "f64", "A", "mma.m8n8k4.A.f64", "load"),
        ("gfx90a", "bf16", "A", "mfma.32x32x8.A.bf16", "load"),
        ("mi300x", "f16", "A", "mfma.32x32x8.A.f16", "load"),
        ("gfx942", "f32", "B", "mfma.32x32x2.B.f32", "load"),
        ("gfx942", "f32", "C", "mfma.32x32x8.C.f32", "store"),
        ("gfx950", "f16", "A", "mfma.32x32x16.A.f16", "load"),
        ("gfx908", "bf16", "B", "mfma.32x32x4.B.bf16", "load"),
        ("gfx90a", "i8", "A", "mfma.32x32x8.A.s8", "load"),
        ("gfx950", "i8", "A", "mfma.32x32x32.A.s8", "load"),
        ("rx7900", "f16", "A", "wmma.16x16x16.A.f16", "load"),
        ("gfx1200", "e4m3", "B", "wmma.gfx12.16x16x16.B.e4m3", "load"),
        ("gfx1201", "f32", "C", "wmma.gfx12.16x16x16.C.f32", "store"),
    ],
)
def test_gemm_takes_an_instruction_that_the_target_executes(target, element, operand, name, op):
    data = starter("gemm", target=target, element=element, operand=operand)
    access = data["accesses"][operand != "C"]
    assert (access["fragment"], access["op"]) == (name, op)
    assert executes(fragments()[name], target)
    trace(from_data(data), device(target))


# How a start of attention reads its keys and its values, by the GPU.
READS = {
    "sm_90": ({"op": "ldmatrix.x4"}, {"op": "ldmatrix.x4.trans"}),
    "gfx942": ({"op": "load", "bytes": 8}, {"op": "load", "bytes": 2}),
    "gfx950": ({"op": "load", "bytes": 16}, {"op": "ds_read_b64_tr_b16"}),
    "gfx1100": ({"op": "load", "bytes": 16}, {"op": "load", "bytes": 2}),
}


@pytest.mark.filterwarnings("ignore::layoutopt.errors.DisputedRuleWarning")
@pytest.mark.parametrize("target", READS)
def test_attention_reads_as_the_target_can(target):
    data = starter("attention", target=target)
    for access, read in zip(data["accesses"][1:], READS[target], strict=True):
        assert access | read == access
    trace(from_data(data), device(target))


@pytest.mark.parametrize("kind", ["gemm", "attention"])
def test_a_start_for_amd_has_no_conflicts(kind):
    """Where nothing copies past the registers, the fill binds no more bytes than the fragments need."""
    data = starter(kind, target="gfx942")
    assert data["accesses"][0] | {"op": "store", "copy": {"bytes": 8}} == data["accesses"][0]
    assert solve(from_data(data), time_limit=30).excess == 0


PRODUCTS = json.loads((ROOT / "tests/data/h200_gemm.json").read_text())["products"]


@pytest.mark.parametrize("product", PRODUCTS, ids=[p["element"] for p in PRODUCTS])
def test_the_products_of_an_h200_were_of_these_problems(product):
    """What was multiplied there is what `new` writes and `solve` answers today; a wrong fragment showed."""
    assert (product["product"], product["product_wrong"]) == ("right", 0)
    assert product["control"] == "WRONG"
    assert product["control_wrong"] > product["elements"] // 2
    for operand, entry in product["operands"].items():
        data = starter("gemm", element=product["element"], operand=operand)
        assert data == entry["problem"]
        assert solve(from_data(data), time_limit=30).offset == entry["offset"]


MMA_OF_FOUR = "mma.m8n8k4 with f16 computes 4 matrices at once"
UNFIT = {
    "transpose --mma m16n8k16": "--mma: goes with gemm",
    "gemm --tile 100x64": "--tile: expected a multiple of 16 along m",
    "gemm --tile abc": "expected extents such as 128x64",
    "gemm --tile 8x8x8": "--tile: expected 2 extents",
    "gemm --threads 100": "--threads: ",
    "gemm --mma m16n8k9": "--mma: 'm16n8k9' does not take f16 as operand A; mma.m16n8k8",
    "gemm --element c128": "--element: no matrix instruction takes c128",
    "gemm --target sm_80 --mma wgmma.m64n8k16": "--mma: sm_80 does not execute wgmma.m64n8k16",
    "gemm --target b200 --mma wgmma.m64n8k16": "(it is of sm_90)",
    "gemm --target sm_90 --mma mfma.32x32x8": "(it is of gfx908 to gfx950)",
    "gemm --target sm_75 --mma m16n8k16": "(it is of sm_80 and later)",
    "gemm --target a100 --element e4m3": "--target: a100 has no matrix instruction with e4m3",
    "gemm --target sm_70": f"--target: {MMA_OF_FOUR}",
    "gemm --mma m8n8k4": f"--mma: {MMA_OF_FOUR}, and where each",
    "gemm --mma m8n8k4 --operand C": '"fragment": "mma.m8n8k4.C.f32"',
    "attention --target gfx906": "--target: gfx906 has no matrix instruction with f16",
    "attention --target gfx942 --threads 96": "--threads: ",
    "attention --element s4": "across its rows by 2-byte elements, not s4",
    "transpose --element s4": "--element: s4 elements share bytes",
    "stencil --stages 2": "--stages: goes with gemm, hopper",
    "gemm --target sm_1": "sm_1",
    "knapsack": "knapsack",
    "hopper --target sm_80": "--target: sm_80 has no wgmma",
    "hopper --element f64": "--element: wgmma multiplies f16",
    "hopper --tile 100x128": "--tile: M a multiple of 64",
    "hopper --tile 256x256 --stages 2": "--stages: 1 stages fit",
    "hopper --threads 256": "--threads: 2 warpgroups of consumers and a producer are 384 threads",
    "convert --tile 24x64": "--tile: expected whole warps",
    "convert --free": "--free: goes with gemm, attention, conv, not with convert",
}


@pytest.mark.parametrize("asked", UNFIT)
def test_options_that_fit_no_kernel(asked, tmp_path):
    refused(UNFIT[asked], "new", *asked.split(), "-o", tmp_path / "tile.json")
    assert not list(tmp_path.iterdir())


def test_pipeline_stages_are_a_dimension():
    data = json.loads(layoutopt("new", "gemm", "--stages", 3, "--operand", "B").stdout)
    assert (data["tile"]["shape"], data["accesses"][1]["index"]) == ([3, 128, 64], ["stage", "n", "k"])


def test_catalogue_is_listed_and_found_by_name(tmp_path):
    assert set(problems().values()) == {*PROBLEMS, *TILE_SETS}
    listed = layoutopt("problems").stdout.splitlines()
    assert [line.split()[0] for line in listed] == list(short_names())
    assert {row["name"] for row in answer("problems")["problems"]} == set(short_names())
    assert find("basics/transpose_32x32_f32") == find("transpose_32x32_f32")
    refused("did you mean transpose_32x32_f32", "solve", "transpose_32x32_f23")
    (tmp_path / "transpose_32x32_f32").write_text("{}")
    refused("", "solve", "transpose_32x32_f32", cwd=tmp_path)  # a file comes before a name


def test_problems_of_several_tiles_are_in_the_catalogue(tmp_path):
    name = "shoc_fft512_two_passes_f32"
    assert answer("solve", name, cwd=tmp_path)["bytes"] == 2048
    assert answer("problems", name, "--expanded")["overlay"]
    assert "has no bank conflicts in 2,048 bytes" in layoutopt("compare", name).stdout


def test_problems_prints_a_problem_as_written_and_expanded(tmp_path):
    for name in ("basics/transpose_32x32_f32", "tile_sets/shoc_fft512_two_passes_f32"):
        assert layoutopt("problems", name).stdout == (ROOT / f"problems/{name}.json").read_text()
    path = tmp_path / "a.json"
    layoutopt("new", "gemm", "-o", path)
    expanded = json.loads(layoutopt("problems", path, "--expanded").stdout)
    assert "fragment" not in json.dumps([sorted(a) for a in expanded["accesses"]])
    assert from_data(expanded) == load(path)
    assert answer("problems", path, "--expanded") == expanded


# What setuptools takes unasked, beside the package with its data: what describes the project.
UNASKED = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")


def built(how, tmp_path):
    """What `pip install .` (or `-e .`) installs, without a network, by the setuptools that is here."""
    pytest.importorskip("setuptools", minversion="77")
    build = f"import setuptools.build_meta as b, sys; b.build_{how}(sys.argv[1])"
    copy = tmp_path / "source"
    copy.mkdir()
    for name in ("layoutopt", "problems", *UNASKED):
        (copy / name).symlink_to(ROOT / name)
    python("-c", build, tmp_path, cwd=copy, env=dict(os.environ), check=True)
    (wheel,) = tmp_path.glob("*.whl")
    return zipfile.ZipFile(wheel)


def test_a_wheel_holds_the_catalogue(tmp_path):
    names = set(built("wheel", tmp_path).namelist())
    assert {f"layoutopt/files/catalogue/{name}.json" for name in problems()} <= names
    assert {"layoutopt/hardware/fragments.json", "layoutopt/codegen/selftest.cu"} <= names


CLIENT = """
import layoutopt
from layoutopt.errors import LayoutoptError

def first_bytes(name: str) -> int:
    problem = layoutopt.load(name)
    if isinstance(problem, layoutopt.Block):
        return layoutopt.solve(problem).tiles[0].base_bytes
    result: layoutopt.Result = layoutopt.solve(problem, time_limit=5, workers=2)
    audit: layoutopt.Audit = layoutopt.check(problem, "x0*33 + x1")
    return int(result.require_layout().byte_offset(1, 0)) + audit.bytes + len(layoutopt.__version__)

try:
    print(first_bytes("transpose_16x32_f32"))
except (LayoutoptError, layoutopt.errors.LayoutError) as error:
    print(error)
"""
MISTAKES = {
    "layoutopt.sovle()": 'has no attribute "sovle"',
    "layoutopt.solve(3)": 'No overload variant of "solve" matches argument type "int"',
    "layoutopt.solve(layoutopt.problem(), workres=2)": 'Unexpected keyword argument "workres"',
    "layoutopt.solve(layoutopt.problem()).layout.byte_offset": 'Item "None" of "Layout',
}


@pytest.mark.tools
def test_a_client_of_an_installed_package_is_checked_by_mypy(tmp_path):
    """However it was installed; what mypy knows of the libraries is kept from one to the other."""
    pytest.importorskip("mypy")
    first = CLIENT.strip().count("\n") + 2
    for how in ("editable", "wheel"):
        folder = tmp_path / how
        venv.create(folder / "venv", with_pip=False)
        (site,) = (folder / "venv").glob("lib/python*/site-packages")
        built(how, folder).extractall(site)
        (site / "here.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
        (folder / "client.py").write_text("\n".join([CLIENT.strip(), *MISTAKES, ""]))
        asked = (
            "--strict",
            "--cache-dir",
            tmp_path / "known",
            "--python-executable",
            folder / "venv/bin/python",
        )
        done = python("-m", "mypy", *asked, "client.py", cwd=folder, env=dict(os.environ))
        said = re.findall(r"^client.py:(\d+): error: (.*)", done.stdout, re.MULTILINE)
        assert {int(line) for line, _ in said} == set(range(first, first + len(MISTAKES))), done.stdout
        for line, mistake in enumerate(MISTAKES.values(), first):
            assert any(mistake in message for at, message in said if int(at) == line), done.stdout


def test_it_holds_every_folder_and_file_that_tests_read():
    manifest = (ROOT / "MANIFEST.in").read_text()
    taken = {name for line in re.findall(r"^(?:graft|include) (.+)", manifest, re.M) for name in line.split()}
    sources = "".join(path.read_text() for path in (ROOT / "tests").glob("*.py"))
    read = {name.split("/")[0] for name in re.findall(r'ROOT / "([\w./-]+)"', sources)}
    assert read - taken - {*UNASKED, "layoutopt"} <= {".git"}
    assert {"tests", "scripts", "docs", "problems"} <= taken


@pytest.mark.parametrize("kind", ["gemm", "attention", "conv"])
def test_a_start_from_ownership_takes_no_more_wavefronts(kind):
    """Elements are said to be loaded one by one; which instructions move them is chosen with the layout."""
    given, free = (solve(from_data(starter(kind, free=free)), time_limit=20) for free in (None, True))
    assert given.status == "optimal"
    taken = [sum(access.wavefronts for access in found.accesses) for found in (free, given)]
    assert taken[0] <= taken[1]
    assert any(access.op.startswith("ldmatrix") for access in free.accesses)


def test_a_start_of_a_conversion(tmp_path):
    path = tmp_path / "c.json"
    assert "next: layoutopt convert" in layoutopt("new", "convert", "--tile", "32x64", "-o", path).stderr
    assert "optimal: 64 wavefronts" in layoutopt("convert", path).stdout
