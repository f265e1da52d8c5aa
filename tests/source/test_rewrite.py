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
from layoutopt.source.rewrite import Moved, Pitched, Transposed

COLUMNS = Move(128, 16, unit=4, rows=32)
SQUARE = "__shared__ float s[32][32];"
PAD, PAD4, XOR = Move(128, 16, unit=16), Move(128, 4, unit=4), Move(128, 0, ((0, 7),), 16)
XOR16 = {"move": XOR}
N = 16


def rewritten(tmp_path, text, form=None, move=PAD, extents=(), title="k(float*)"):
    """The lines that are new or changed."""
    form = form or (Pitched if extents else Moved)
    path = tmp_path / "kernel.cu"
    path.write_text(text)
    source = Source(path)
    (array,) = [one for one in source.variables("s") if one.is_shared or one.value is not None]
    values = Values(source, title, (256, 1, 1))
    edits = form(
        source, values, array, values.size(array.file, array.node.child_by_field_name("type")), extents, move
    ).run()
    new = rendered(source.files[0], edits).decode()
    return [line[1:].strip() for line in difflib.ndiff(text.splitlines(), new.splitlines()) if line[0] == "+"]


def kernel(body, head="", declaration="__shared__ float s[1024];"):
    opening = "__global__ void k(float* out, int n) {"
    return f"{head}\n{opening}\n  {declaration}\n  int t = threadIdx.x;\n  {body}\n}}\n"


AT = "const auto s_at = [](int e) { return ((e & -4) ^ (e >> 5 & 7) * 4) + (e & 3); };"
PADDED, PAD_AT, ROW_AT = (
    "__shared__ float s[1148];",
    "const auto s_at = [](int e) { return e + (e >> 5) * 4; };",
    "const auto s_at = [](int e, int r = 0) { return r * 36 + e + (e >> 5) * 4; };",
)
# Each way to write a layout of one line: how the array moves, the lines written for it, and what bodies become.
BODIES = {
    "row": (PAD, [PADDED, ROW_AT], {
        "s[t / 32 * 32 + t % 32] = 0;": "s[s_at(t % 32, (t / 32))] = 0;",
        "s[(t / 8 << 5) + t % 8 - 1] = 0;": "s[s_at((t % 8) - 1, (t / 8))] = 0;",
        "for (int i = 0; i < 32; ++i) s[t * 32 + i] = 0;": "for (int i = 0; i < 32; ++i) s[s_at(i, t)] = 0;",
        "*(float4*)&s[32 * t + 32] = {};": "*(float4*)&s[s_at(0, t + 1)] = {};",
        "atomicAdd(&s[(t + n) * 32], 1.f); s[n] = 0;": "atomicAdd(&s[s_at(0, (t + n))], 1.f); s[s_at(n)] = 0;",
    }),
    "pad": (PAD, [PADDED, PAD_AT], {
        "s[n * 64 + 3] = 0;": "s[s_at(n * 64 + 3)] = 0;",
        "atomicAdd(s + t * 32 + 1, 1.f);": "atomicAdd(&s[s_at((t * 32) + 1)], 1.f);",
        "s[n - t * 32] = 0;": "s[s_at(n - t * 32)] = 0;",
        "float* p = s + t * 32; p[3] = 0;": "float* p = s + t * 32; s[s_at(int(p - s) + 3)] = 0;",
        "float* p = &s[t * 32]; p += 32; *p = 0;": "float* p = &s[t * 32]; p += 32; s[s_at(int(p - s))] = 0;",
    }),
    "XOR": (XOR, [AT], {
        "s[n + t] = s[n++];": "s[s_at(n + t)] = s[s_at(n++)];",
        "*(float4*)&s[n] = {};": "*(float4*)&s[s_at(n)] = {};",
        "reinterpret_cast<float4*>(s)[n] = {};": "reinterpret_cast<float4*>(s)[s_at(4 * n) / 4] = {};",
        "float* p = s + n; p[t] = *p;": "float* p = s + n; s[s_at(int(p - s) + t)] = s[s_at(int(p - s))];",
        "float* p = s; p[t] = 0;": "float* p = s; p[s_at(t)] = 0;",
        "s[n] = sizeof(s);": "s[s_at(n)] = sizeof(s);",
        "s[(t + 37) & 1023] = s[n];": "s[s_at((t + 37) & 1023)] = s[s_at(n)];",
        "float* p; p = s; p[t] = 0;": "float* p; p = s; s[s_at(int(p - s) + t)] = 0;",
        "atomicAdd(s + n, 1.f);": "atomicAdd(s + s_at(n), 1.f);",
        "s[(int)s[n]] = 0;": "s[s_at((int)s[s_at(n)])] = 0;",
        "float* p = s + n; s[(int)p[t]] = 0;": "float* p = s + n; s[s_at((int)s[s_at(int(p - s) + t)])] = 0;",
        "int* k = (int*)(s + n); k[t] = 1;":
            "int* k = (int*)(s + n); reinterpret_cast<int*>(s)[s_at(int(k - reinterpret_cast<int*>(s)) + t)] = 1;",
        "volatile float* v = s + n; v[t] = 1;":
            "volatile float* v = s + n; reinterpret_cast<volatile float*>(s)"
            "[s_at(int(v - reinterpret_cast<volatile float*>(s)) + t)] = 1;",
    }),
}  # fmt: skip


