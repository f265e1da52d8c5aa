"""Sources rewritten for a layout, without a compiler: what is changed, and what is refused with its line."""

import difflib

import numpy as np
import pytest

from layoutopt.errors import ProblemFileError
from layoutopt.kernels.read.source import File, Source, every
from layoutopt.kernels.read.values import Values
from layoutopt.source.moves import Move, flips, pads, transpositions
from layoutopt.source.rewrite import Moved, Pitched
from layoutopt.source.transposed import Transposed
from layoutopt.source.walk import rendered

COLUMNS = Move(128, 16, unit=4, rows=32)
PAD, PAD4, XOR = Move(128, 16, unit=16), Move(128, 4, unit=4), Move(128, 0, ((0, 7),), 16)


def rewritten(tmp_path, text, form, move=PAD, name="s", extents=(), title="k(float*)", **more):
    path = tmp_path / "kernel.cu"
    path.write_text(text)
    source = Source(path, **more)
    (array,) = [one for one in source.variables(name) if one.is_shared]
    values = Values(source, title)
    edits = form(source, values, array, values.size(array.file, array.type), extents, move).run()
    new = rendered(source.files[0], edits).decode()
    return [line[1:].strip() for line in difflib.ndiff(text.splitlines(), new.splitlines()) if line[0] == "+"]


def kernel(body, head="", declaration="__shared__ float s[1024];"):
    opening = "__global__ void k(float* out, int n) {"
    return f"{head}\n{opening}\n  {declaration}\n  int t = threadIdx.x;\n  {body}\n}}\n"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("s[t / 32 * 32 + t % 32] = 0;", "s[t / 32 * 36 + t % 32] = 0;"),
        ("s[(t / 8 << 5) + t % 8] = 0;", "s[((t / 8) * 36) + t % 8] = 0;"),
        ("s[n * 64 + 3] = 0;", "s[n * 72 + 3] = 0;"),
        (
            "for (int i = 0; i < 32; ++i) s[t * 32 + i] = 0;",
            "for (int i = 0; i < 32; ++i) s[t * 36 + i] = 0;",
        ),
        ("float* p = s + t * 32; p[3] = 0;", "float* p = s + t * 36; p[3] = 0;"),
        ("float* p = &s[t * 32]; p += 32; p[3] = 0;", "float* p = &s[t * 36]; p += 36; p[3] = 0;"),
        (
            "reinterpret_cast<float4*>(s)[t * 8 + n * 16] = {};",
            "reinterpret_cast<float4*>(s)[t * 9 + n * 18] = {};",
        ),
        ("atomicAdd(&s[t * 32 + 1], 1.f);", "atomicAdd(&s[t * 36 + 1], 1.f);"),
        ("int e = t * 32 + 4; s[e] = s[e + 1];", "int e = t * 36 + 4; s[e] = s[e + 1];"),
    ],
)
def test_pitches_of_indices_become_longer(tmp_path, body, expected):
    assert rewritten(tmp_path, kernel(body), Pitched) == ["__shared__ float s[32 * 36];", expected]


@pytest.mark.parametrize(
    ("declaration", "head", "expected"),
    [
        ("__shared__ float s[R * W];", "#define W 32\n#define R 8", "__shared__ float s[R * (W + 4)];"),
        ("__shared__ float s[8 * W];", "constexpr int W = 1 << 5;", "__shared__ float s[8 * (W + 4)];"),
        ("__shared__ float s[N];", "#define N 256", "__shared__ float s[N + N / 32 * 4];"),
    ],
)
def test_the_declaration_holds_the_longer_rows(tmp_path, declaration, head, expected):
    found = rewritten(tmp_path, kernel("s[t * 32] = 0;", head, declaration), Pitched)
    assert found == [expected, "s[t * 36] = 0;"]


