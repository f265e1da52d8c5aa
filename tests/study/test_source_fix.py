"""Sources with other layouts, compiled and compared: what is offered is right, and what is not right is not."""

import json
import re
import struct
import subprocess

import kernel_launches
import pytest
from command import answer, layoutopt, refused
from written import text_file

from layoutopt.errors import ProblemFileError
from layoutopt.ground.budget import OutOfTime
from layoutopt.hardware.devices import device
from layoutopt.hardware.driver import Race
from layoutopt.kernels.machine.launch import Launch
from layoutopt.kernels.program import Memory
from layoutopt.kernels.read.files import kernels
from layoutopt.source.expanded import Written
from layoutopt.source.rewrite import Moved, Transposed
from layoutopt.study import source_plans
from layoutopt.study.source_fix import Request, fix
from layoutopt.study.source_plans import SourceCode

LAUNCHES = {kernel.name: kernel for kernel in kernel_launches.launches()}
pytestmark = pytest.mark.nvcc


def fixed(name, source=None, **more):
    kernel = LAUNCHES[name]
    launch = kernel_launches.called(kernel)
    return fixed_file(source or kernel.source, launch, lambda one: one.name == kernel.symbol, **more)


def fixed_file(source, launch, is_meant=lambda _: True, **more):
    (program,) = [found for found in (one.read() for one in kernels(source)) if is_meant(found)]
    return fix(SourceCode(source), program, Request(launch, device("sm_90"), **more))


def conflicts(version):
    return sum(tally.wavefronts - tally.phases for tally in version.evaluation.tallies.values())


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("transpose_plain", ["__shared__ float tile[32][33];"]),
        ("matvec_columns", ["__shared__ __align__(16) float tile[64][68];"]),
    ],
)
def test_rows_are_padded_first(name, lines):
    found = fixed(name)
    assert [line[1:].strip() for line in found.diff.splitlines() if re.match(r"\+[^+]", line)] == lines
    assert (conflicts(found.after), found.unknown_bytes, found.after.evaluation.certain) == (0, 0, True)


def test_pointers_carved_out_of_dynamic_memory_are_followed():
    found = fixed("dynamic_arrays")
    assert (conflicts(found.before), conflicts(found.after)) == (480, 0)
    assert "memory_at(4 * (r * n + t)) / 4" in found.diff


def columns(folder):
    """A GEMM that stores A by rows and reads it down columns."""
    text = LAUNCHES["gemm_registers"].source.read_text()
    text = text.replace("for (int k = 0;", "\n#pragma unroll 1\nfor (int k = 0;")
    return text_file(folder, re.sub(r"As\[([^]]+)\]\[([^]]+)\]", r"As[\2][\1]", text))


def test_what_is_read_down_columns_is_transposed_where_loads_are_joined(tmp_path):
    found = fixed("gemm_registers", columns(tmp_path))
    assert "+    __shared__ __align__(16) float As[16][66], Bs[16][64];" in found.diff
    assert found.diff.count("x[i] = As[k][ty * 4 + i]") == 1
    assert (found.before.wavefronts, found.after.wavefronts) == (6400, 3328)
    moves = [step.action for step in found.after.program.steps if isinstance(step.action, Memory)]
    assert 8 in {move.width_bytes for move in moves}
    assert (conflicts(found.after), found.unknown_bytes) == (0, 0)


_SOFTMAX = """
__constant__ float factor[4];
template <typename V>
__global__ void rows(const V* in, V* out, int width, float temperature) {
    extern __shared__ __align__(16) unsigned char raw[];
    V* sm = reinterpret_cast<V*>(raw);
    for (int i = threadIdx.x; i < 32 * width; i += 32) sm[i] = in[i];
    __syncthreads();
    V* row = sm + threadIdx.x * width;
    V m = row[0], z = 0;
    for (int i = 0; i < width; i++) m = row[i] > m ? row[i] : m;
    for (int i = 0; i < width; i++) z += row[i] = (row[i] - m) / temperature * V(factor[i & 3]);
    for (int i = 0; i < width; i++) row[i] = row[i] / z;
    __syncthreads();
    for (int i = threadIdx.x; i < 32 * width; i += 32) out[i] = sm[i];
}
template __global__ void rows<float>(const float*, float*, int, float);
"""
_DOUBLES = "template __global__ void rows<double>(const double*, double*, int, float);"