@pytest.mark.parametrize(("how", "body"), [(how, body) for how in BODIES for body in BODIES[how][2]])
def test_indices_become_those_of_the_layout(tmp_path, how, body):
    move, lines, expected = BODIES[how]
    assert rewritten(tmp_path, kernel(body), None, move) == [*lines, expected[body]]


TYPED = "template <class T>\n__global__ void k(float* out) {\n __shared__ T s[512];\n ((float4*)s)[threadIdx.x] = {};\n}\n"
AS_INT = TYPED.replace(
    "((float4*)s)[threadIdx.x] = {};", "int* w = reinterpret_cast<int*>(s); w[threadIdx.x] = 0;"
)
OF_BYTES = AS_INT.replace("T s[512]", "unsigned char s[2048]").replace(
    "w[threadIdx.x] = 0;", "*(T*)(w + 1) = 0;"
)
BEFORE, ROWS = "s[t * 32] = 0;", "__shared__ float s[2][16][W];"
ZERO = "s[s_at(0, t)] = 0;"
POINTER = "#define W 32\n__device__ void f({}, int n) {{ p[n][1] = 0; }}"
POINTED = "f(s[1], t); auto q = s[0]; q[n][t] = 0;"
LOAD = "#define vload(v, p) v = *((float4*)({}));"
# A source, what it becomes, and how: by a pad of 16 bytes if nothing else is said.
SOURCES = {
    **{
        f"the declaration holds the longer rows: {declaration}": (
            kernel(BEFORE, head, declaration), [expected, ROW_AT, ZERO], {},
        )
        for declaration, head, expected in (
            ("__shared__ float s[R * W];", "#define W 32\n#define R 8", "__shared__ float s[(R * W) + (R * W) / 32 * 4];"),
            ("__shared__ float s[N];", "#define N 256", "__shared__ float s[N + N / 32 * 4];"),
            # There is no launch here.
            ("extern __shared__ float s[];", "",
             "extern __shared__ float s[];  /* launch with B + B / 8 bytes, where it was B bytes */"),
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
    **{
        f"an index is a row and a column only where it is always: {body}": (
            kernel(body, head), sorted([PADDED, PAD_AT, expected]), {},
        )
        for head, body, expected in (
            ("#define S(r) s[r * 32]", "S(n + t) = 0;", "#define S(r) s[s_at(r * 32)]"),
            ("#ifdef N\nconstexpr int W = 64;\n#else\nconstexpr int W = 32;\n#endif", "s[t * W] = 0;", "s[s_at(t * W)] = 0;"),
            ("constexpr int W = 32;", "enum { W = 64 }; s[t * W] = 0;", "enum { W = 64 }; s[s_at(t * W)] = 0;"),
            ("const int W = 32;\n#define S(W) s[t * (W)]", "S(64) = 0;", "#define S(W) s[s_at(t * (W))]"),
        )
    },
    "the arguments of a template decide the length of no row": (
        "template <int W> __global__ void k(float* out) {\n  __shared__ float s[8 * 32];\n  s[threadIdx.x * W] = 0;\n}\n",
        ["__shared__ float s[284];", PAD_AT, "s[s_at(threadIdx.x * W)] = 0;"], {"title": "void k<32>(float*)"},
    ),
    **{
        f"a parameter of a macro gets brackets: {body}": (
            kernel(body, head), [lines[0], *([PADDED, PAD_AT] if how == {} else [AT]), *lines[1:]], how,
        )
        for head, body, how, lines in (
            ("#define P(i) p[i]", "float* p = s + n; P(t | 1) = 0;", {}, ["#define P(i) s[s_at(int(p - s) + (i))]"]),
            ("#define V(i) ((float4*)s)[i]", "V(t + 1) = {};", XOR16, ["#define V(i) ((float4*)s)[s_at(4 * (i)) / 4]"]),
        )
    },
    "what the function takes has the name of no macro": (
        kernel("s[n * 32] = 0;", "#define e 2.7f\n#  define r(x) x\n#define c"),
        [PADDED, "const auto s_at = [](int e_, int r_ = 0) { return r_ * 36 + e_ + (e_ >> 5) * 4; };", "s[s_at(0, n)] = 0;"],
        {},
    ),
    "rows are reached by a star, too": (
        kernel("f(s); (*(s + n))[t % 32] = 0;", "__device__ void f(float (*rows)[32]) { (*rows)[threadIdx.x % 32] = 0; }", SQUARE),
        ["__device__ void f(float (*rows)[36]) { (*rows)[threadIdx.x % 32] = 0; }", "__shared__ float s[32][36];"],
        {"extents": (32, 32)},
    ),
    "macros are followed": (
        kernel("S(t % 32, n) = 0;", "#define S(i, j) s[((j) << 5) + (i)]"),
        ["#define S(i, j) s[s_at(i, (j))]", PADDED, ROW_AT], {},
    ),
    "a macro may reach one element at a pointer": (
        kernel("float4 v; vload(v, &s[t * 32]);", LOAD.format("p")),
        [PADDED, ROW_AT, "float4 v; vload(v, &s[s_at(0, t)]);"], {},
    ),
    "what the parser does not understand elsewhere is no matter": (
        f"#define BEGIN(x) {{\nBEGIN(x) }}\n{kernel(BEFORE)}\n}}}} BEGIN(\n", [PADDED, ROW_AT, ZERO], {},
    ),
    "what the parser does not understand in the kernel neither": (
        kernel("if (n) { out[0] = = 1 1; }\n s[t * 32] = 0;").replace("float* out", "float* RESTRICT out"),
        [PADDED, ROW_AT, ZERO], {},
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
        ("4 * n * sizeof(float)", "(4 * n * sizeof(float)) + (4 * n * sizeof(float)) / 8"),
        ("bytes", "bytes + bytes / 8"),
    ],
)
def test_launches_ask_for_more_dynamic_memory(tmp_path, launch, expected):
    host = "void host(int n, int bytes) {{ k<<<1, 32, {0}>>>(0, n); other<<<1, 32, bytes>>>(); }}"
    text = kernel(BEFORE, "__global__ void other() {}", "extern __shared__ float s[];")
    assert rewritten(tmp_path, text + host.format(launch)) == [ROW_AT, ZERO, host.format(expected)]


BEYOND, TAKEN = "it may lie beyond its row", "what is reached from its address is not known"
LINE, WHOLE = "the array is used as one line", "vectors of 16 bytes would not stay whole"
INTO = "a pointer into rows is used"
ALIAS, TWICE = (
    "the address of an element is taken by another name",
    "it may have an effect, and would stand twice",
)
SQUARES = {"form": Transposed, "move": COLUMNS, "extents": (32, 32)}
XORED = {"form": Moved, "move": Move(128, 0, ((0, 31),), 4)}
OTHER = "p points to other memory, too"
ASM = 'asm volatile("ld.shared{}.f32 %0, [%1{}];" : "=f"(v) : "r"({}));'
NEXT = "__device__ int next(int& i) { return i++; }"
ROW = "template <int C> __device__ float f(const float (&p)[C]) { return p[C - 1]; }"
# A body, or a source, of which a layout cannot be written in this way, and why.
REFUSED = [
    *((body, how, ALIAS) for how in ({}, XORED) for body in (
        "float& r = s[t % 32]; float* p = &r; p[1] = 0;", "auto f = [](float& r) { return (&r)[1]; }; f(s[t % 32]);",
        "float* p = &(n ? s[0] : s[1]); p[1] = 0;",
    )),
    *((body, how, OTHER) for how in ({}, XORED) for body in (
        "float* p = s; if (n) p = out; p[t * 32] = 0;", "float* p = out; if (n) p = s + t; p[1] = 0;",
        "float* p = s + 1; p[t] = 0; p = out + n;",
    )),
    (kernel("s += 32; s[t] = 0;", "", "float* s = SharedMemory<float>();"), XORED, "the pointer to it takes another value"),
    (TYPED, {**XOR16, "title": "void k<float>(float*)"}, "may have other elements in another instance"),
    *((source, {**how, "title": "void k<float>(float*)"}, "a template decides where elements are")
      for how in ({}, XORED) for source in (AS_INT, OF_BYTES)),
    ('asm("{ .reg .u32 q; add.u32 q, %0, 8; ld.shared.f32 f, [q]; }" :: "r"((int)__cvta_generic_to_shared(&s[t])));',
     XORED, "what is reached from its address is not known"),
    *((kernel(f"for (int i = 0; i < sizeof({of}) / 4; i++) s[0][i % 32] = 0;", "", "__shared__ float s[32][32];"),
       {"extents": (32, 32)}, "its size, or that of a row, is used") for of in ("s", "s[0]")),
    *((body, XORED, "the value of an assignment is used") for body in (
        "float *p, *q; q = p = s + n; q[t] = 0;", "float* p = s; (p += n)[t] = 0;", "float* p = s; *p++ = 0;",
    )),
    ("\n#ifdef N\nfloat* p = s;\n#else\nfloat* p = out;\n#endif\np[t] = 0;", XORED, "p is declared twice"),
    (kernel("n = sizeof(s);", "", "__shared__ float s[1000];"), XOR16, "its size, or that of a row, is used"),
    ("float* p = s; float*& q = p; q = out; p[t] = 0;", XORED, "q is another name of a pointer"),
    ("float* p = s + n; { float s[4]; p[t] = s[0]; }", XORED, "its name is that of another variable here"),
    ("*(float3*)&s[n * 96 + 95] = {};", {"move": Move(384, 12, unit=4)}, "vectors of 12 bytes would not stay whole"),
    (kernel("f(s, t);", "__device__ void f(float* p, int r) { p[r] = 0; }"), {}, "it is passed to f"),
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
        ("out[t] = ((float4*)&s[n][4 * t])->x;", "", {"move": PAD4}, "by hand: reach its elements one by one, declare s[32][33]"),
        ("out[t] = (*(float4*)&s[n][4 * t]).x;", "", XORED, WHOLE),
        ("float* p = &(&s[n][t])[0]; p[1] = 0;", "", XORED, INTO), ("float* p = &*&s[n][t]; p[1] = 0;", "", XORED, INTO),
        ("const float* p = *s; out[t] = p[t];", "", {}, BEYOND),
        ("float* p = &s[0][0]; p[t % 32] = 0;", "", {}, LINE), ("s[0][n] = 0;", "", {}, BEYOND),
        ("f(s[0], t);", "__device__ void f(float* p, int r) { p[r * 32] = 0; }", {}, BEYOND),
        ("f(s[0] + t * 32, t);", "__device__ void f(float* p, int r) { p[0] = r; }", {}, BEYOND),
        ("const float* p = s[0]; out[t] = p[t];", "", {}, BEYOND),
        ("for (int i = t; i < 1024; i += 256) s[0][i] = 0;", "", XORED, BEYOND),
        ("float* p = s[n]; p += n; *p = 0;", "", {}, "a pointer is stepped"),
        ("float* p = s[n]; p = p + 32; *p = 0;", "", {}, BEYOND),
        ("out[t] = sizeof *s;", "", {}, "its size, or that of a row, is used"),
        ("out[t] = sizeof(s[0]);", "", SQUARES, "its size, or that of a row, is used"),
        ("out[t] = f(s[t]);", ROW, {}, "f takes it by reference"),
        *((body, NEXT, XORED, TWICE) for body in (
            "s[n++][t] = 0;", "s[next(n)][t] = 0;",
            "s[atomicAdd((int*)out, 1)][t] = 0;", "volatile int v = n; s[v][t] = 0;",
        )),
        *((body, NEXT, XORED, "it may change the row, which would stand beside it") for body in (
            "s[n][n++] = 0;", "s[t][(t = n)] = 0;", "s[n % 32][next(n)] = 0;",
        )),
        ("s[n][n++] = 0;", "", SQUARES, "an index may have an effect, and they change places"),
        ("*(float4*)&s[t][n] = {};", "", SQUARES, WHOLE), ("float* p = s[t]; p[n] = 0;", "", SQUARES, INTO),
        ("*(s[t] + n) = 0;", "", SQUARES, INTO), ("float* p = &s[t][n]; ++p;", "", SQUARES, INTO),
        ("*s[t] = 0;", "", SQUARES, INTO), ("atomicAdd(s[t], 1.f);", "", SQUARES, INTO),
        ("out[t] = (&s[0][0])[t % 32];", "", SQUARES, INTO),
    )),
    ("g(s);", {}, "kernel.cu:5: s: it is passed to g, which is not defined here: g(s)"),
    (kernel("g(s);", "#define g(p) p[1]\n#define g(p) p[2]"), {}, "it is passed to g, which is defined 2 times here: g(s)"),
    (kernel("g(s);", "#define g(p) p[1]"), {}, "it is passed to g, which is not followed: g(s)"),
    *((kernel(f"IF out[1] = 0; }}\n {rest}", "#define IF if (s[3] > 0) {\n__device__ void f(float* s);"), {},
       "kernel.cu:7: s: to the parser, the function ends before it: s[n]")
      for rest in ("s[n] = 0;", "float v = s[n];", "for (int i = 0; i < n; i++) { out[i] = s[n]; }")),
    ("auto g = [](float* p) { p[1] = 0; }; g(s);", {}, "it is passed to g, which is not followed: g(s)"),
    (kernel("g(s);", "__device__ void g(float* p) { p[1] = 0; }"), {}, "to g, which does more than reach one element at it"),
    # To the parser, these may be types.
    *((body, XORED, f"kernel.cu:5: s: what is done with it is not followed: {body}")
      for body in ("float* p(s);", "View v(s);", "g<s>(t);")),
    (kernel("M(t) = 0;", "// Of a file that begins with a comment.\n#define M(i) , s"), XORED,
     "kernel.cu:2: s: the parser does not understand the statement: #define M(i) , s"),
    ("s[t * 32] = = 0 0;", {}, "the parser does not understand the statement"),
    (kernel("vload(v, &s[t * 32]);", LOAD.format("p + n")), {}, "passed to vload, which is not followed"),
    *((kernel(POINTED, POINTER.format(p), ROWS), {"extents": (2, 16, 32)}, "kernel.cu:6: s: p has other extents")
      for p in ("float p[16][16][32]", "float (*p)")),
    ("reinterpret_cast<float4*>(s)[n] = {};", {"form": Moved, "move": PAD4}, WHOLE),
    *((body, XOR16, why) for body, why in (
        ("unsigned long p = (unsigned long)s;", "it is cast to unsigned long"),
        ("char* p = (char*)s; p[n] = 0;", "a pointer to parts of its elements is followed"),
        ("out = t ? s : out;", "what is done with it is not followed"),
        ("float* q[2]; q[0] = s;", "it is kept where it cannot be followed"),
    )),
]  # fmt: skip