@pytest.mark.parametrize(
    ("launch", "expected"),
    [
        ("4 * n * sizeof(float)", "(4 * n * sizeof(float)) + (4 * n * sizeof(float)) / 128 * 16"),
        ("bytes", "bytes + bytes / 128 * 16"),
    ],
)
def test_launches_ask_for_more_dynamic_memory(tmp_path, launch, expected):
    most = "cudaFuncSetAttribute(%s, cudaFuncAttributeMaxDynamicSharedMemorySize, %s); "
    host = "void host(int n, int bytes) {{ " + most % ("(const void*)&k", "{0}") + most % ("other", "bytes")
    host += "k<<<1, 32, {0}>>>(0, n); other<<<1, 32, bytes>>>(); }}"
    text = kernel("s[t * 32] = 0;", "__global__ void other() {}", "extern __shared__ float s[];")
    found = rewritten(tmp_path, text + host.format(launch), Pitched)
    assert found == ["s[t * 36] = 0;", host.format(expected)]
    with pytest.raises(ProblemFileError, match="these bytes may be the kernel's"):
        rewritten(tmp_path, text + host.format(launch).replace("(other", "(f"), Pitched)


def test_without_a_launch_the_declaration_says_the_bytes(tmp_path):
    found = rewritten(tmp_path, kernel("s[t * 32] = 0;", "", "extern __shared__ float s[];"), Pitched)
    said = "launch with B + B / 128 * 16 bytes, where it was B bytes"
    assert found == [f"extern __shared__ float s[];  /* {said} */", "s[t * 36] = 0;"]


def test_a_pitch_that_a_template_decides_has_one_name(tmp_path):
    text = "template <int W, int V> __global__ void k(float* out) {\n  __shared__ float s[8 * W];\n" \
        "  s[threadIdx.x / 8 * W] = s[threadIdx.x / 8 * V];\n}\n"  # fmt: skip
    with pytest.raises(ProblemFileError, match="another instance of the template"):
        rewritten(tmp_path, text, Pitched, title="void k<32, 32>(float*)")


def test_rows_of_several_extents_are_padded_in_the_declaration_alone(tmp_path):
    text = kernel("s[1][t][n] = *(float4*)&s[0][t][4]; float* r = s[0][t]; r[n] = 0;", "#define W 32",
                  "__shared__ float s[2][16][W];")  # fmt: skip
    assert rewritten(tmp_path, text, Pitched, extents=(2, 16, 32)) == ["__shared__ float s[2][16][W + 4];"]


@pytest.mark.parametrize(
    ("parameter", "longer"),
    [
        ("float (*p)[32]", "float (*p)[36]"),
        ("float p[16][W]", "float p[16][W + 4]"),
        ("float (&p)[16][W]", "float (&p)[16][W + 4]"),
        ("float p[16][16][32]", None),
        ("float (*p)", None),
    ],
)
def test_a_pointer_to_rows_has_their_length(tmp_path, parameter, longer):
    head = f"#define W 32\n__device__ void f({parameter}, int n) {{ p[n][1] = 0; }}"
    text = kernel("f(s[1], t); auto q = s[0]; q[n][t] = 0;", head, "__shared__ float s[2][16][W];")
    if longer is None:
        with pytest.raises(ProblemFileError, match=r"kernel.cu:6: s: p has other extents"):
            rewritten(tmp_path, text, Pitched, extents=(2, 16, 32))
        return
    assert rewritten(tmp_path, text, Pitched, extents=(2, 16, 32)) == [
        f"__device__ void f({longer}, int n) {{ p[n][1] = 0; }}",
        "__shared__ float s[2][16][W + 4];",
    ]


def test_a_function_that_changes_is_called_for_the_array_alone(tmp_path):
    head = "__device__ void f(float* p, int r) {{ p[r{}] = 0; p[3] = 1; }}"
    body = "f(s, t % 32); f(out, 3);"
    assert rewritten(tmp_path, kernel(body, head.format("")), Pitched)[-1] == "__shared__ float s[32 * 36];"
    with pytest.raises(ProblemFileError, match=r"f is called for other memory, too \(kernel.cu:5\)"):
        rewritten(tmp_path, kernel(body, head.format(" * 32")), Pitched)


def test_the_arguments_of_a_template_give_pitches(tmp_path):
    text = "template <int BM, typename T> __global__ void k(T* out) {\n  __shared__ T s[8 * BM];\n" \
        "  for (int i = 0; i < BM; i += 4) s[threadIdx.x * BM + i] = 0;\n}\n"  # fmt: skip
    found = rewritten(tmp_path, text, Pitched, title="void k<32, float>(float*)")
    assert found == [
        "__shared__ T s[8 * (BM + 4)];",
        "for (int i = 0; i < BM; i += 4) s[threadIdx.x * (BM + 4) + i] = 0;",
    ]


