"""`replay`: a recorded search once more, from its record alone: the same texts must get the same verdicts.

Nothing from memory is used. A record is a file that others may have written: its candidates are compiled only when the
edit policy lets them, and a text that is not the file's own runs in the sandbox.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from cuda_agent import judge
from cuda_agent.agent import memory, recorded
from cuda_agent.agent.loop import optimize
from cuda_agent.agent.opening import opened
from cuda_agent.agent.policies.replayed import Again, candidate_of
from cuda_agent.agent.recorded import Json, Recorded
from cuda_agent.agent.recording import flags_sha256, inputs_sha256
from cuda_agent.agent.request import Request
from cuda_agent.device import Device, open_device
from cuda_agent.errors import Cancelled, NoInputs, SourceError, UsageError
from cuda_agent.judge import record
from cuda_agent.judge.digest import sha256
from cuda_agent.judge.options import JudgeOptions, Precision
from cuda_agent.model import Workload
from cuda_agent.recheck import find_source, missing
from cuda_agent.source.documents import Document
from cuda_agent.source.symbols import module as parse_module
from cuda_agent.toolchain.build import find_build
from cuda_agent.workload import own, spec, synthesize

PATIENCE = 10.0  # a slower machine, or a busier one, is no other verdict


@dataclass(frozen=True)
class ReplayRequest:
    """`source` and `inputs` say where the file and the bundle lie when they are not found."""

    trajectory: Path
    source: Path | None = None
    inputs: Path | None = None
    device: str = "auto"


@dataclass(frozen=True)
class Row:
    """One verdict, then and now, in words. `same` is None where this machine cannot tell."""

    id: str
    name: str
    then: str
    now: str
    same: bool | None


@dataclass(frozen=True)
class Replay:
    """One search. `holds` is None when it cannot be told; `differs` names what is not as it was."""

    id: str
    kernel: str
    holds: bool | None
    sentence: str
    differs: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()

    def to_json(self) -> dict[str, Any]:
        rows = [{"id": r.id, "name": r.name, "then": r.then, "now": r.now, "same": r.same} for r in self.rows]
        return {
            "id": self.id,
            "kernel": self.kernel,
            "holds": self.holds,
            "sentence": self.sentence,
            "differs": list(self.differs),
            "candidates": rows,
        }


def replay(
    request: ReplayRequest,
    *,
    on_event: Callable[[Json], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    device: Device | None = None,
) -> list[Replay]:
    """Every search in the file. Raises UsageError for a file that holds none, SourceError when `source` is not there,
    NoInputs when the inputs are gone."""
    found = recorded.read(request.trajectory)
    return [_Again(one, request, on_event, cancelled).run(device) for one in found]


def holds(replays: Sequence[Replay]) -> bool | None:
    """Of all of them: False where one does not, else None where one cannot tell."""
    answers = [one.holds for one in replays]
    return False if False in answers else None if None in answers else True


@dataclass
class _Again:
    """One search's replay."""

    found: Recorded
    request: ReplayRequest
    on_event: Callable[[Json], None] | None
    cancelled: Callable[[], bool] | None
    differs: list[str] = field(default_factory=list)

    @property
    def start(self) -> Json:
        return self.found.start

    def run(self, device: Device | None) -> Replay:
        self.differs += self.found.skipped
        tampered = list(_tampered(self.found))
        if sha256(self.start["text"]) != self.start["text_sha256"]:
            sentence = "the recorded file is not the one that its hash was made of: nothing can be replayed"
            return Replay(self.found.id, self.start["kernel"], False, sentence, tuple(self.differs))
        with self._source() as (path, own):
            workload = self._workload(path)
            with self._device(device, own) as dev:
                self._machine(dev)
                now, rest = self._search(path, dev, workload)
        rows = tuple(compare(self.found, now, rest))
        answers = [row.same for row in rows]
        holds = False if tampered or False in answers else None if None in answers else True
        return Replay(
            self.found.id, self.start["kernel"], holds, _sentence(holds, rows, tampered), tuple(self.differs), rows
        )

    # ------------------------------------------------------------ what it ran on

    @contextmanager
    def _source(self) -> Iterator[tuple[Path, bool]]:
        """The file, and whether it still is the recorded text. Where it is gone, a folder is made for the text."""
        name = self.start["file"]
        try:
            path = find_source(self.request.trajectory, name, self.request.source)
        except SourceError:
            if self.request.source is not None:
                raise
            self.differs.append(f"{name} was not found here or beside the record: the recorded text is taken")
            with tempfile.TemporaryDirectory(prefix="cuda-agent-replay-") as folder:
                path = Path(folder) / Path(name).name
                path.write_bytes(self.start["text"].encode("utf-8", "surrogateescape"))
                yield path, False
            return
        file = opened(Request(path))
        same = sha256(file.text) == self.start["text_sha256"]
        if not same:
            self.differs.append(f"{name} was changed since: the recorded text is taken")
        if flags_sha256(file.build) != self.start["flags_sha256"]:
            self.differs.append("the compiler's flags are others")
        yield path, same

    def _workload(self, path: Path) -> Workload:
        """The recorded inputs where they are found, else others of the kernel."""
        for workload in (found := list(self._workloads(path))):
            if inputs_sha256(workload) == self.start["inputs_sha256"]:
                break
        else:
            if not found:
                name = self.start["kernel"]
                raise NoInputs(f"the inputs of {name} are not here: say where with --inputs FOLDER, or capture again")
            workload = found[0]
            self.differs.append("the inputs are others than the recorded")
        if gone := missing(workload):
            raise NoInputs(f"{len(gone)} blobs of the inputs in {workload.root} are gone: capture again")
        return workload

    def _workloads(self, path: Path) -> Iterator[Workload]:
        kernel = self.start["kernel"]
        module = parse_module(Document(str(path), self.start["text"]))
        if self.request.inputs is not None:
            yield own.load(self.request.inputs, module, kernel)
            return
        for place in dict.fromkeys((path, Path.cwd() / path.name)):
            if (captured := own.find(place, module, kernel)) is not None:
                yield captured
        toml = path.parent / "kernels.toml"
        if toml.is_file() and (written := spec.load(toml, module, module.kernel(kernel))) is not None:
            yield written
        if self.start["inputs"] == "synthetic":
            yield synthesize.synthesize(module, module.kernel(kernel), directory=path.parent)

    @contextmanager
    def _device(self, given: Device | None, own: bool) -> Iterator[Device]:
        if given is not None:
            yield given
            return
        emulated = self.request.device == "auto" and self.start["device_kind"] == "emulator"
        untrusted = not own or self.start.get("model") is not None
        with open_device("emulator" if emulated else self.request.device, untrusted=untrusted, start=False) as found:
            yield found

    def _machine(self, device: Device) -> None:
        if device.info.name != self.start["device"]:
            self.differs.append(f"device: {self.start['device']} then, {device.info.name} now")
        if self.start["versions"].get("program") != memory.program():
            self.differs.append("CUDA Agent is another version than the one that recorded it")

    # ------------------------------------------------------------ the search

    def _search(self, path: Path, device: Device, workload: Workload) -> tuple[Recorded, dict[str, Json]]:
        """The new record, and full verdicts that the search itself did not come to."""
        end = self.found.end
        options = _options(self.start["options"])
        request = Request(
            path,
            self.start["text"],
            self.start["kernel"],
            budget_s=PATIENCE * max(60.0, float(end["seconds"]) if end else 0.0),
            max_candidates=1 + len(self.found.of("candidate")),
            options=options,
            fresh=True,
            recorded=False,
            foreign=True,
        )
        with tempfile.TemporaryDirectory(prefix="cuda-agent-replay-") as folder:
            request = replace(request, trajectory=Path(folder) / f"{self.found.id}.jsonl")
            optimize(
                request,
                on_event=self.on_event,
                cancelled=self.cancelled,
                device=device,
                workload=workload,
                policy=Again(self.found),
            )
            if self.cancelled is not None and self.cancelled():
                raise Cancelled("stopped by the person")
            (now,) = recorded.read(request.trajectory or Path())
        made = {line["id"]: line for line in now.of("full")}
        lines = {line["id"]: line for line in self.found.of("candidate")}
        rest: dict[str, Json] = {}
        for line in self.found.of("full"):
            if line["id"] in made or line["id"] not in lines:
                continue
            candidate = candidate_of(self.start, lines[line["id"]])
            if sha256(candidate.text)[:12] != candidate.id:
                continue
            verdict = judge.judge(
                device,
                find_build(path),
                workload,
                self.start["text"],
                candidate,
                options=options,
                on_event=self.on_event,
                cancelled=self.cancelled,
            )
            gates = [[gate.id, gate.status, gate.detail] for gate in verdict.gates]
            timed = {"ratio": verdict.timing.ratio} if verdict.timing else None
            rest[line["id"]] = {"status": verdict.status, "gates": gates, "faster": verdict.faster, "timing": timed}
        return now, rest


