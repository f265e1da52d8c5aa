"""Layouts written into a source and into its expansion: the same, but for brackets, numbers and sums."""

import re

import pytest
from written import refused_with, text_file

from layoutopt.kernels.read.source import Source
from layoutopt.kernels.read.values import Values
from layoutopt.source.expanded import Written, texts


def check(folder, wanted, got, width=32):
    path = text_file(folder, "int x;")
    written = Written(Values(Source(path)), "s", width)
    written.check(str(path), *(f"void f() {{ {one} }}".encode() for one in (wanted, got)))


@pytest.mark.parametrize(
    ("wanted", "got"),
    [
        ("s[s_at(n + t * 32)] = 0;", "s[s_at(n, t)] = 0;"),
        ("s[s_at((t << 5) - (n - 1))] = 0;", "s[s_at_(1 - n, (t))] = 0;"),
        ("s[s_at(t * 64 + k[n] * t * 32)] = 0;", "s[s_at(0, t * (2 + k[n]))] = 0;"),
        ("__shared__ float s[36];", "__shared__ float s[(32U) + (2 * 2)];"),
        ("__shared__ float s[1055];", "__shared__ float s[1024 + 1024 / 32 * 1];"),
        ("int s_at = 1; /* no */ out[(t)] = s[3];", "int s_at = 1; out[t] = (s[3]);"),
        ("s[s_at(t)] = 0;", "const auto s_at_ = [](int e_) { return e_ ^ 1; }; s[s_at_(t)] = 0;"),
    ],
)
def test_what_says_the_same_is_the_same(wanted, got, tmp_path):
    check(tmp_path, wanted, got)


@pytest.mark.parametrize(
    ("wanted", "got"),
    [
        ("s[s_at(t * 16 + 16 + n)] = 0;", "s[s_at(n, t)] = 0;"),
        ("s[s_at(t - 16 - 16)] = 0;", "s[s_at(t - (16 - 16))] = 0;"),
        ("s[s_at(3)] = 0;", "s[3] = 0;"),
        ("out[1] = sizeof(\"s[s_at(t)]\");", "out[1] = sizeof(\"s[t]\");"),
        ("__shared__ float s[1055];", "__shared__ float s[1054];"),
        ("s[s_at(t)] = 0; n++;", "s[s_at(t)] = 0;"),
    ],
)  # fmt: skip
def test_what_says_another_thing_is_refused_with_its_line(wanted, got, tmp_path):
    with refused_with("s: a macro hides what is written here") as error:
        check(tmp_path, wanted, got)
    assert re.match(r"\S+:1: ", str(error.value))


def test_two_arguments_are_two_where_rows_are_declared(tmp_path):
    check(tmp_path, "s[r][s_at(r, (c))] = 0;", "s[r][s_at((r), c)] = 0;", 0)
    with refused_with("a macro hides"):
        check(tmp_path, "s[r][s_at(r, c)] = 0;", "s[r][s_at(r + 1, c - 32)] = 0;", 0)


def test_text_stands_in_its_lines():
    printed = '# 0 "<built-in>"\nint no;\n# 3 "/t/a/k.cu"\nx;\n\n# 5 "/t/a/k.cu" 2\ny;\n# 5 "/t/a/k.cu"\nz;\n# 1 "/t/a/../b.h" 1\n__attribute__((shared)) int s;\n'
    found = texts(printed, "/t", {"/a/k.cu": b"", "/b.h": b""})
    assert found == {"/a/k.cu": b"\n\n x;\n\n y; z;", "/b.h": b" __shared__ int s;"}
