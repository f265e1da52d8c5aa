"""Sources rewritten for a layout, without a compiler: what is changed, and what is refused with its line."""

import difflib
import re

import numpy as np
import pytest
from written import refused_with

from layoutopt.errors import ProblemFileError
from layoutopt.kernels.read.source import File, Source, every
from layoutopt.kernels.read.values import Values
from layoutopt.source.edits import rendered
from layoutopt.source.moves import Move, flips, pads, transpositions
from layoutopt.source.rewrite import Moved, Pitched
from layoutopt.source.transposed import Transposed

COLUMNS = Move(128, 16, unit=4, rows=32)
SQUARE = "__shared__ float s[32][32];"
PAD, PAD4, XOR = Move(128, 16, unit=16), Move(128, 4, unit=4), Move(128, 0, ((0, 7),), 16)


def rewritten(tmp_path, text, form=Pitched, move=PAD, extents=(), title="k(float*)"):
    """The lines that are new or changed."""
    path = tmp_path / "kernel.cu"
    path.write_text(text)
    source = Source(path)
    (array,) = [one for one in source.variables("s") if one.is_shared]
    values = Values(source, title, (256, 1, 1))
    edits = form(source, values, array, values.size(array.file, array.type), extents, move).run()
    new = rendered(source.files[0], edits).decode()
    return [line[1:].strip() for line in difflib.ndiff(text.splitlines(), new.splitlines()) if line[0] == "+"]


def kernel(body, head="", declaration="__shared__ float s[1024];"):
    opening = "__global__ void k(float* out, int n) {"
    return f"{head}\n{opening}\n  {declaration}\n  int t = threadIdx.x;\n  {body}\n}}\n"


PITCHED, AT = (
    "__shared__ float s[32 * 36];",
    "const auto s_at = [](int e) { return ((e & -4) ^ (e >> 5 & 7) * 4) + (e & 3); };",
)
# Each way to write a layout: how the array moves, the line that is written for it, and what bodies become.
BODIES = {
    Pitched: (PAD, PITCHED, {
        "s[t / 32 * 32 + t % 32] = 0;": "s[t / 32 * 36 + t % 32] = 0;",
        "s[(t / 8 << 5) + t % 8] = 0;": "s[((t / 8) * 36) + t % 8] = 0;",
        "s[n * 64 + 3] = 0;": "s[n * 72 + 3] = 0;",
        "for (int i = 0; i < 32; ++i) s[t * 32 + i] = 0;": "for (int i = 0; i < 32; ++i) s[t * 36 + i] = 0;",
        "float* p = s + t * 32; p[3] = 0;": "float* p = s + t * 36; p[3] = 0;",
        "float* p = &s[t * 32]; p += 32; p[3] = 0;": "float* p = &s[t * 36]; p += 36; p[3] = 0;",
        "reinterpret_cast<float4*>(s)[t * 8 + n * 16] = {};": "reinterpret_cast<float4*>(s)[t * 9 + n * 18] = {};",
        "atomicAdd(&s[t * 32 + 1], 1.f);": "atomicAdd(&s[t * 36 + 1], 1.f);",
        "int e = t * 32 + 4; s[e] = s[e + 1];": "int e = t * 36 + 4; s[e] = s[e + 1];",
    }),
    Moved: (XOR, AT, {
        "s[n + t] = s[n++];": "s[s_at(n + t)] = s[s_at(n++)];",
        "*(float4*)&s[n] = {};": "*(float4*)&s[s_at(n)] = {};",
        "reinterpret_cast<float4*>(s)[n] = {};": "reinterpret_cast<float4*>(s)[s_at(4 * n) / 4] = {};",
        "float* p = s + n; p[t] = *p;": "float* p = s + n; s[s_at(int(p - s) + t)] = s[s_at(int(p - s))];",
        "float* p = s; p[t] = 0;": "float* p = s; p[s_at(t)] = 0;",
        "atomicAdd(s + n, 1.f);": "atomicAdd(s + s_at(n), 1.f);",
        "s[(int)s[n]] = 0;": "s[s_at((int)s[s_at(n)])] = 0;",
        "float* p = s + n; s[(int)p[t]] = 0;": "float* p = s + n; s[s_at((int)s[s_at(int(p - s) + t)])] = 0;",
        "int* k = (int*)(s + n); k[t] = 1;":
            "int* k = (int*)(s + n); reinterpret_cast<int*>(s)[s_at(int(k - reinterpret_cast<int*>(s)) + t)] = 1;",
        "volatile float* v = s + n; v[t] = 1;":
            "volatile float* v = s + n; reinterpret_cast<volatile float*>(s)"
            "[s_at(int(v - reinterpret_cast<volatile float*>(s)) + t)] = 1;",
    }),
    Transposed: (COLUMNS, PITCHED, {
        "s[t % 8 * 32 + t / 8] = s[(t << 5) + 3];": "s[(t % 8) + (t / 8) * 36] = s[(t) + 3 * 36];",
        "s[n * 64 + (t % 8 + 1)] = s[32 + 7];": "s[n * 2 + ((t % 8) * 36 + 1 * 36)] = s[1 + 7 * 36];",
        "float* p = s + t * 32; p += 32; p[3] = 0;": "float* p = s + t; p += 1; p[3 * 36] = 0;",
        "atomicAdd(&s[t * 32], 1.f);": "atomicAdd(&s[t], 1.f);",
        "s[(int)s[n * 32] * 32] = 0;": "s[(int)s[n]] = 0;",
    }),
}  # fmt: skip


