"""Keys of language models reach nothing that compiles or runs code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cuda_agent import keys
from cuda_agent.capture import CaptureOptions, capture
from cuda_agent.capture.session import Session
from cuda_agent.device.transports import PipeTransport
from cuda_agent.errors import CaptureError
from cuda_agent.toolchain import sandbox

OURS, PERSONS = "ours-5b1f", "persons-77aa"


@pytest.fixture(autouse=True)
def taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both keys came in the environment, and `take` was called."""
    monkeypatch.setattr(keys, "_kept", {})
    monkeypatch.setenv(keys.OURS, OURS)
    monkeypatch.setenv(keys.PERSONS, PERSONS)
    keys.take()


def test_they_are_still_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (keys.get(keys.OURS), keys.get(keys.PERSONS)) == (OURS, PERSONS)
    monkeypatch.setattr(keys, "_kept", {})
    assert keys.get(keys.OURS) == ""
    monkeypatch.setenv(keys.OURS, "later")
    assert keys.get(keys.OURS) == "later"


def test_nobody_looks_for_a_key_in_the_environment() -> None:
    """It is not there any more."""
    looking = re.compile(r"os\.(?:environ|getenv)\b(?!\.get\(\"|\[\")|os\..*_API_KEY")
    for path in Path(keys.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path.name != "keys.py" and "_API_KEY" in text:
            assert not looking.search(text), path


def test_our_own_processes_get_both() -> None:
    made = keys.environment()
    assert (made[keys.OURS], made[keys.PERSONS]) == (OURS, PERSONS)
    assert keys.OURS not in os.environ
    assert keys.PERSONS not in os.environ


def test_a_worker_gets_none() -> None:
    assert not {keys.OURS, keys.PERSONS} & set(PipeTransport().environment())


@pytest.mark.parametrize("sandboxed", [True, False])
def test_a_compiler_gets_none(tmp_path: Path, setting: Callable[..., None], sandboxed: bool) -> None:
    if sandboxed and not sandbox.available():
        pytest.skip("needs bubblewrap")
    setting(sandbox="auto" if sandboxed else "off")
    done = sandbox.run(["env"], tmp_path, writable=[tmp_path])
    assert done.sandboxed is sandboxed
    assert "PATH=" in done.stdout
    assert OURS not in done.stdout
    assert PERSONS not in done.stdout


def test_the_persons_program_sees_its_own_key_only(tmp_path: Path) -> None:
    with pytest.raises(CaptureError):  # it launches nothing
        capture(["sh", "-c", "env > seen"], tmp_path)
    seen = (tmp_path / "seen").read_text()
    assert f"{keys.PERSONS}={PERSONS}" in seen
    assert OURS not in seen


def test_a_rewritten_program_sees_none(tmp_path: Path) -> None:
    """As G13 runs it: a session of its own, not through `capture`."""
    with pytest.raises(CaptureError):
        Session(["sh", "-c", "env > seen"], tmp_path, CaptureOptions(), None, None).run(("sh",))
    seen = (tmp_path / "seen").read_text()
    assert "PATH=" in seen
    assert OURS not in seen
    assert PERSONS not in seen


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_nobody_reads_them_in_proc() -> None:
    """A process's first environment stays in its memory, where every process of the person's may look."""
    script = (
        "from cuda_agent import keys; keys.take(); print(open('/proc/self/environ', 'rb').read().decode()); "
        "import os; print(os.environ['OTHER'], keys.get(keys.OURS), keys.persons())"
    )
    environment = {**os.environ, keys.OURS: OURS, keys.PERSONS: PERSONS, "OTHER": "stays"}
    said = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    ).stdout
    shown, last = said.rsplit("\n", 2)[:2]
    assert last == f"stays {OURS} {{'{keys.PERSONS}': '{PERSONS}'}}"
    assert "OTHER=stays" in shown
    assert OURS not in shown
    assert PERSONS not in shown
