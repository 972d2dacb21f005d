"""Headers of the project are translated with the file; the emulator's own are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.device.emulator.native import include_dir
from cuda_agent.device.emulator.unit import translate_unit
from cuda_agent.errors import SourceError


def test_headers_are_copied_and_named(tmp_path: Path) -> None:
    (tmp_path / "inc").mkdir()
    (tmp_path / "inc" / "deep.cuh").write_text('#pragma once\n#include "../main.h"\n__global__ void k(int n) {}\n')
    (tmp_path / "main.h").write_text("#pragma once\n#include <vector>\n")
    main = tmp_path / "main.cu"
    main.write_text(
        '#include <cuda_runtime.h>\n#include "inc/deep.cuh"\n#include <deep.cuh>\nint main() { k<<<1, 1>>>(2); }\n'
    )
    out = tmp_path / "out"
    out.mkdir()
    unit = translate_unit(main, out, include_dirs=[tmp_path / "inc"], shims=include_dir())
    assert sorted(p.name for p in unit.copies.values()) == ["deep.cuh", "main.cu", "main.h"]
    text = unit.main.read_text()
    assert text.startswith(
        f'#line 1 "{main}"\n#include <cuda_runtime.h>\n#include "1_deep.cuh"\n#include "1_deep.cuh"\n'
    )
    assert "CUEMU_KERNEL(n)" in (out / "1_deep.cuh").read_text()
    assert '#include "2_main.h"' in (out / "1_deep.cuh").read_text()
    assert unit.named(f"{unit.main}:3: error") == f"{main}:3: error"


def test_given_text_wins_over_the_disk(tmp_path: Path) -> None:
    main = tmp_path / "main.cu"
    unit = translate_unit(main, tmp_path, text="int x;\n", shims=include_dir())
    assert "int x;" in unit.main.read_text()


def test_toolkit_folders_are_left_out(tmp_path: Path) -> None:
    toolkit = tmp_path / "cuda"
    toolkit.mkdir()
    (toolkit / "cuda_runtime_api.h").write_text("")
    (toolkit / "helper.h").write_text("")
    (tmp_path / "m.cu").write_text("#include <helper.h>\n")
    unit = translate_unit(tmp_path / "m.cu", tmp_path, include_dirs=[toolkit], shims=include_dir())
    assert list(unit.copies.values()) == [tmp_path / "m.cu"]


def test_unreadable(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot read"):
        translate_unit(tmp_path / "none.cu", tmp_path, shims=include_dir())