def fixed_rows(tmp_path, more=""):
    launch = ("--entry", "rows<float>", "--block", "32", "--arg", "width=64", "--shared", "8192", "--json")
    return json.loads(layoutopt("fix", text_file(tmp_path, _SOFTMAX + more), *launch).stdout)


def test_what_the_launch_does_not_say_is_made_up_and_compared(tmp_path):
    told = fixed_rows(tmp_path)
    assert (told["verified"], told["unknown_bytes"]) == (True, 0)
    assert 8000 < told["compared_bytes"] <= 8192  # a few are what they were
    assert re.search(r"/\* launch with B \+ B / \d+ bytes, where", told["diff"])
    assert "^" not in told["diff"]  # whole blocks of floats are not those of another type


def test_a_size_that_is_wrong_for_another_instance_is_not_written(tmp_path):
    told = fixed_rows(tmp_path, _DOUBLES)
    assert re.search(r"launch with B \+ B / \d+ bytes", told["diff"])
    assert "^" not in told["diff"]  # whole blocks of floats are not those of doubles


@pytest.mark.parametrize(
    ("name", "form", "places"),
    [
        ("columns", Transposed, (1, 2, 5, 6)),
        ("dynamic_arrays", Moved, (1, 2, 5)),  # the others do nothing in this launch
        ("gemm_ldmatrix", Moved, (0, 1, 2)),
        ("sort_exchange", Moved, (0, 2)),  # a value that is not known decides what is compared
    ],
)
def test_a_change_that_forgets_one_edit_is_not_offered(name, form, places, monkeypatch, tmp_path):
    run = form.run

    def forgetful(self):
        edits = run(self)
        return edits[:place] + edits[place + 1 :]

    chosen = source_plans._form

    def only(*given):
        if chosen(*given) is not form:
            raise ProblemFileError("", "it is another form")
        return form

    monkeypatch.setattr(source_plans, "_form", only)
    known = "gemm_registers" if name == "columns" else name
    for place in places:
        monkeypatch.setattr(form, "run", forgetful)
        found = fixed(known, columns(tmp_path) if name == "columns" else None, minimise="excess")
        assert not found.diff, place
        why = "threads reach other bytes|writes other bytes|wavefronts where|reaches byte|is not known|does not compile"
        assert re.search(why, found.arrays[0].reason), place


@pytest.mark.parametrize(
    ("right", "wrong", "why"),
    [
        ("", "", ""),
        ('"l"(a + s * 2048 + i * 8)', '"l"(a + s * 2048 + (i ^ 1) * 8)', "writes other bytes"),
        ('"=r"(x[1]), "=r"(x[2])', '"=r"(x[2]), "=r"(x[1])', "writes other bytes"),
        ('"{%4, %5}, {%0,', '"{%5, %4}, {%0,', "writes other bytes"),
        ("r * 32 + q * 8)]))", "(r ^ 1) * 32 + q * 8)]))", "threads reach other bytes"),
    ],
)
def test_what_copies_and_matrix_instructions_move_is_compared(right, wrong, why, tmp_path, monkeypatch):
    path, rendered = tmp_path / "gemm.cu", source_plans.rendered
    path.write_text(LAUNCHES["gemm_cp_async"].source.read_text().replace(" ^ (r / 2 % 4)", ""))

    def broken(file, edits, line_end="\n"):
        text = rendered(file, edits, line_end).decode()
        assert right in text or line_end == " "
        return text.replace(right, wrong, 1).encode()

    monkeypatch.setattr(source_plans, "rendered", broken if right else rendered)
    monkeypatch.setattr(Written, "check", lambda *_: None)
    found = fixed("gemm_cp_async", path, minimise="excess")
    assert found.unknown_bytes == 0
    assert bool(found.diff) != bool(why)
    assert why in found.arrays[0].reason