@pytest.mark.parametrize(("form", "body"), [(form, body) for form in BODIES for body in BODIES[form][2]])
def test_indices_become_those_of_the_layout(tmp_path, form, body):
    move, line, expected = BODIES[form]
    assert rewritten(tmp_path, kernel(body), form, move) == [line, expected[body]]


def template(arguments, element, body):
    return f"template <{arguments}> __global__ void k({element}* out) {{\n  __shared__ {element} s[8 * W];\n  {body}\n}}\n"


BEFORE, ROWS = "s[t * 32] = 0;", "__shared__ float s[2][16][W];"
POINTER = "#define W 32\n__device__ void f({}, int n) {{ p[n][1] = 0; }}"
CALLED = "__device__ void f(float* p, int r) {{ p[r{}] = 0; p[3] = 1; }}"
POINTED = "f(s[1], t); auto q = s[0]; q[n][t] = 0;"
CALL = "template <int M> __device__ void f(float* p, int c, int r) {{ for (int i = c; i < 32; i += M) p[r * {} + i] = 0; }}"
LOAD = "#define vload(v, p) v = *((float4*)({}));"
# A source, what it becomes, and how: by a pad of 16 bytes if nothing else is said.
SOURCES = {
    **{
        f"the declaration holds the longer rows: {declaration}": (
            kernel(BEFORE, head, declaration), [expected, "s[t * 36] = 0;"], {},
        )
        for declaration, head, expected in (
            ("__shared__ float s[R * W];", "#define W 32\n#define R 8", "__shared__ float s[R * (W + 4)];"),
            ("__shared__ float s[8 * W];", "constexpr int W = 1 << 5;", "__shared__ float s[8 * (W + 4)];"),
            ("__shared__ float s[N];", "#define N 256", "__shared__ float s[N + N / 32 * 4];"),
            # There is no launch here.
            ("extern __shared__ float s[];", "",
             "extern __shared__ float s[];  /* launch with B + B / 128 * 16 bytes, where it was B bytes */"),
        )
    },
    "rows of several extents are padded in the declaration alone": (
        kernel("s[1][t][n] = *(float4*)&s[0][t][4]; float* r = s[0][t]; r[n] = 0;", "#define W 32", ROWS),
        ["__shared__ float s[2][16][W + 4];"], {"extents": (2, 16, 32)},
    ),
    **{
        f"a pointer to rows has their length: {parameter}": (
            kernel(POINTED, POINTER.format(parameter), ROWS),
            [POINTER.format(longer).splitlines()[1], "__shared__ float s[2][16][W + 4];"], {"extents": (2, 16, 32)},
        )
        for parameter, longer in (
            ("float (*p)[32]", "float (*p)[36]"),
            ("float p[16][W]", "float p[16][W + 4]"),
            ("float (&p)[16][W]", "float (&p)[16][W + 4]"),
        )
    },
    "a function that need not change is called for other memory": (
        kernel("f(s, t % 32); f(out, 3);", CALLED.format("")), [PITCHED], {},
    ),
    "the arguments of a template give pitches": (
        template("int W, typename T", "T", "for (int i = 0; i < W; i += 4) s[threadIdx.x * W + i] = 0;"),
        ["__shared__ T s[8 * (W + 4)];", "for (int i = 0; i < W; i += 4) s[threadIdx.x * (W + 4) + i] = 0;"],
        {"title": "void k<32, float>(float*)"},
    ),
    "macros and functions are followed": (
        kernel("S(t % 32, n) = 0; f(s, t);", "#define S(i, j) s[((j) << 5) + (i)]\n" + CALLED.format(" * 32 + 1")),
        ["#define S(i, j) s[((j) * 36) + (i)]", CALLED.format(" * 36 + 1"), PITCHED], {},
    ),
    "a macro may reach one element at a pointer": (
        kernel("float4 v; vload(v, &s[t * 32]);", LOAD.format("p")), [PITCHED, "float4 v; vload(v, &s[t * 36]);"], {},
    ),
    "what the parser does not understand elsewhere is no matter": (
        f"#define BEGIN(x) {{\nBEGIN(x) }}\n{kernel(BEFORE)}\n}}}} BEGIN(\n", [PITCHED, "s[t * 36] = 0;"], {},
    ),
    "what the parser does not understand in the kernel neither": (
        kernel("if (n) { out[0] = = 1 1; }\n s[t * 32] = 0;").replace("float* out", "float* RESTRICT out"),
        [PITCHED, "s[t * 36] = 0;"], {},
    ),
    "an XOR of several extents is one of the last": (
        kernel("s[n][t] = 0; *(float4*)&s[n][4 * t] = {};", "", SQUARE),
        ["const auto s_at = [](int r, int c) { return ((c & -4) ^ (r & 7) * 4) + (c & 3); };",
         "s[n][s_at(n, t)] = 0; *(float4*)&s[n][s_at(n, 4 * t)] = {};"],
        {"form": Moved, "move": XOR, "extents": (32, 32)},
    ),
    "a copy of a row's number is written anew, too": (
        kernel("s[(int)s[n][t]][t] = 0;", "", SQUARE),
        ["const auto s_at = [](int r, int c) { return c ^ (r & 7); };",
         "s[(int)s[n][s_at(n, t)]][s_at((int)s[n][s_at(n, t)], t)] = 0;"],
        {"form": Moved, "move": Move(128, 0, ((0, 7),), 4), "extents": (32, 32)},
    ),
    **{
        f"a column is bounded: {body}": (kernel(f"int u = t / 8;\n {body}", head), [PITCHED, body.replace("32 +", "36 +")], {})
        for head, body in (
            ("", "for (int i = t % 8; i + 8 <= 32; i += 8) s[t * 32 + i] = 0;"),
            ("", "for (int i = 16; i > 0; i >>= 1) s[t * 32 + i] = 0;"),
            ("", "int i; for (i = 0; i < 32; i++) s[t * 32 + i] = 0;"),
            ("", "if (u < 31 && n) s[t * 32 + u + 1] = 0;"),
            ("", "if (threadIdx.x < 32) s[n * 32 + t % 8 + min(n & 7, 23)] = n > 1 ? t : u;"),
            ("", "int i; if (n) i = 1; else i = u; s[t * 32 + i] = 0;"),
        )
    },
    "the arguments of calls and of their templates bound a column": (
        kernel("f<16>(s, t % 16, t);", CALL.format(32)), [CALL.format(36).strip(), PITCHED], {},
    ),
    "rows moved by XOR are padded": (
        kernel("s[32 * n + t] = 0;", "#define N 1000", "__shared__ float s[N];"),
        ["__shared__ float s[(N + 31) / 32 * 32 + (N + 31) / 32 * 32 / 32 * 4];",
         "const auto s_at = [](int e) { return ((e & -4) ^ (e >> 5 & 7) * 4) + (e & 3) + (e >> 5) * 4; };",
         "s[s_at(32 * n + t)] = 0;"],
        {"form": Moved, "move": Move(128, 16, ((0, 7),), 16)},
    ),
    "rows of several extents moved by XOR are padded": (
        kernel("s[n][t] = 0;", "#define W 32", "__shared__ float s[8][W];"),
        ["__shared__ float s[8][W + 4];",
         "const auto s_at = [](int r, int c) { return ((c & -4) ^ (r & 7) * 4) + (c & 3); };",
         'static_assert((sizeof(s[0]) / sizeof(s[0][0]) - 4) % 32 == 0, "elements move among 32");',
         "s[n][s_at(n, t)] = 0;"],
        {"form": Moved, "move": Move(128, 16, ((0, 7),), 16), "extents": (8, 32)},
    ),
    "within rows moved by XOR are pads": (
        kernel("s[n][t] = 0;", "", "__shared__ float s[8][128];"),
        ["__shared__ float s[8][144];",
         "const auto s_at = [](int c) { return ((c & -4) ^ (c >> 5 & 7) * 4) + (c & 3) + (c >> 5) * 4; };",
         "s[n][s_at(t)] = 0;"],
        {"form": Moved, "move": Move(128, 16, ((0, 7),), 16, inside=True), "extents": (8, 128)},
    ),
    "columns are padded within rows": (
        kernel("s[n][t] = 0;", "#define W 128", "__shared__ float s[8][W];"),
        ["__shared__ float s[8][W + W / 32 * 4];", "const auto s_at = [](int c) { return c + (c >> 5) * 4; };",
         "s[n][s_at(t)] = 0;"],
        {"form": Moved, "move": Move(128, 16, unit=16, inside=True), "extents": (8, 128)},
    ),
    "factors change places": (
        kernel("s[t * W + 1] = 0;", "#define R 16\n#define W (8 * 4)", "__shared__ float s[R * W];"),
        ["__shared__ float s[W * R];", "s[t + 1 * R] = 0;"], {"form": Transposed, "move": Move(128, 0, unit=4, rows=16)},
    ),
    "extents change places": (
        kernel("s[1][t][n] = s[0][(int)s[0][t][0]][n];", "#define R 32\n#define W (8 * 4)", "__shared__ float s[2][R][W];"),
        ["__shared__ float s[2][W][R + 4];", "s[1][n][t] = s[0][n][(int)s[0][0][t]];"],
        {"form": Transposed, "move": COLUMNS, "extents": (2, 32, 32)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SOURCES)
def test_sources_become_those_of_the_layout(tmp_path, name):
    text, expected, how = SOURCES[name]
    assert rewritten(tmp_path, text, **how) == expected


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
    text = kernel(BEFORE, "__global__ void other() {}", "extern __shared__ float s[];")
    assert rewritten(tmp_path, text + host.format(launch)) == ["s[t * 36] = 0;", host.format(expected)]
    with refused_with("these bytes may be the kernel's"):
        rewritten(tmp_path, text + host.format(launch).replace("(other", "(f"))


AT = "const auto s_at = [](int e) { return ((e & -4) ^ (e >> 5 & 7) * 4) + (e & 3); };"


WITHIN = "whether it stays within a row depends on arguments"
WHOLE = "vectors of 16 bytes would not stay whole"
INTO = "a pointer into rows is used"
AS_COLUMNS = {"form": Transposed, "move": COLUMNS}
SQUARES = {**AS_COLUMNS, "extents": (32, 32)}
# A body, or a source, of which a layout cannot be written in this way, and why.
BEYOND, TAKEN = "it may lie beyond its row", "what is reached from its address is not known"
ALIAS, TWICE = (
    "the address of an element is taken by another name",
    "it may have an effect, and would stand twice",
)
XORED = {"form": Moved, "move": Move(128, 0, ((0, 31),), 4)}
ASM = 'asm volatile("ld.shared{}.f32 %0, [%1{}];" : "=f"(v) : "r"({}));'
NEXT = "__device__ int next(int& i) { return i++; }\n#define NEXT(i) ((i)++)\n#define AT(r, c) s[r][c]"
ROW = "template <int C> __device__ float f(const float (&p)[C]) { return p[C - 1]; }"
REFUSED = [
    # What a launch does not execute is held to the same rules.
    *((body, {}, BEYOND) for body in (
        "for (int i = t; i < 1024; i += 256) out[i] = s[i];", "out[t] = s[(t + 37) & 1023];",
        "out[t] = s[t / 32 * 32 + t % 32 + 5];", "out[t] = s[t % 32 - 1];", "out[t] = *(float4*)&s[t * 4].x;",
        "float* p = s + t; p[32] = 0;", "if (t < 32) n = 0; else s[t] = 0;", "if (t != 32) s[t] = 0;",
        "if (threadIdx.x < 40 && threadIdx.x - 9 > 0) s[40 - threadIdx.x] = 0;", "out[t] = s + t % 32 < &s[100];",
    )),
    ("float* p = s + t % 32; p += 31; *p = 0;", {}, "a pointer goes along a row"),
    ("float* p = s; if (n) p = s + 16; p[t % 32] = 0;", {}, BEYOND),
    (kernel("f(s, t);", CALLED.format("")), {}, BEYOND),
    (kernel("int i = 0; next(i); s[t * 32 + i] = 0;", NEXT), {}, WITHIN),
    *((body, {}, WITHIN) for body in (
        "for (int i = 0; i < 32; i++) { s[i] = 0; i += n; }", "int i = 0; do s[i] = 0; while (++i < n);",
        "int c = 0; if (n) c = n; s[c] = 0;", "int c = 0; asm(\"mov.u32 %0, %1;\" : \"=r\"(c) : \"r\"(n)); s[c] = 0;",
        "int i; for (i = 0; i < 32; i++) n++; s[i] = 0;", "for (int i = 0; i < 32 || n; i++) s[i] = 0;",
        "unsigned i = t - 5; if (i > 3) s[i & 64 ? 0 : i] = 0;", "float f = t / 8; s[int(f)] = 0;",
    )),
    (kernel("S(n + t, 3) = 0;", "#define S(r, c) s[r * 32 + c]"), {}, "the macro has no brackets around a parameter"),
    (kernel("S(n, t % 2 + 1) = 0;", "#define S(r, c) s[(r) * 32 + c * 8]"), {}, WITHIN),
    ("if (t < 32) { int i = t; for (;;) { s[i] = 0; i++; } }", {}, WITHIN),
    *((body, how, ALIAS) for how in ({}, XORED) for body in (
        "float& r = s[t % 32]; float* p = &r; p[1] = 0;", "auto f = [](float& r) { return (&r)[1]; }; f(s[t % 32]);",
        "float* p = &(n ? s[0] : s[1]); p[1] = 0;",
    )),
    (kernel("f(&s[t % 32]);", "__device__ void f(float* p) { (&p[0])[1] = 0; }"), XORED, "it is passed to f"),
    (kernel("f(&s[t % 32]);", "__device__ void g(float& r) { f(&r); }\n__device__ void f(float* p) { g(*p); }"),
     XORED, "by another name"),
    ("auto f = [&](int i) -> float& { return s[i]; }; (&f(0))[1] = 0;", XORED, "a reference to an element is returned"),
    (kernel("f(s)[1] = 0;", "__device__ float& f(float* p) { return *p; }"), XORED, "a reference to an element is returned"),
    ("unsigned a = (unsigned)__cvta_generic_to_shared(s); " + ASM.format("", "", "a + 4 * t"), XORED, TAKEN),
    (ASM.format("", " + 4", "(unsigned)__cvta_generic_to_shared(s)"), XORED, TAKEN),
    (ASM.format(".v4", "", "(unsigned)__cvta_generic_to_shared(&s[t])"), XORED, WHOLE),
    ("out[t] = ((float4&)s[t]).x;", XORED, WHOLE),
    *((kernel(body, head, SQUARE), {**how, "extents": (32, 32)}, why) for body, head, how, why in (
        ("out[t] = ((float4*)&s[n][4 * t])->x;", "", {"move": PAD4}, WHOLE),
        ("out[t] = (*(float4*)&s[n][4 * t]).x;", "", XORED, WHOLE),
        ("const float* p = *s; out[t] = p[n];", "", {}, "the array is used as one line"),
        ("const float* p = s[0]; out[t] = p[t];", "", {}, BEYOND),
        ("float* p = s[n]; p += 32; *p = 0;", "", {}, BEYOND),
        ("float* p = s[n]; p = p + 32; *p = 0;", "", {}, BEYOND),
        ("out[t] = sizeof *s;", "", {}, "the array is used as one line"),
        ("out[t] = sizeof(s[0]);", "", SQUARES, "it is used in a sizeof expression"),
        ("out[t] = f(s[t]);", ROW, {}, "f takes it by reference"),
        *((body, NEXT, XORED, TWICE) for body in (
            "s[n++][t] = 0;", "s[next(n)][t] = 0;", "s[NEXT(n)][t] = 0;", "AT(n++, t) = 0;",
            "s[atomicAdd((int*)out, 1)][t] = 0;",
        )),
        ("s[n][n++] = 0;", "", AS_COLUMNS, "an index may have an effect, and they change places"),
    )),
    ("s[t * 32 + n] = 0;", AS_COLUMNS, WITHIN),
    ("*(float4*)&s[t * 32] = {};", AS_COLUMNS, WHOLE),
    *((kernel(body, "", SQUARE), SQUARES, why) for body, why in (
        ("*(float4*)&s[t][n] = {};", WHOLE), ("float* p = s[t]; p[n] = 0;", INTO), ("*(s[t] + n) = 0;", INTO),
        ("float* p = &s[t][n]; ++p;", INTO),
    )),
    ("s[t * 32 + n] = 0;", {}, f"kernel.cu:5: s: {WITHIN}"),
    ("s[t * 32 + (int)out[t]] = 0;", {}, "whether it stays within a row depends"),
    ("int e = t * 32; s[e] = e;", {}, "e holds rows, and is used elsewhere"),
    ("g(s);", {}, "it is passed to g, which is not defined here once"),
    ("s[t * 32] = = 0 0;", {}, "the parser does not understand the statement"),
    (kernel("vload(v, &s[t * 32]);", LOAD.format("p + n")), {}, "passed to vload, which is not defined here once"),
    (kernel("f(s, t % 32); f(out, 3);", CALLED.format(" * 32")), {}, "f is called for other memory, too (kernel.cu:5)"),
    (template("int W, int V", "float", "s[threadIdx.x / 8 * W] = s[threadIdx.x / 8 * V];"),
     {"title": "void k<32, 32>(float*)"}, "another instance of the template"),
    *((kernel(POINTED, POINTER.format(p), ROWS), {"extents": (2, 16, 32)}, "kernel.cu:6: s: p has other extents")
      for p in ("float p[16][16][32]", "float (*p)")),
    ("reinterpret_cast<float4*>(s)[n] = {};", {"form": Moved, "move": PAD4}, WHOLE),
    *((body, {"form": Moved, "move": XOR}, why) for body, why in (
        ("g(s);", "it is passed to g, which is not defined here once"),
        ("unsigned long p = (unsigned long)s;", "it is cast to unsigned long"),
        ("char* p = (char*)s; p[n] = 0;", "a pointer to parts of its elements is followed"),
        ("out = t ? s : out;", "it is used in a conditional expression"),
        ("float* q[2]; q[0] = s;", "it is kept where it cannot be followed"),
    )),
]  # fmt: skip


@pytest.mark.parametrize(("source", "how", "why"), REFUSED)
def test_what_is_not_understood_is_refused_with_its_line(tmp_path, source, how, why):
    with refused_with(why) as error:
        rewritten(tmp_path, source if "__global__" in source else kernel(source), **how)
    assert re.match(r".*kernel.cu:\d+: ", str(error.value))


def test_a_macro_that_names_arrays_of_two_kernels_is_refused(tmp_path):
    other = kernel("S(t) = 0;", "#define S(i) s[i]").replace("void k", "void other")
    path = tmp_path / "kernel.cu"
    path.write_text(f"{other}float u;\n{kernel('S(t) = 0;')}")
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
        Move(128, 16, inside=True),
    ],
)
def test_formulas_are_the_layouts(move):
    size = 960 if move.row == 96 else 4096
    offsets = np.arange(size)
    moved = move.apply(offsets)
    assert np.unique(moved).size == size
    assert moved.max() < move.size(size)
    assert move != Move(128, 16, inside=True) or move.size(size) == 8 * 576
    e = offsets[::4] // 4
    if move.rows:
        plane, r, c = e // 512, e // 32 % 16, e % 32
        assert np.array_equal(
            moved[::4], plane * move.row // 4 * move.column_bytes + 4 * r + c * move.column_bytes
        )
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