def test_macros_and_functions_are_followed(tmp_path):
    head = "#define S(i, j) s[((j) << 5) + (i)]\n__device__ void f(float* p, int r) { p[r * 32 + 1] = 0; }"
    found = rewritten(tmp_path, kernel("S(t % 32, n) = 0; f(s, t);", head), Pitched)
    assert found == [
        "#define S(i, j) s[((j) * 36) + (i)]",
        "__device__ void f(float* p, int r) { p[r * 36 + 1] = 0; }",
        "__shared__ float s[32 * 36];",
    ]


AT = "const auto s_at = [](int e) { return ((e & -4) ^ (e >> 5 & 7) * 4) + (e & 3); };"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("s[n + t] = s[n++];", "s[s_at(n + t)] = s[s_at(n++)];"),
        ("*(float4*)&s[n] = {};", "*(float4*)&s[s_at(n)] = {};"),
        ("reinterpret_cast<float4*>(s)[n] = {};", "reinterpret_cast<float4*>(s)[s_at(4 * n) / 4] = {};"),
        ("float* p = s + n; p[t] = *p;", "float* p = s + n; s[s_at(int(p - s) + t)] = s[s_at(int(p - s))];"),
        ("float* p = s; p[t] = 0;", "float* p = s; p[s_at(t)] = 0;"),
        ("atomicAdd(s + n, 1.f);", "atomicAdd(s + s_at(n), 1.f);"),
        ("s[(int)s[n]] = 0;", "s[s_at((int)s[s_at(n)])] = 0;"),
    ],
)
def test_indices_go_through_a_function(tmp_path, body, expected):
    assert rewritten(tmp_path, kernel(body), Moved, XOR) == [AT, expected]


def test_an_xor_of_several_extents_is_one_of_the_last(tmp_path):
    text = kernel("s[n][t] = 0; *(float4*)&s[n][4 * t] = {};", "", "__shared__ float s[32][32];")
    assert rewritten(tmp_path, text, Moved, XOR, extents=(32, 32)) == [
        "const auto s_at = [](int r, int c) { return ((c & -4) ^ (r & 7) * 4) + (c & 3); };",
        "s[n][s_at(n, t)] = 0; *(float4*)&s[n][s_at(n, 4 * t)] = {};",
    ]


@pytest.mark.parametrize(
    ("declaration", "extents", "inside", "expected"),
    [
        (
            "s[N]",
            (),
            False,
            ("s[(N + 31) / 32 * 32 + (N + 31) / 32 * 32 / 32 * 4]", "int e", "s_at(32 * n + t)"),
        ),
        ("s[8][W]", (8, 32), False, ("s[8][W + 4]", "int r, int c", "n][s_at(n, t)")),
        ("s[8][128]", (8, 128), True, ("s[8][144]", "int c", "n][s_at(t)")),
    ],
)
def test_rows_moved_by_xor_are_padded(tmp_path, declaration, extents, inside, expected):
    body = "s[n][t] = 0;" if extents else "s[32 * n + t] = 0;"
    text = kernel(body, "#define W 32\n#define N 1000", f"__shared__ float {declaration};")
    move = Move(128, 16, ((0, 7),), 16, inside)
    found = rewritten(tmp_path, text, Moved, move, extents=extents)
    assert found[0] == f"__shared__ float {expected[0]};"
    assert f"[]({expected[1]}) {{ return ((" in found[1]
    assert expected[2] in found[-1]
    if extents == (8, 32):
        ratio = "sizeof(s[0]) / sizeof(s[0][0]) - 4"
        assert found[2] == f'static_assert(({ratio}) % 32 == 0, "elements move among 32");'