QUADS = """#define QUAD(x) (reinterpret_cast<float4*>(&(x))[0])
extern "C" __global__ void quads(const float4* in, float4* out) {
    __shared__ float tile[16][64];
    int x = threadIdx.x, y = threadIdx.y;
    QUAD(tile[y][x * 4]) = in[y * 16 + x];
    __syncthreads();
    int r = y % 4 * 4, c = x * 4 + y / 4;
    out[y * 16 + x] = make_float4(tile[r][c], tile[r + 1][c], tile[r + 2][c], tile[r + 3][c]);
}
"""


def test_vectors_that_would_lie_askew_are_not_offered(tmp_path):
    path = text_file(tmp_path, QUADS)
    found = fixed_file(path, Launch(block=(16, 16, 1)), minimise="excess")
    assert found.after.evaluation.certain
    assert "k.cu:1: tile: vectors of 16 bytes would not stay whole" in found.arrays[0].reason


TEMPLATE = """template <class T> struct SharedMemory {
    __device__ operator T*() { extern __shared__ int words[]; return (T*)words; }
};
template <> struct SharedMemory<double> {
    __device__ operator double*() { extern __shared__ double doubles[]; return doubles; }
};
template <class T> __global__ void turn(const T* in, T* out) {
    T* s = SharedMemory<T>();
    for (int y = 0; y < 32; ++y) s[y * 32 + threadIdx.x] = in[y * 32 + threadIdx.x];
    __syncthreads();
    for (int y = 0; y < 32; ++y) out[y * 32 + threadIdx.x] = s[threadIdx.x * 32 + y];
}
template __global__ void turn<float>(const float*, float*);
template __global__ void turn<int>(const int*, int*);
"""


def test_a_structure_may_give_dynamic_memory_to_a_template(tmp_path):
    launch = Launch(block=(32, 1, 1), shared_bytes=4096)
    found = fixed_file(text_file(tmp_path, TEMPLATE), launch, lambda one: "<float>" in one.title)
    assert "s[s_at(y, threadIdx.x)]" in found.diff
    assert "launch with B + B / 8 bytes" in found.diff
    assert (conflicts(found.after), found.unknown_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("bulk_copy", "UBLKCP"),
        (
            "stencil_3d",
            "XORs of whole elements (4 bytes) within a quarter more bytes takes fewer wavefronts; other kinds",
        ),
        # 5 % longer on an H200
        ("early_exit", "is not expected to take less time"),
    ],
)
def test_why_an_array_stays_is_said(name, reason):
    found = fixed(name)
    assert not found.diff
    assert reason in found.arrays[0].reason


@pytest.mark.parametrize("column", ["threadIdx.y + j + s", "int(in[0]) * 0 + threadIdx.y + j"])
def test_a_column_that_arguments_or_data_decide_is_told(column, tmp_path):
    text = PLAIN.read_text().replace("int n", "int n, int s").replace("[threadIdx.y + j];", f"[{column}];")
    text_file(tmp_path, text)
    plain = answer("fix", PLAIN, *OPTIONS)["arrays"][0]
    done = layoutopt("fix", "k.cu", *OPTIONS, "--arg", "s=0", "--data", "in=iota", cwd=tmp_path)
    assert (done.returncode, plain["open_column"]) == (0, None)
    assert "tile: arguments or data may decide the column at k.cu:9; beyond the row" in done.stderr


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ("TILE(tile);", "got none; what macros declare is not changed: TILE (k.cu:1)"),
        (
            "\n#if 0\n__shared__ float tile[32][33];\n#else\n{}\n#endif\n",
            "k.cu:8, k.cu:10: branches of #if are",
        ),
    ],
)
def test_what_stands_before_a_declaration_is_said(declared, told, tmp_path):
    text, line = PLAIN.read_text(), "__shared__ float tile[32][32];"
    other = f"__global__ void other() {{ {line} }}\n"
    source = text_file(
        tmp_path,
        f"#define TILE(t) __shared__ float t[32][32]\n{other}" + text.replace(line, declared.format(line)),
    )
    launch = Launch(block=(32, 8, 1), grid=(2, 2, 1), arguments={"n": 64})
    found = fixed_file(source, launch, lambda one: one.name == "transpose")
    assert told in found.arrays[0].reason