@pytest.mark.parametrize(("source", "how", "why"), REFUSED)
def test_what_is_not_understood_is_refused_with_its_line(tmp_path, source, how, why):
    with refused_with(why) as error:
        rewritten(tmp_path, source if "__global__" in source else kernel(source), **how)
    assert re.match(r".*kernel.cu:\d+: ", str(error.value))


@pytest.mark.parametrize(
    ("declared", "extents", "form", "move", "told"),
    [
        ("s[M]", (), Moved, PAD, "declare s[M + M / 32 * 4], write s[e + (e >> 5) * 4] for s[e]"),
        ("s[]", (), Moved, PAD4, "ask for B + B / 32 bytes where it was B, write s[e + (e >> 5)] for s[e]"),
        ("s[N][32]", (N,), Moved, XORED["move"], "write s[r][c ^ (r & 31)] for s[r][c]"),
        ("s[2][N][32]", (2, N), Moved, XORED["move"], "write s[q][r][c ^ (row & 31)] for s[q][r][c], row counted in all planes"),
        ("s[N][32]", (N,), Pitched, PAD4, "declare s[N][33], take rows as 33 elements apart, not 32"),
        ("s[][32]", (N,), Pitched, PAD4, "declare s[][33], ask for B + B / 32 bytes where it was B, take rows as 33"),
        ("s[2][N][32]", (2, N), Transposed, Move(128, 4, unit=4, rows=16),
         "declare s[2][32][N + 1], write s[q][c][r] for s[q][r][c]"),
        ("s[N][128]", (N, 128), Moved, Move(128, 16, unit=16, inside=True),
         "declare s[N][144], write s[r][c + (c >> 5) * 4] for s[r][c]"),
    ],
)  # fmt: skip
def test_what_is_not_changed_is_said_as_code(declared, extents, form, move, told, tmp_path):
    declared = f"{'extern ' * ('[]' in declared)}__shared__ float {declared};"
    extents = (*extents, 32) if extents and extents[-1] == N else extents
    with refused_with(f"; by hand: {told}"):
        rewritten(tmp_path, kernel("g(s);", f"#define N {N}\n#define M 1024", declared), form, move, extents)