def _options(given: Json) -> JudgeOptions:
    """Raises UsageError for values that no judge had."""
    usual, allow = asdict(record.options_from_json({})), given.get("allow", [])
    wrong = [name for name in usual.keys() & given.keys() - {"allow"} if not _alike(given[name], usual[name])]
    if not isinstance(allow, list) or not set(map(str, allow)) <= set(get_args(Precision)):
        wrong.append("allow")
    if wrong:
        raise UsageError(f"the record is damaged: no judge had its option {wrong[0]}, {given[wrong[0]]!r}")
    return record.options_from_json(given)


def _alike(value: object, usual: object) -> bool:
    """Of one type; a whole number may stand for another."""
    return type(value) is type(usual) or (type(value) is int and type(usual) is float)


def _tampered(found: Recorded) -> Iterator[str]:
    """Ids of candidates whose text is not the one that they name."""
    return (line["id"] for line in found.of("candidate") if sha256(line["text"])[:12] != line["id"])


# ---------------------------------------------------------------- then and now


def compare(then: Recorded, now: Recorded, rest: Mapping[str, Json]) -> Iterator[Row]:
    """Candidate by candidate, in order; then the full judgements."""
    names: dict[str, str] = {}
    known = {line["id"] for line in then.of("candidate")}
    judged = {line["id"]: line for line in now.of("candidate")}
    others = [line for line in now.of("candidate") if line["id"] not in known]
    for a in then.of("candidate"):
        names[a["id"]] = _name(a)
        b = judged.get(a["id"]) or (others.pop(0) if others else None)
        if sha256(a["text"])[:12] != a["id"]:
            yield Row(a["id"], _name(a), word(a), "its text in the record was changed since", False)
        elif b is None:
            yield Row(a["id"], _name(a), word(a), "not judged", False)
        elif a["id"] != b["id"]:
            yield Row(a["id"], _name(a), word(a), f"another text came of it ({b['id']})", False)
        else:
            yield Row(a["id"], _name(a), word(a), word(b), _same(a, b))
    for b in others:
        yield Row(b["id"], _name(b), "not there", word(b), False)
    again = {line["id"]: line for line in now.of("full")} | dict(rest)
    for line in then.of("full"):
        name = f"full verdict on {names.get(line['id'], line['id'])}"
        found = again.get(line["id"])
        if found is None:
            yield Row(line["id"], name, word(line), "not judged", False)
        else:
            yield Row(line["id"], name, word(line), word(found), _same_in_full(line, found))