@pytest.mark.parametrize("late", ["plans", "compiled"])
def test_the_limit_ends_the_search_and_is_told(late, monkeypatch):
    def spent(self, files, *rest):
        if files is None:
            return right(self, files, *rest)
        raise OutOfTime

    right = getattr(SourceCode, late)
    monkeypatch.setattr(SourceCode, late, spent)
    found = fixed("transpose_plain")
    assert (found.diff, found.out_of_time) == ("", True)
    assert "the time limit ended the search" in found.arrays[0].reason


OPTIONS = ("--block", "32,8", "--grid", "2,2", "--arg", "n=64")
PLAIN = kernel_launches.KERNELS / "transpose_plain.cu"


def test_the_diff_applies_and_write_does_the_same(tmp_path):
    text = PLAIN.read_text()
    one, other = (text_file(tmp_path / folder, text) for folder in "ab")
    done = layoutopt("fix", "k.cu", *OPTIONS, cwd=one.parent)
    assert done.returncode == 0, done.stderr
    assert re.search(r"bank conflicts +3,968 +0\n", done.stderr)
    assert "chosen for n=64; for other values nothing was compared" in done.stderr
    subprocess.run(["patch", "-p1"], input=done.stdout, cwd=one.parent, check=True, text=True)
    told = answer("fix", "k.cu", *OPTIONS, "--write", cwd=other.parent)
    assert (told["chosen_for"], told["out_of_time"]) == ({"n": 64}, False)
    assert (told["schema"], told["verified"], told["after"]["bank_conflicts"]) == ("layoutopt.fix/1", True, 0)
    assert one.read_text() == other.read_text() == text.replace("[32][32]", "[32][33]")
    again = layoutopt("fix", "k.cu", *OPTIONS, cwd=other.parent)
    assert (again.returncode, again.stdout) == (0, "")