@pytest.mark.parametrize("inner", ["float s[64];", "for (const float* s = out;;)"])
def test_a_macro_that_names_an_inner_variable_too_is_refused(tmp_path, inner):
    path = tmp_path / "kernel.cu"
    path.write_text(kernel(f"S(t) = 0; {{ {inner} out[t] = S(t); }}", "#define S(i) s[i]"))
    source = Source(path)
    with pytest.raises(ProblemFileError, match=r"the macro S .* is used for other arrays, too"):
        list(source.uses(next(one for one in source.variables("s") if one.is_shared)))


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
    if not move.terms and not move.inside:  # a column may lie before its row, or behind it
        r, c = e // 32 + 2, e % 96 - 64
        of_row = r * (move.row + move.extra) // 4 + eval(move.new_index("c", 4), {"c": c})
        assert np.array_equal(of_row * 4, move.apply((32 * r + c) * 4))
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


def test_a_header_is_found_behind_a_mark_of_the_byte_order(tmp_path):
    (tmp_path / "rows.h").write_text("#define W 32\n")
    (tmp_path / "kernel.cu").write_bytes(b'\xef\xbb\xbf#include "rows.h"\n')
    assert len(Source(tmp_path / "kernel.cu").files) == 2


@pytest.mark.parametrize(
    ("body", "head", "is_open"),
    [
        ("int c = t % 32; int& d = c; d += n; s[n][c] = 0;", "", True),
        ("int c = t % 32; (n ? c : n) += 9; s[n][c] = 0;", "", True),
        ("int c = t % 32; (int&)c += n; s[n][c] = 0;", "", True),
        ("int c = t % 32; int& d{c}; d += n; s[n][c] = 0;", "", True),
        ("int c = t % 32; f(c); s[n][c] = 0;", "__device__ void f(int& c) { c += 9; }", True),
        ("int c = t % 32; f(c); s[n][c] = 0;", "__device__ void f(int c) { c += 9; }", False),
        ("const int c = t % 32; g(c); s[n][c] = 0;", "", False),
        ("int c = t % 32, d = c; d += n; s[n][c] = out[c] + (c ? 1 : 2);", "", False),
    ],
)
def test_a_column_is_open_where_what_it_is_may_have_changed(body, head, is_open, tmp_path):
    path = tmp_path / "kernel.cu"
    path.write_text(kernel(body, head, SQUARE))
    source = Source(path)
    (array,) = [one for one in source.variables("s") if one.is_shared]
    walk = Pitched(source, Values(source, "k(float*)", (256, 1, 1)), array, 4, (32, 32), PAD)
    walk.run()
    assert walk.open_column == ("kernel.cu:5" if is_open else None)