def _name(line: Json) -> str:
    name = str(line["origin"]).removeprefix("rule:")
    return f"{name} ({line['reason']})" if line.get("reason") else name


def word(line: Json) -> str:
    """A verdict in words: `passes`, `rejected by G3`, `cannot decide (G2)`, `the same machine code as restrict`."""
    status, gate = line.get("status"), _gate(line)
    if status is None:
        return str(line.get("note") or "not judged").partition(": ")[0]
    if status == "verified":
        return "passes" + (", faster" if line.get("faster") else "")
    return f"rejected by {gate}" if status == "rejected" else "cannot decide" + (f" ({gate})" if gate else "")


def _gate(line: Json) -> str:
    """The first that failed, or could not decide."""
    stopped = [gate[0] for gate in line["gates"] if gate[1] == "fail"]
    return str(stopped[0]) if stopped else ""


def _same(a: Json, b: Json) -> bool | None:
    if a.get("status") != "undecided" and b.get("status") == "undecided":
        return None
    return (a.get("status"), _gate(a), a["twin"]) == (b.get("status"), _gate(b), b["twin"]) and (
        a.get("status") is not None or word(a) == word(b)
    )


def _same_in_full(a: Json, b: Json) -> bool | None:
    if a["status"] != "undecided" and b["status"] == "undecided":
        return None
    if (a["status"], _gate(a)) != (b["status"], _gate(b)):
        return False
    if a["faster"] and not b.get("timing"):
        return None  # this device measures no time
    return bool(a["faster"] == b["faster"])


def _sentence(holds: bool | None, rows: Sequence[Row], tampered: Sequence[str]) -> str:
    count = f"{len(rows)} verdict{'' if len(rows) == 1 else 's'}"
    if tampered:
        return f"{len(tampered)} of the recorded texts were changed since: {', '.join(tampered)}"
    if holds is None:
        return f"cannot tell: {sum(row.same is None for row in rows)} of {count} could not be decided here"
    if not holds:
        return f"{sum(row.same is False for row in rows)} of {count} differ"
    return f"the same verdicts: {count}" if rows else "nothing was judged then, and nothing now"