def test_columns_are_padded_within_rows(tmp_path):
    text = kernel("s[n][t] = 0;", "#define W 128", "__shared__ float s[8][W];")
    assert rewritten(tmp_path, text, Moved, Move(128, 16, unit=16, inside=True), extents=(8, 128)) == [
        "__shared__ float s[8][W + W / 32 * 4];",
        "const auto s_at = [](int c) { return c + (c >> 5) * 4; };",
        "s[n][s_at(t)] = 0;",
    ]
    moved = Move(128, 16, inside=True).apply(np.arange(4096))
    assert np.unique(moved).size == 4096
    assert moved.max() < Move(128, 16, inside=True).size(4096) == 8 * 576


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("s[t % 8 * 32 + t / 8] = s[(t << 5) + 3];", "s[(t % 8) + (t / 8) * 36] = s[(t) + 3 * 36];"),
        ("s[n * 64 + (t + 1)] = s[32 + t];", "s[n * 2 + (t * 36 + 1 * 36)] = s[1 + t * 36];"),
        ("float* p = s + t * 32; p += 32; p[3] = 0;", "float* p = s + t; p += 1; p[3 * 36] = 0;"),
        ("atomicAdd(&s[t * 32], 1.f);", "atomicAdd(&s[t], 1.f);"),
        ("s[(int)s[n * 32] * 32] = 0;", "s[(int)s[n]] = 0;"),
    ],
)
def test_rows_of_indices_become_columns(tmp_path, body, expected):
    found = rewritten(tmp_path, kernel(body), Transposed, COLUMNS)
    assert found == ["__shared__ float s[32 * 36];", expected]


def test_factors_and_extents_change_places(tmp_path):
    head, declaration = "#define R 32\n#define W (8 * 4)", "__shared__ float s[R * W];"
    text = kernel("s[t * W + 1] = 0;", head.replace("32", "16"), declaration)
    assert rewritten(tmp_path, text, Transposed, Move(128, 0, unit=4, rows=16)) == [
        "__shared__ float s[W * R];",
        "s[t + 1 * R] = 0;",
    ]
    text = kernel("s[1][t][n] = s[0][(int)s[0][t][0]][n];", head, "__shared__ float s[2][R][W];")
    assert rewritten(tmp_path, text, Transposed, COLUMNS, extents=(2, 32, 32)) == [
        "__shared__ float s[2][W][R + 4];",
        "s[1][n][t] = s[0][n][(int)s[0][0][t]];",
    ]


SQUARE = "__shared__ float s[32][32];"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("*(float4*)&s[t][n] = {};", "vectors of 16 bytes would not stay whole"),
        ("float* p = s[t]; p[n] = 0;", "a pointer into rows is used"),
        ("*(s[t] + n) = 0;", "a pointer into rows is used"),
        ("float* p = &s[t][n]; ++p;", "a pointer into rows is used"),
    ],
)
def test_rows_that_are_used_as_such_stay(tmp_path, body, why):
    with pytest.raises(ProblemFileError, match=why):
        rewritten(tmp_path, kernel(body, "", SQUARE), Transposed, COLUMNS, extents=(32, 32))


