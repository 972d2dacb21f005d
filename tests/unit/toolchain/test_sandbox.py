"""What the sandbox lets a compiler do. Each test that needs bubblewrap skips without it; the rest hold everywhere."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cuda_agent.errors import SandboxError
from cuda_agent.toolchain import sandbox
from patience import patience

needs_bwrap = pytest.mark.skipif(not sandbox.available(), reason="bubblewrap does not work here")
PYTHON = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable


def alive(marker: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and marker in (entry / "cmdline").read_bytes().decode(errors="replace"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@needs_bwrap
def test_no_network(tmp_path: Path, setting: Callable[..., None]) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    # bash opens a socket itself: no tool is needed inside.
    script = f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo reached"
    inside = sandbox.run(["bash", "-c", script], tmp_path, [tmp_path], required=True)
    setting(sandbox="off")
    outside = sandbox.run(["bash", "-c", script], tmp_path, [tmp_path])
    server.close()
    assert "reached" in outside.stdout, "the check itself must be able to see a network"
    assert inside.returncode != 0
    assert "reached" not in inside.stdout


@needs_bwrap
def test_reads_only_what_it_may(tmp_path: Path) -> None:
    secret, project = tmp_path / "secret", tmp_path / "project"
    secret.mkdir()
    project.mkdir()
    (secret / "key").write_text("hidden words")
    (project / "x.h").write_text("open words")
    script = f"cat {secret}/key; cat /etc/passwd; ls {Path.home()} /root /home /var; cat x.h"
    done = sandbox.run(["sh", "-c", script], project, [project], required=True)
    assert "open words" in done.stdout
    assert "hidden" not in done.stdout
    assert "root:" not in done.stdout + done.stderr
    assert done.stdout.strip() == "open words"


@needs_bwrap
def test_writes_only_where_it_may(tmp_path: Path) -> None:
    project, out = tmp_path / "project", tmp_path / "out"
    project.mkdir()
    out.mkdir()
    script = f"echo 1 > {out}/made; echo 2 > {project}/bad; echo 3 > /usr/bad; echo 4 > /tmp/private; cat /tmp/private"
    done = sandbox.run(["sh", "-c", script], project, [project], [out], required=True)
    assert (out / "made").read_text() == "1\n"
    assert not (project / "bad").exists()
    assert not Path("/tmp/private").exists()
    assert done.stdout == "4\n"


@needs_bwrap
def test_environment_is_not_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "abc")
    done = sandbox.run(["env"], tmp_path, [tmp_path], required=True, environment={"GIVEN": "1"})
    assert "SECRET_TOKEN" not in done.stdout
    assert "GIVEN=1" in done.stdout


@pytest.mark.parametrize("mode", [pytest.param("auto", marks=needs_bwrap), "off"])
def test_timeout_kills_children_too(tmp_path: Path, mode: str, setting: Callable[..., None]) -> None:
    setting(sandbox=mode)
    marker = f"sleep-{time.monotonic_ns()}"
    script = f"(exec -a {marker} sleep 60) & exec -a {marker} sleep 60"
    started = time.monotonic()
    done = sandbox.run(["bash", "-c", script], tmp_path, [tmp_path], timeout=0.7)
    assert done.timed_out
    assert done.returncode < 0
    assert time.monotonic() - started < patience(5)
    deadline = time.monotonic() + 3
    while alive(marker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert alive(marker) == []


@pytest.mark.parametrize("mode", [pytest.param("auto", marks=needs_bwrap), "off"])
def test_children_left_behind_are_killed(tmp_path: Path, mode: str, setting: Callable[..., None]) -> None:
    setting(sandbox=mode)
    marker = f"sleep-{time.monotonic_ns()}"
    done = sandbox.run(["bash", "-c", f"(exec -a {marker} sleep 60) & echo done"], tmp_path, [tmp_path])
    assert done.stdout == "done\n"
    deadline = time.monotonic() + 3
    while alive(marker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert alive(marker) == []


def test_memory_is_bounded(tmp_path: Path, setting: Callable[..., None]) -> None:
    setting(sandbox="off")
    grow = [PYTHON, "-c", "x = bytearray(1 << 30); print(len(x))"]
    assert sandbox.run(grow, tmp_path, [tmp_path, Path(PYTHON).parents[1]]).returncode == 0
    done = sandbox.run(grow, tmp_path, [tmp_path], memory=512 << 20)
    assert done.returncode != 0
    assert "MemoryError" in done.stderr


def test_output_is_cut(tmp_path: Path, setting: Callable[..., None]) -> None:
    setting(sandbox="off")
    done = sandbox.run(["sh", "-c", "head -c 9000000 /dev/zero"], tmp_path, [tmp_path])
    assert len(done.stdout) == 4 << 20


def test_required_without_bubblewrap_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "available", lambda: False)
    with pytest.raises(SandboxError, match="apt install bubblewrap"):
        sandbox.run(["sh", "-c", f"touch {tmp_path}/ran"], tmp_path, required=True)
    assert not (tmp_path / "ran").exists()
    done = sandbox.run(["sh", "-c", f"touch {tmp_path}/ran"], tmp_path)
    assert (done.returncode, done.sandboxed) == (0, False)
    assert (tmp_path / "ran").exists()


@needs_bwrap
def test_off_does_not_hold_for_text_from_a_model(tmp_path: Path, setting: Callable[..., None]) -> None:
    setting(sandbox="off")
    assert sandbox.run(["true"], tmp_path, [tmp_path]).sandboxed is False
    assert sandbox.run(["true"], tmp_path, [tmp_path], required=True).sandboxed is True


def test_from_many_threads(tmp_path: Path) -> None:
    results: list[str] = []
    threads = [
        threading.Thread(target=lambda n=n: results.append(sandbox.run(["echo", str(n)], tmp_path, [tmp_path]).stdout))
        for n in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [f"{n}\n" for n in range(6)]


def test_a_program_that_is_not_there(tmp_path: Path, setting: Callable[..., None]) -> None:
    setting(sandbox="off")
    done = sandbox.run(["no-such-program"], tmp_path, [tmp_path])
    assert done.returncode == 127


@needs_bwrap
@pytest.mark.parametrize("chain", [False, True])
def test_a_folder_behind_a_link_inside_the_project(tmp_path: Path, chain: bool) -> None:
    project, disk = tmp_path / "project", tmp_path / "disk"
    (disk / "jobs").mkdir(parents=True)
    project.mkdir()
    target = project / "second" if chain else disk
    if chain:
        target.symlink_to(Path("..") / "disk")
    (project / "cache").symlink_to(target)
    jobs = project / "cache" / "jobs"
    done = sandbox.run(["sh", "-c", f"echo built > {jobs}/out"], jobs, [project], [jobs], required=True)
    assert done.returncode == 0, done.stderr
    assert (disk / "jobs" / "out").read_text() == "built\n"
    refused = sandbox.run(["sh", "-c", f"echo x > {project}/new"], jobs, [project], [jobs], required=True)
    assert refused.returncode != 0
    assert not (project / "new").exists()


@needs_bwrap
def test_a_link_outside_every_mount_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    done = sandbox.run(["sh", "-c", "echo built > out"], tmp_path / "link", (), [tmp_path / "link"], required=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "disk" / "out").exists()