def test_write_and_an_answer_in_a_file_go_together_unless_it_is_a_file_that_changes(tmp_path):
    text_file(tmp_path, PLAIN.read_text(), "tile.cuh")
    text_file(tmp_path, '#include "tile.cuh"\n')
    launches = '[[launch]]\nfile = "k.cu"\nblock = [32, 8]\ngrid = [2, 2]\narg = {n = 64}\n'
    text_file(tmp_path, launches, "l.toml")
    for asked in (("k.cu", *OPTIONS), ("l.toml",)):
        refused("-o would overwrite", "fix", *asked, "--write", "-o", "tile.cuh", cwd=tmp_path)
        done = layoutopt("fix", *asked, "--write", "-o", "fix.diff", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert (tmp_path / "fix.diff").read_text().startswith("--- a/tile.cuh")
        assert "[32][33]" in (tmp_path / "tile.cuh").read_text()
        text_file(tmp_path, PLAIN.read_text(), "tile.cuh")


@pytest.mark.parametrize("tool", ["patch -p1 --binary", "git apply"])
def test_a_diff_has_the_bytes_of_the_source(tool, tmp_path):
    ending = " // é \u202e\u200b\x1b\x0b\x0c\x85\u2028".encode() + b"\xe9\r\n"
    source = b"\xef\xbb\xbf" + PLAIN.read_bytes().replace(b"\n", ending)
    path = text_file(tmp_path / "a b", "", "k 1.cu")
    path.write_bytes(source.removesuffix(b"\r\n"))
    asked = ("fix", "a b/k 1.cu", *OPTIONS)
    done = layoutopt(*asked, "-o", "fix.diff", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    diff = (tmp_path / "fix.diff").read_bytes()
    piped = layoutopt(*asked, cwd=tmp_path, encoding="latin-1").stdout  # read with other ends of lines
    assert piped == diff.decode("latin-1").replace("\r\n", "\n")
    subprocess.run(tool.split(), input=diff, cwd=tmp_path, check=True)
    assert path.read_bytes() == source.removesuffix(b"\r\n").replace(b"[32][32]", b"[32][33]")


def test_arrays_of_headers_are_changed_there(tmp_path):
    header = text_file(tmp_path / "include", PLAIN.read_text(), "tile.cuh")
    source = text_file(tmp_path, "#include <tile.cuh>\n")
    done = layoutopt("fix", "k.cu", *OPTIONS, "-I", "include", "--write", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("--- a/include/tile.cuh")
    assert ("[32][33]" in header.read_text(), source.read_text()) == (True, "#include <tile.cuh>\n")


@pytest.mark.parametrize(
    ("ratios", "differing", "told"),
    [
        ((0.9, 0.95), 0, "rows of 128 bytes padded by 4"),
        ((1.03, 0.8, 0.9), 0, "vectors of 4 bytes moved by XOR"),
        ((1.03, 1.5), 0, "on the GPU, it takes 1.03 of the time"),
        ((0.9, 0.9), 7, "on the GPU, 7 bytes are others"),
    ],
)
def test_a_gpu_decides(ratios, differing, told):
    given, raced = iter(ratios), []

    class Gpu:
        def race(self, *both):
            raced.append(both)
            return Race((1.0, next(given)), differing, 0)

    found = fixed("transpose_plain", driver=Gpu())
    (array,) = found.arrays
    assert told in (array.offset or array.reason)
    assert bool(found.diff) == (found.race is not None) == (array.offset is not None)
    one, other = raced[0]
    assert (one.symbol, one.memory, one.parameters) == (other.symbol, other.memory, other.parameters)
    assert one.image != other.image
    assert [len(data) for data in one.memory.values()] == [1 << 26] * 2


def test_a_recorded_launch_is_one_of_the_source(tmp_path):
    kernel = LAUNCHES["transpose_plain"]
    (tmp_path / "a.bin").write_bytes(bytes(range(256)) * 64)
    parameters = struct.pack("<QQi", 0x7F0000000400, 0x7F0000100000, 64).hex()
    launch = f'entry = "{kernel.symbol}"\nblock = [32, 8]\ngrid = [2, 2]\nparameters = "{parameters}"'
    memory = 'memory = [{address = 0x7F0000000000, file = "a.bin"}]'
    launches = text_file(tmp_path, f"[[launch]]\n{launch}\n{memory}\n", "launches.toml")
    assert answer("fix", PLAIN, launches)["unknown_bytes"] == 0
    refused("--block is for a kernel", "fix", PLAIN, tmp_path, "--block", "32")
    refused("expected launches, got", "fix", PLAIN, PLAIN)


def test_what_is_no_source_or_array_is_said(tmp_path):
    refused("expected a CUDA source", "fix", text_file(tmp_path, "", "k.ptx"), "--block", "32")
    refused("expected one of the arrays (tile), got 'other'", "fix", PLAIN, *OPTIONS, "--array", "other")


TURN = """extern "C" __global__ void turn(const float* in, float* out, int n) {
    __shared__ float s[1024];
    int x = threadIdx.x, y = threadIdx.y, tid = y * 32 + x;
    for (int j = 0; j < 32; j += 8) s[(y + j) * 32 + x] = in[(y + j) * n + x];
    __syncthreads();
    MORE
    for (int j = 0; j < 32; j += 8) out[(y + j) * n + x] = s[x * 32 + y + j];
}
"""


def turned(tmp_path, more, grid=(2, 2, 1)):
    path = text_file(tmp_path, TURN.replace("MORE", more))
    return fixed_file(path, Launch(block=(32, 8, 1), grid=grid, arguments={"n": 64}))


def test_sizes_are_those_of_the_compiler(tmp_path):
    head = "namespace own { typedef struct { float v; } Tile; union Word { float v; int bits; }; }\n"
    text = TURN.replace("__shared__ float s[1024]", "extern __shared__ own::Tile s[]").replace("MORE", "")
    text = (
        re.sub(r"(s\[[^]]*\]) =", r"\1.v =", text)
        .replace("= s[", "= ((own::Word*)s)[")
        .replace("j];", "j].v;")
    )
    launch = Launch(block=(32, 8, 1), arguments={"n": 64}, shared_bytes=4096)
    diff = fixed_file(text_file(tmp_path, head + text), launch).diff
    assert "s[s_at(x, (y + j))].v = in" in diff
    assert "= ((own::Word*)s)[s_at(y + j, x)].v;" in diff


def test_a_change_that_does_not_compile_says_where(tmp_path):
    path = text_file(tmp_path, TURN.replace("MORE", ""))
    done = layoutopt("fix", path, "--block", "32,8", "--arg", "n=64", "--nvcc=-std=c++03")
    why = (
        f'the source changed so does not compile: {path}(3): error: explicit type is missing ("int" assumed)'
    )
    assert f"stays: s: rows of 128 bytes padded by 4: {why}; s: vectors" in done.stderr


def test_every_block_that_differs_is_compared(tmp_path):
    found = turned(
        tmp_path, "if (blockIdx.x) { for (int i = tid; i < 1024; i += 256) out[i] = s[i]; return; }"
    )
    assert found.blocks == ((0, 0, 0), (1, 0, 0))
    assert "out[i] = s[s_at(i)]" in found.diff  # longer rows alone were wrong there
    assert found.compared_bytes == found.changed_bytes > found.before.followed.changed_bytes
    assert turned(tmp_path, "").blocks == ((0, 0, 0),)


def test_too_many_blocks_that_differ_are_said(tmp_path):
    found = turned(tmp_path, "out[x] = s[blockIdx.x];", (20, 1, 1))
    assert "20 blocks that differ, too many to compare" in found.arrays[0].reason
    assert not found.diff


_FLAT = "float* p = s[0]; p[64 * y + 2 * x] = in[x]; __syncthreads(); out[x] = s[y][31 - x];"


@pytest.mark.parametrize(
    ("parameter", "body", "told"),
    [
        ("n", "s[y][x] = in[x]; __syncthreads(); out[x] = s[7 - y][x];", ""),
        ("n", _FLAT, "it may lie beyond its row"),
        ("m", "s[y][x] = in[x]; __syncthreads(); out[x] = s[y][m];", r"other cannot be checked with this"),
    ],
)
def test_other_kernels_that_share_an_array_are_compared(parameter, body, told, tmp_path):
    text = TURN.replace("__shared__ float s[1024];", "").replace("MORE", "")
    text = re.sub(r"s\[(.*?) \* 32 \+ (.*?)\]( =|;)", r"s[\1][\2]\3", text)
    head = f'extern "C" __global__ void other(const float* in, float* out, int {parameter})'
    other = f"{head} {{ int x = threadIdx.x, y = threadIdx.y; {body} }}"
    path = text_file(tmp_path, f"__shared__ float s[32][32];\n{text}{other}\n")
    launch = Launch(block=(32, 8, 1), arguments={"n": 64})
    found = fixed_file(path, launch, lambda one: one.name == "turn")
    assert ("+__shared__ float s[32][33];" in found.diff) == (not told)
    assert re.search(told, found.arrays[0].reason)


@pytest.mark.parametrize("name", ["seen", "unseen"])
def test_kernels_whose_symbols_depend_on_the_folder_are_changed(name, tmp_path):
    body = "s[y][x] = in[y * 32 + x]; __syncthreads(); out[y * 32 + x] = s[x][y];"
    signature = "(const float* in, float* out) { int x = threadIdx.x, y = threadIdx.y; "
    seen, unseen = (f"__global__ void {one}{signature}{body} }}" for one in ("seen", "unseen"))
    call = "void call(float* a) { unseen<<<1, dim3(32, 32)>>>(a, a); }"
    path = text_file(tmp_path, f"__shared__ float s[32][32];\n{seen}\nnamespace {{ {unseen} }}\n{call}\n")
    found = fixed_file(path, Launch(block=(32, 32, 1)), lambda one: one.title.startswith(f"{name}("))
    assert "+__shared__ float s[32][33];" in found.diff
    assert conflicts(found.after) == 0


_LAUNCHED = "int n = 64; turn<<<1, dim3(32, 8), 4096>>>(a, b, n); "
_ASKED = "at turn.cu:10 must ask for B + B / 32 bytes where it asked for B bytes"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("", ""),
        (
            "void (*k)(const float*, float*, int) = turn; k<<<1, 256, 4096>>>(a, b, n);",
            _ASKED,
        ),
        ("cudaLaunchKernel((void*)turn, dim3(1), dim3(32, 8), nullptr, 4096, 0);", _ASKED),
        ("cudaFuncSetAttribute(turn, cudaFuncAttributeMaxDynamicSharedMemorySize, 4096);", _ASKED),
    ],
)
def test_every_launch_asks_for_the_bytes_of_longer_rows(more, told, tmp_path):
    kernel = TURN.replace("float s[1024]", "float s[]").replace("__shared__", "extern __shared__")
    path = tmp_path / "turn.cu"
    path.write_text(f"\n{kernel.replace('MORE', '')}void host(float* a, float* b) {{{_LAUNCHED}{more}\n}}\n")
    found = fixed_file(path, Launch(block=(32, 8, 1), arguments={"n": 64}, shared_bytes=4096))
    assert found.diff.count("4096 + 4096 / 32") == 1
    assert told in found.arrays[0].reason
    assert bool(found.arrays[0].reason) == bool(told)


def test_a_launch_that_a_macro_writes_keeps_its_bytes(tmp_path):
    kernel = TURN.replace("float s[1024]", "float s[]").replace("__shared__", "extern __shared__")
    kernel = "#define LAUNCH(k, bytes) k<<<1, 256, bytes>>>(a, b, n)\n" + kernel.replace("MORE", "")
    path = text_file(
        tmp_path, f"{kernel}void host(float* a, float* b) {{{_LAUNCHED}LAUNCH(turn, 4096);\n}}\n"
    )
    found = fixed_file(path, Launch(block=(32, 8, 1), arguments={"n": 64}, shared_bytes=4096))
    assert "s[s_at((y + j) * 32 + x)]" in found.diff
    assert "4096 / 32" not in found.diff


def test_dynamic_memory_that_has_two_names_stays(tmp_path):
    kernel = TURN.replace("float s[1024]", "float s[]").replace("__shared__", "extern __shared__")
    more = "__device__ void f(int i) { extern __shared__ float s[]; s[i] = 1; }\n#define F(i) f(i)\n"
    launch = Launch(block=(32, 8, 1), arguments={"n": 64}, shared_bytes=4096)
    path = text_file(tmp_path, more + kernel.replace("MORE", "if (n == 77) F(x);"))
    found = fixed_file(path, launch)
    assert not found.diff
    assert "expected one extern __shared__ declaration in the source, got k.cu:" in found.arrays[0].reason
    path = text_file(tmp_path, more + kernel.replace("MORE", ""))
    assert "s[s_at(y + j, x)]" in fixed_file(path, launch).diff


def test_a_file_outside_of_the_folder_is_named_from_the_root(tmp_path):
    path = text_file(tmp_path, PLAIN.read_text())
    (tmp_path / "sub").mkdir()
    done = layoutopt("fix", "../k.cu", *OPTIONS, cwd=tmp_path / "sub")
    assert "apply the diff with patch -p1 -d /" in done.stderr
    subprocess.run(["patch", "-p1", "-d", "/"], input=done.stdout, check=True, text=True)
    assert "[32][33]" in path.read_text()


def test_conflicts_that_may_remain_are_no_success(tmp_path):
    path = text_file(tmp_path, TURN.replace("MORE", "if (in[y] < 0) s[tid] = 1;"))
    done = layoutopt("fix", path, "--block", "32,8", "--arg", "n=64")
    assert re.search(r"bank conflicts +992 +0\n", done.stderr)
    assert "not certain: which lanes execute STS" in done.stderr
    assert done.returncode == 1


def test_a_whole_number_of_a_kernel_without_types_has_no_sign(tmp_path):
    refused("2 32-bit n; pointers", "fix", text_file(tmp_path, TURN.replace("MORE", "")))


_FLAT = "s[1024]", "s[(ty + j) * 32 + tx]", "s[tx * 32 + ty + j]"
_NAMED = "s_in[1024]", "s_in[(ty + j) * 32 + tx]", "s_in[tx * 32 + ty + j]"
_ROWS = "s[32][32]", "s[ty + j][tx]", "s[tx][ty + j]"
_IN_ORDER = "for (int i = t; i < 1024; i += 256)"
_BEYOND, _HIDDEN = "it may lie beyond its row: i", "a macro hides what is written here"


def in_macros(folder, form, macros, body):
    declared, stored, loaded = form
    text = f"""{macros}
extern "C" __global__ void k(const float* in, float* out, int mode) {{
    __shared__ float {declared};
    const int tx = threadIdx.x, ty = threadIdx.y, t = ty * 32 + tx;
    for (int j = 0; j < 32; j += 8) {stored} = in[j * 32 + t];
    __syncthreads();
    if (mode) {{ {body} }}
    else for (int j = 0; j < 32; j += 8) out[j * 32 + t] = {loaded};
}}
"""
    launch = ("--block", "32,8", "--arg", "mode=0", "--json")
    return json.loads(layoutopt("fix", text_file(folder, text), *launch).stdout)


@pytest.mark.parametrize(
    ("form", "macros", "body", "why"),
    [
        (_NAMED, "#define CAT(a, b) a##b", "out[t] = CAT(s_, in)[tx + 40];", _HIDDEN),
        (_FLAT, "#define AT(i) s[i]\n#define BACK(i) AT(i + 1)", "out[t] = BACK(t);", _HIDDEN),
        (_ROWS, "#define LEN(x) sizeof(#x)", "out[t] = LEN(s[tx][ty]) + sizeof(s[0]);", _HIDDEN),
        (_ROWS, "#define FLAT(a) (&a[0][0])", f"{_IN_ORDER} out[i] = FLAT(s)[i];", _BEYOND),
        (_ROWS, "#define FLAT(a, i) ((*a)[i])", f"{_IN_ORDER} out[i] = FLAT(s, i);", _BEYOND),
        (_ROWS, "#define FILL(a) for (int i = 0; i < 1024; i++) a[0][i] = i", "FILL(s);", _BEYOND),
        (_ROWS, "#define S(i) s[0][i]", f"{_IN_ORDER} out[i] = S(i);", _BEYOND),
    ],
)
def test_what_macros_make_of_an_array_is_seen(form, macros, body, why, tmp_path):
    told = in_macros(tmp_path, form, macros, body)
    assert told["diff"] == ""
    assert re.search(rf"k\.cu:\d: \w+: {why}", told["arrays"][0]["reason"])


@pytest.mark.parametrize(
    ("macros", "body", "expected"),
    [
        (
            "#define PITCH HALF + HALF\n#define HALF 16",
            "out[t] = s[ty * PITCH + tx];",
            "s[s_at(ty * PITCH + tx)]",
        ),
        ("#define N (8 * 4)\n#define e 2.5f", "out[t] = s[ty * N + tx] * e;", "s[s_at(tx, ty)] * e"),
    ],
)
def test_macros_that_hide_nothing_are_kept(macros, body, expected, tmp_path):
    assert expected in in_macros(tmp_path, _FLAT, macros, body)["diff"]