@pytest.mark.parametrize(
    ("form", "move", "body", "why"),
    [
        (Transposed, COLUMNS, "s[t * 32 + n] = 0;", "whether it stays within a row depends on arguments"),
        (Transposed, COLUMNS, "*(float4*)&s[t * 32] = {};", "vectors of 16 bytes would not stay whole"),
        (
            Pitched,
            PAD,
            "s[t * 32 + n] = 0;",
            "kernel.cu:5: s: whether it stays within a row depends on arguments",
        ),
        (Pitched, PAD, "s[t * 32 + (int)out[t]] = 0;", "whether it stays within a row depends"),
        (Pitched, PAD, "int e = t * 32; s[e] = e;", "e holds rows, and is used elsewhere"),
        (Pitched, PAD, "g(s);", "it is passed to g, which is not defined here once"),
        (Moved, XOR, "g(s);", "it is passed to g, which is not defined here once"),
        (Moved, PAD4, "reinterpret_cast<float4*>(s)[n] = {};", "vectors of 16 bytes would not stay whole"),
        (Moved, XOR, "unsigned long p = (unsigned long)s;", "it is cast to unsigned long"),
        (Moved, XOR, "char* p = (char*)s; p[n] = 0;", "a pointer to parts of its elements is followed"),
        (Moved, XOR, "out = t ? s : out;", "it is used in a conditional expression"),
        (Moved, XOR, "float* q[2]; q[0] = s;", "it is kept where it cannot be followed"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_line(tmp_path, form, move, body, why):
    with pytest.raises(ProblemFileError, match=r"kernel.cu:\d+: ") as error:
        rewritten(tmp_path, kernel(body), form, move)
    assert why in str(error.value)


def test_a_macro_may_reach_one_element_at_a_pointer(tmp_path):
    head = "#define vload(v, p) v = *((float4*)(p));"
    found = rewritten(tmp_path, kernel("float4 v; vload(v, &s[t * 32]);", head), Pitched)
    assert found == ["__shared__ float s[32 * 36];", "float4 v; vload(v, &s[t * 36]);"]
    with pytest.raises(ProblemFileError, match="passed to vload, which is not defined here once"):
        rewritten(tmp_path, kernel("vload(v, &s[t * 32]);", head.replace("(p)", "(p + n)")), Pitched)


def test_what_the_parser_does_not_understand_elsewhere_is_no_matter(tmp_path):
    text = f"#define BEGIN(x) {{\nBEGIN(x) }}\n{kernel('s[t * 32] = 0;')}\n}}}} BEGIN(\n"
    assert rewritten(tmp_path, text, Pitched) == ["__shared__ float s[32 * 36];", "s[t * 36] = 0;"]
    text = kernel("if (n) { out[0] = = 1 1; }\n s[t * 32] = 0;").replace("float* out", "float* RESTRICT out")
    assert rewritten(tmp_path, text, Pitched) == ["__shared__ float s[32 * 36];", "s[t * 36] = 0;"]
    with pytest.raises(ProblemFileError, match="the parser does not understand the statement"):
        rewritten(tmp_path, kernel("s[t * 32] = = 0 0;"), Pitched)


def test_a_macro_that_names_arrays_of_two_kernels_is_refused(tmp_path):
    text = (
        kernel("S(t) = 0;", "#define S(i) s[i]").replace("void k", "void other")
        + "float u;\n"
        + kernel("S(t) = 0;")
    )
    path = tmp_path / "kernel.cu"
    path.write_text(text)
    source = Source(path)
    with pytest.raises(ProblemFileError, match=r"the macro S .* is used for other arrays, too"):
        list(source.uses(next(source.variables("s"))))


@pytest.mark.parametrize(
    "move",
    [
        *(*pads(128, 4, 4096), *flips(128, 4, 4096), *flips(256, 16, 4096), *flips(96, 16, 960)),
        *(*flips(128, 4, 4096, True), *flips(256, 16, 4096, True), *flips(96, 16, 960, True)),
        Move(16, 0, ((0, 8), (1, 4), (2, 2), (3, 1)), 8),  # one bit flips four
        *transpositions(128, 4, 2048),
    ],
)
def test_formulas_are_the_layouts(move):
    size = 960 if move.row == 96 else 4096
    offsets = np.arange(size)
    moved = move.apply(offsets)
    assert np.unique(moved).size == size
    assert moved.max() < move.size(size)
    e = offsets[::4] // 4
    if move.rows:
        plane, r, c = e // 512, e // 32 % 16, e % 32
        assert np.array_equal(moved[::4], plane * move.row // 4 * move.longer + 4 * r + c * move.longer)
        return
    flat = eval(move.new_index("e", 4).replace("/", "//"), {"e": e})
    assert np.array_equal(flat * 4, moved[::4])
    if move.terms and move.row >= move.block and not move.extra:
        r, c = e // (move.row // 4), e % (move.row // 4)
        assert np.array_equal(
            (r * (move.row // 4) + eval(move.new_index("c", 4, "r"), {"r": r, "c": c})) * 4, moved[::4]
        )


def test_bodies_of_macros_keep_their_places_and_nothing_before_them_is_read_again():
    text = "".join(f"#define M{k}(x) (s[x] + \\\n  {k})\n" for k in range(4000))
    file = File("k.cu", text.encode())
    last = file.macros[-1]
    found = [node for node in every(last.body) if node.type == "number_literal"]
    assert [file.place(node) for node in found if file.text(node) == "3999"] == ["k.cu:7999"]
