"""The counter of tests/bench/parse_corpus.py is only worth something if it counts right by itself."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "parse_corpus.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("parse_corpus", BENCH)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules["parse_corpus"] = loaded
    spec.loader.exec_module(loaded)
    return loaded


TEXT = """// __global__ void a() {}
#define K __global__ void b() {}
const char* s = "__global__ void c() {}"; char q = '"'; auto r = R"x(__global__ void d() {})x";
#if 0 // off
__global__ void e() {}
#else
template <class T> __global__ void __launch_bounds__(256) k1(T (*f)(int), int n = (3)) { }
#endif
__global__ void k1(int);
template <> __global__ void k2<int, (3 > 2)>(int x) // {
{ }
"""


def test_counts_definitions_only(bench: ModuleType) -> None:
    found = bench.expected(TEXT)
    assert [(item.name, item.line) for item in found] == [("k1", 7), ("k2", 11)]
    assert all(TEXT.encode()[item.brace] == ord("{") for item in found)


def test_says_what_is_missed(bench: ModuleType, tmp_path: Path, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "k.cu").write_text(TEXT)
    monkeypatch.setattr(sys, "argv", ["parse_corpus.py", str(tmp_path)])
    assert bench.main() == 0
    assert "kernels: 2 of 2 found (100.000%)" in capsys.readouterr().out
    monkeypatch.setattr(bench, "expected", lambda text: [bench.Definition("ghost", 3, 9)])
    assert bench.main() == 1
    assert "miss:" in capsys.readouterr().out
