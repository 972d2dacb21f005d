"""Which file is covered by which answer, and what is asked about."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cuda_agent import trust
from cuda_agent.errors import Untrusted
from cuda_agent.toolchain.build import find_build
from cuda_agent.toolchain.launchers import with_launches
from cuda_agent.trust import Trust, trust_file

KERNEL = "__global__ void k(float *x) { x[0] = 1; }\n"
LAUNCH = "void go(float *d) { k<<<1, 32>>>(d); }\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config" / "trust.json"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two folders with a kernel each."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.cu").write_text(KERNEL)
    return tmp_path


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers that a test makes those of its process are gone after it."""
    monkeypatch.setattr(trust, "_current", None)


def test_the_nearest_answer_holds_for_a_folder_and_all_below(tmp_path: Path, file: Path) -> None:
    root = tmp_path / "project"
    known = Trust(file)
    assert not known.covers(root)
    Trust(file).remember(root, True)
    assert known.covers(root)  # another program's answer
    assert known.covers(root / "sub" / "deeper" / "x.cu")
    assert not known.covers(tmp_path)
    assert not known.covers(tmp_path / "project-b" / "x.cu")
    known.remember(root / "sub", False)
    assert not known.covers(root / "sub" / "deeper" / "x.cu")
    assert known.covers(root / "x.cu")
    assert json.loads(file.read_text()) == {str(root): True, str(root / "sub"): False}


@pytest.mark.parametrize("content", ["", "[]", '{"/": "yes"}', "\x00"])
def test_a_broken_trust_file_trusts_nothing(tmp_path: Path, content: str) -> None:
    file = tmp_path / "trust.json"
    file.write_text(content)
    assert not Trust(file).covers(tmp_path)


def test_trust_that_cannot_be_written_holds_for_the_session(tmp_path: Path, file: Path) -> None:
    file.parent.write_text("")
    known = Trust(file)
    known.remember(tmp_path, True)
    assert known.covers(tmp_path / "x.cu")
    assert not Trust(file).covers(tmp_path / "x.cu")


def test_the_trust_file_is_the_persons(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert trust_file() == tmp_path / "cuda-agent" / "trust.json"


def test_a_link_is_covered_where_it_lies_and_where_it_leads(tree: Path) -> None:
    (tree / "a" / "file.cu").symlink_to(tree / "b" / "x.cu")
    (tree / "a" / "folder").symlink_to(tree / "b")
    (tree / "a" / "loop.cu").symlink_to(tree / "a" / "loop.cu")
    (tree / "c").symlink_to(tree / "a")
    only_a, only_b, both = ({str(tree / name): True for name in names} for names in ("a", "b", "ab"))
    places = ("a/x.cu", "c/x.cu", "a/../a/x.cu", "a/loop.cu", "b/x.cu", "a/file.cu", "a/folder/x.cu")

    def covered(answers: trust.Answers) -> list[str]:
        return [place for place in places if trust.uncovered(tree / place, answers) is None]

    assert covered(only_a) == ["a/x.cu", "c/x.cu", "a/../a/x.cu", "a/loop.cu"]
    assert covered(only_b) == ["b/x.cu", "a/folder/x.cu"]
    assert covered(both) == list(places)
    assert trust.uncovered(tree / "a" / "file.cu", only_a) == tree / "b" / "x.cu"
    assert trust.uncovered(tree / "a" / "file.cu", only_b) == tree / "a" / "file.cu"


@pytest.mark.parametrize("mark", ["Makefile", ".git", "compile_commands.json", "build/compile_commands.json"])
def test_what_is_asked_about_is_the_workspace_else_the_project(tree: Path, file: Path, mark: str) -> None:
    known = Trust(file)
    assert known.missing(tree / "b" / "x.cu") == tree / "b"
    (tree / "b" / "build").mkdir()
    (tree / "b" / "src").mkdir()
    (tree / "b" / mark).touch()
    known.open_folders([tree / "a"])
    assert known.missing(tree / "a" / "src" / "x.cu") == tree / "a"
    assert known.missing(tree / "b" / "src" / "x.cu") == tree / "b"
    (tree / "a" / "file.cu").symlink_to(tree / "b" / "src" / "x.cu")
    assert known.missing(tree / "a" / "file.cu") == tree / "a"
    known.remember(tree / "a", True)
    assert known.missing(tree / "a" / "file.cu") == tree / "b"
    known.remember(tree / "b", True)
    assert known.missing(tree / "a" / "file.cu") is None
    known.remember(tree / "b" / "src", False)
    assert known.missing(tree / "b" / "src" / "x.cu") == tree / "b" / "src"  # a yes for b would not change it


def test_a_folder_that_anyone_may_write_to_is_no_project(tree: Path, file: Path) -> None:
    (tree / "Makefile").touch()
    assert Trust(file).missing(tree / "a" / "x.cu") == tree
    tree.chmod(0o777)
    assert Trust(file).missing(tree / "a" / "x.cu") == tree / "a"


def test_an_editors_own_trust_is_about_its_workspace(tree: Path, file: Path) -> None:
    known = Trust(file)
    known.remember(tree / "a", False)
    known.open_folders([tree / "a"])
    known.tell(True)
    assert known.covers(tree / "a" / "x.cu")
    assert not known.covers(tree / "b" / "x.cu")
    known.remember(tree / "b", True)
    assert known.covers(tree / "b" / "x.cu")
    known.tell(False)
    assert not known.covers(tree / "a" / "x.cu")
    assert not known.covers(tree / "b" / "x.cu")


def test_a_job_asks_for_what_it_compiles(tree: Path, job: None) -> None:
    assert find_build(tree / "b" / "x.cu").origin == "default"  # the command line: nothing is asked
    trust.use({str(tree / "a"): True})
    assert find_build(tree / "a" / "x.cu").origin == "default"
    with pytest.raises(Untrusted, match=f"^{tree / 'b'} is not trusted: nothing in it is compiled or run"):
        find_build(tree / "b" / "x.cu")


def test_a_headers_kernels_need_the_folder_of_what_includes_it(tree: Path, job: None) -> None:
    header = tree / "a" / "k.cuh"
    header.write_text(KERNEL)
    (tree / "a" / "x.cu").unlink()
    (tree / "b" / "x.cu").write_text('#include "../a/k.cuh"\n' + LAUNCH)
    trust.use({str(tree / "a"): True})
    with pytest.raises(Untrusted, match=f"^{tree / 'b'} is not trusted"):
        find_build(header)
    trust.use({str(tree / "a"): True, str(tree / "b"): True})
    assert find_build(header).through == tree / "b" / "x.cu"


def test_so_do_all_files_that_launch_them(tree: Path, job: None) -> None:
    (tree / ".git").mkdir()
    header = tree / "a" / "k.cuh"
    header.write_text(KERNEL)
    (tree / "a" / "x.cu").write_text('#include "k.cuh"\n' + LAUNCH)
    (tree / "b" / "x.cu").write_text('#include "../a/k.cuh"\n' + LAUNCH.replace("go", "other"))
    trust.use({str(tree / "a"): True})
    build = find_build(header)
    with pytest.raises(Untrusted, match=f"^{tree} is not trusted"):
        with_launches(build, KERNEL)
    trust.use({str(tree): True})
    assert "other" in with_launches(build, KERNEL)
