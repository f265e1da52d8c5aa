"""What nvcc made is kept, and made again when anything that it read has changed."""

import os

import pytest

from layoutopt.kernels.read.files import compile_source

NVCC = """#!/bin/sh
echo run >> {log}
while [ $# -gt 0 ]; do
  case "$1" in -MF) rule=$2 ;; -o) out=$2 ;; *.cu) source=$1 ;; esac
  shift
done
echo "$out : $source \\\\" > "$rule"
echo "    {header}" >> "$rule"
cat "$source" {header} > "$out"
"""


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A compiler that joins a source and a header, and how often it ran."""
    (tmp_path / "k.cu").write_text("source\n")
    (tmp_path / "a header.cuh").write_text("header\n")
    log = tmp_path / "log"
    log.touch()
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "nvcc"
    tool.write_text(NVCC.format(log=log, header=str(tmp_path / "a header.cuh").replace(" ", "\\ ")))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("LAYOUTOPT_CACHE", str(tmp_path / "kept"))
    return lambda: len(log.read_text().splitlines())


def test_a_source_is_compiled_when_something_that_was_read_changes(tmp_path, runs):
    source = tmp_path / "k.cu"
    first = compile_source(source, "sm_90")
    assert first == b"source\nheader\n"
    assert compile_source(source, "sm_90") == first
    assert runs() == 1
    compile_source(source, "sm_80")
    compile_source(source, "sm_90", ["-DN=2"])
    assert runs() == 3
    (tmp_path / "a header.cuh").write_text("changed\n")
    assert compile_source(source, "sm_90") == b"source\nchanged\n"
    source.write_text("another\n")
    assert compile_source(source, "sm_90") == b"another\nchanged\n"
    assert compile_source(source, "sm_90") == b"another\nchanged\n"
    assert runs() == 5
    source = source.rename(tmp_path / os.fsdecode(b"\xe9.cu"))  # a name that is no text is not kept
    assert compile_source(source, "sm_90") == b"another\nchanged\n"


def test_what_is_kept_may_be_broken_or_not_wanted(tmp_path, runs, monkeypatch):
    source = tmp_path / "k.cu"
    first = compile_source(source, "sm_90")
    (entry,) = (tmp_path / "kept").iterdir()
    entry.write_bytes(entry.read_bytes()[:-3])
    assert compile_source(source, "sm_90") == first
    monkeypatch.setenv("LAYOUTOPT_CACHE", "")
    assert compile_source(source, "sm_90") == first
    monkeypatch.setenv("LAYOUTOPT_CACHE", str(source))  # no folder
    assert compile_source(source, "sm_90") == first
    assert runs() == 4
