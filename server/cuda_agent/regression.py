"""`export-test` and `verify --test`: an accepted kernel kept right by the person's own test suite.

A test is a folder: the judged launches with their inputs and what the original left there (`inputs/`, a bundle),
`case.json` (which kernel of which file, how it is launched, what may differ), and a pytest file or a CMakeLists.txt
that calls `cuda-agent verify --test FOLDER`. That runs the kernel as it is in the file now. Buffers the original only
writes are poisoned before, as in gate G3, so an element that is not written shows.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from cuda_agent import __version__
from cuda_agent.device import Device, jobs, open_device
from cuda_agent.errors import CompileError, DeadlineExceeded, SourceError, UsageError, WorkerDied, WorkloadError
from cuda_agent.inputs import read_source
from cuda_agent.judge import numeric, record
from cuda_agent.judge.baseline import need, poison_of
from cuda_agent.judge.case import ORIGINAL, Case
from cuda_agent.judge.evidence import candidate_from_json, schema
from cuda_agent.judge.evidence.document import launch_map_from_json
from cuda_agent.judge.gates import GATES
from cuda_agent.judge.verdict import inputs as inputs_sentence
from cuda_agent.model import Binary, Buffer, Candidate, GateResult, Launch, Verdict, Workload
from cuda_agent.recheck import bundle_of, device_of, find_source, missing
from cuda_agent.source import joined
from cuda_agent.source.documents import Document
from cuda_agent.source.symbols import Module
from cuda_agent.source.symbols import module as parse
from cuda_agent.toolchain import names
from cuda_agent.toolchain.build import find_build
from cuda_agent.workload import bundle, launch_map

Json = dict[str, Any]
VERSION = 1
CASE, INPUTS = "case.json", "inputs"
ELSEWHERE = (
    10  # times the numeric rule on another device than the recorded: two math libraries differ in the last places
)
DEADLINE_S = 120.0


@dataclass(frozen=True)
class ExportRequest:
    evidence: Path
    into: Path
    ctest: bool = False
    source: Path | None = None
    inputs: Path | None = None
    device: str = "auto"


@dataclass(frozen=True)
class Exported:
    folder: Path
    test: Path
    kernel: str
    launches: int
    bytes: int  # of the folder's blobs

    @property
    def sentence(self) -> str:
        plural = "es" if self.launches > 1 else ""
        return f"{self.test} tests {self.kernel} on {self.launches} launch{plural} ({self.bytes:,} bytes of inputs)"

    def to_json(self) -> Json:
        return asdict(self) | {"folder": str(self.folder), "test": str(self.test)}


# ---------------------------------------------------------------- export


def export(request: ExportRequest, *, cancelled: Callable[[], bool] | None = None) -> Exported:
    """Write the folder and run it once. Raises UsageError where there is nothing to keep: the evidence is not of a
    verified candidate, the file does not hold it, the folder is in use, or the new test does not pass."""
    evidence = schema.read(request.evidence)
    if evidence["status"] != "verified":
        raise UsageError(f"{request.evidence} is not of a verified candidate: {evidence['headline']}")
    made, candidate = evidence["record"], candidate_from_json(evidence)
    folder = Path(os.path.abspath(request.into))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{request.into} is not empty: name a new folder")
    file = find_source(request.evidence, made["file"], request.source)
    _must_hold(file, candidate)
    workload = bundle_of(made, candidate, file, request.inputs)
    try:
        with open_device(device_of(request.device, made)) as device:
            options = record.options_from_json(made["options"])
            build = find_build(file)
            case = Case(device, build, workload, candidate.original, candidate, options=options, cancelled=cancelled)
            kept, checks = _recorded(case, bundle.BlobStore(folder / INPUTS / "blobs"))
            bundle.save(folder / INPUTS, kept)
            about = {
                "case": VERSION,
                "kernel": candidate.kernel,
                "source": Path(os.path.relpath(file, folder)).as_posix(),
                "launch": asdict(candidate.launch),
                "device": device.info.name,
                "launches": checks,
                "evidence": {key: evidence[key] for key in ("headline", "inputs")} | {"version": __version__},
            }
            bundle.write_atomic(folder / CASE, (json.dumps(about, indent=1) + "\n").encode())
            test = _write_test(folder, candidate.kernel, file.name, request.ctest)
            verdict = run(folder, device)
        if verdict.status != "verified":
            why = next((gate.detail for gate in verdict.gates if gate.status == "fail"), "it could not be run")
            raise UsageError(f"the kernel in {file.name} would not pass this test, which is not written: {why}")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    size = sum(path.stat().st_size for path in (folder / INPUTS).rglob("*") if path.is_file())
    return Exported(folder, test, candidate.kernel, len(checks), size)


def _must_hold(file: Path, candidate: Candidate) -> None:
    """The file's kernel and its launches are the accepted ones. Raises UsageError."""
    now = joined.again(candidate.text, read_source(file), lambda name: read_source(joined.path_of(file, name)))
    present, accepted = (parse(Document(str(file), text)) for text in (now, candidate.text))
    try:
        same = _of_kernel(present, candidate.kernel) == _of_kernel(accepted, candidate.kernel)
    except SourceError:
        same = False
    if not same:
        raise UsageError(
            f"{file.name} does not hold the accepted {candidate.kernel}: apply the evidence's diff first, or optimize "
            "with --apply"
        )


def _of_kernel(module: Module, name: str) -> tuple[str, list[str]]:
    """The kernel's text, as a hash, and how it is launched."""
    kernel = module.kernel(name)
    return module.kernel_hash(kernel), [module.text(site.config_span) for site in module.launches_of(kernel)]


def _recorded(case: Case, store: bundle.BlobStore) -> tuple[Workload, list[Json]]:
    """The judged launches with what the original leaves of them (put into `store`), and for each what may differ."""
    launches, checks = [], []
    for index, launch in enumerate(case.launches):
        base, slots = case.baseline(index), case.slots(index)
        poison = poison_of(case, index, base.poisoned, 0)
        written = [b for b in base.outputs if b < len(slots)]
        steps = [
            *case.load_steps(candidate=False),
            case.original_launch("o", index, poison=poison),
            *(jobs.fetch_step("o", b) for b in written),
        ]
        found = case.run(steps, deadline_s=case.options.deadline_s, tag=f"recording {case.launch_name(index)}")
        outputs = dict(zip(written, need(found, "the original's outputs cannot be recorded")[2:], strict=True))
        launches.append(
            replace(launch, buffers=tuple(_with_after(b, n, outputs, store) for n, b in enumerate(launch.buffers)))
        )
        allowed = [
            numeric.allowed(slot.dtype, base.max_ref[b], case.tolerance(index, b), base.spread[b])
            if b in outputs
            else 0.0
            for b, slot in enumerate(slots)
        ]
        checks.append(
            {
                "buffers": [
                    {"name": s.name, "dtype": s.dtype, "allowed": a} for s, a in zip(slots, allowed, strict=True)
                ],
                "poison": [[b, start, end, pattern] for b, ranges in poison.items() for start, end, pattern in ranges],
            }
        )
    # The program's command and environment are nobody's business in a repository.
    return replace(case.workload, launches=tuple(launches), command=(), environment={}), checks


def _with_after(buffer: Buffer, number: int, outputs: Mapping[int, Json], store: bundle.BlobStore) -> Buffer:
    after = store.put(outputs[number]["data"]) if number in outputs else buffer.before
    return replace(buffer, after=after, written=None)


def _write_test(folder: Path, kernel: str, source: str, ctest: bool) -> Path:
    template = files("cuda_agent").joinpath("templates", f"{'CMakeLists.txt' if ctest else 'test_kernel.py'}.in")
    name = re.sub(r"\W+", "_", kernel).strip("_") or "kernel"
    text = template.read_text(encoding="utf-8").replace("KERNEL_NAME", name).replace("SOURCE_NAME", source)
    path = folder / ("CMakeLists.txt" if ctest else f"test_{name}.py")
    bundle.write_atomic(path, text.encode())
    return path


# ---------------------------------------------------------------- run


def run(folder: Path, device: Device | str = "auto") -> Verdict:
    """The kernel as it is in the file now, on the recorded launches: G1, G3 and G4 of it. Raises UsageError for a
    folder that is no test, or one whose file is gone."""
    about = _read_case(folder)
    file = Path(os.path.abspath(folder / about["source"]))
    if not file.is_file():
        raise UsageError(f"{folder} tests {about['source']}, which is not there: export the test again")
    try:
        workload = bundle.load(folder / INPUTS)
    except WorkloadError as error:
        raise UsageError(f"{folder} has lost its inputs: {error}") from error
    if gone := missing(workload):
        raise UsageError(f"{folder} has lost its inputs: {len(gone)} blobs are gone; export the test again")
    if isinstance(device, str):
        with open_device(device) as opened:
            return _Test(about, file, workload, opened).run()
    return _Test(about, file, workload, device).run()


def _read_case(folder: Path) -> Json:
    try:
        about = json.loads((folder / CASE).read_text(encoding="utf-8"))
        if about["case"] != VERSION:
            raise UsageError(
                f"{folder / CASE} has version {about['case']}; this program reads {VERSION}: export it again"
            )
        launch_map_from_json(about["launch"])
        if not all(isinstance(about[key], str) for key in ("kernel", "source", "device")):
            raise ValueError("a name is missing")
        [(check["buffers"], check["poison"]) for check in about["launches"]]
    except OSError as error:
        raise UsageError(f"{folder} is no folder that `cuda-agent export-test` wrote: {error.strerror}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{folder / CASE} is broken ({error}): export the test again") from error
    assert isinstance(about, dict)
    return about


class _Test:
    """One run of one test."""

    def __init__(self, about: Json, file: Path, workload: Workload, device: Device) -> None:
        self.about, self.workload, self.device = about, workload, device
        self.file, self.build = file, find_build(file)
        self.launch = launch_map_from_json(about["launch"])
        self.rows: list[numeric.Compared] = []
        self.binary: Binary | None = None

    def run(self) -> Verdict:
        results: dict[str, GateResult] = {}
        try:
            self.binary = self.device.compile(self.build, read_source(self.file))
        except CompileError as error:
            results["G1"] = _result("G1", False, f"{self.file.name} does not compile: {error}")
            return self._verdict(results)
        results["G1"] = _result("G1", True, f"{self.file.name} compiles with {self.binary.compiler}")
        canaries: list[str] = []
        for index, launch in enumerate(self.workload.launches):
            wrong = self._launch(index, launch, self.binary, canaries)
            if wrong is not None:
                data = {"numeric": [row.to_json() for row in self.rows]}
                results["G3"] = _result("G3", False, f"launch {self._name(launch)}: {wrong}", data)
                return self._verdict(results)
        count = len(self.workload.launches)
        detail = f"the recorded outputs on {count} launch{'es' * (count > 1)}: {self._worst()}"
        results["G3"] = _result("G3", True, detail, {"numeric": [row.to_json() for row in self.rows]})
        results["G4"] = _result(
            "G4", not canaries, canaries[0] if canaries else "canaries around every buffer are intact"
        )
        return self._verdict(results)

    def _launch(self, index: int, launch: Launch, binary: Binary, canaries: list[str]) -> str | None:
        """What is wrong with one launch, in words; fills `rows` and `canaries`."""
        check = self.about["launches"][index]
        kernel = names.match(list(binary.kernels), launch.mangled)
        if kernel is None:
            return f"{self.file.name} holds no {self.about['kernel']} that takes the recorded arguments"
        shape = launch_map.apply(self.launch, launch.grid, launch.block, launch.shared)
        poison: dict[int, list[tuple[int, int, str]]] = {}
        for buffer, start, end, pattern in check["poison"]:
            poison.setdefault(buffer, []).append((start, end, pattern))
        steps = [
            jobs.load_step(binary, ORIGINAL),
            jobs.launch_step("now", ORIGINAL, launch, kernel=kernel, poison=poison, **shape._asdict()),
            jobs.compare_after_step("now", launch, [buffer["dtype"] for buffer in check["buffers"]]),
        ]
        blobs = jobs.BlobSource(bundle.BlobStore(self.workload.blobs)).add_binary(binary)
        job = jobs.Job(steps, DEADLINE_S, f"testing {self._name(launch)}", frozenset({binary.sha256}))
        try:
            loaded, launched, compared = self.device.run(job, blobs)
        except DeadlineExceeded as error:
            return f"the kernel did not end: {error}"
        except WorkerDied as error:
            return f"the kernel crashed: {error}"
        except WorkloadError as error:
            raise UsageError(f"the inputs of this test are broken: {error}") from error
        for step in (loaded, launched, compared):
            if not step["ok"]:
                return str(step["error"])
        canaries += [f"a write {c['side']} {check['buffers'][c['buffer']]['name']}" for c in launched["canaries"]]
        elsewhere = ELSEWHERE if self.about["device"] != self.device.info.name else 1
        for row in compared["buffers"]:
            about = check["buffers"][row["buffer"]]
            limit = about["allowed"] * elsewhere
            within = numeric.accepts(row, limit)
            klass = numeric.ORDER[0] if row["equal"] else numeric.ORDER[1]
            if limit or not row["equal"]:  # buffers that nobody writes are no outputs
                self.rows.append(numeric.Compared(index, about["name"], klass, within, limit, row))
        wrong = next((row for row in self.rows if not row.within), None)
        return None if wrong is None else wrong.sentence()

    def _name(self, launch: Launch) -> str:
        return launch_map.Shape.of(launch).text()

    def _worst(self) -> str:
        worst = max(self.rows, key=lambda row: (not row.result["equal"], row.result["max_abs"]), default=None)
        if worst is None or worst.result["equal"]:
            return "bit-equal"
        return f"{worst.buffer} differs by at most {worst.result['max_abs']:.3g}, allowed {worst.allowed:.3g}"

    def _verdict(self, results: Mapping[str, GateResult]) -> Verdict:
        gates = tuple(
            results.get(gate.id) or GateResult(gate.id, gate.name, "not-run", "a regression test does not ask it")
            for gate in GATES
        )
        failed = any(gate.status == "fail" for gate in gates)
        info, project = self.device.info, record.project_of(self.file)
        ran = "G3" in results
        return Verdict(
            status="rejected" if failed else "verified",
            level=("emulated" if info.kind == "emulator" else "replayed") if ran else "none",
            gates=gates,
            inputs=inputs_sentence(self.workload),
            numeric=numeric.worst(row.klass for row in self.rows) if ran and not failed else None,
            record={
                "file": self.file.relative_to(project).as_posix(),
                "device": record.device_json(info),
                "compiler": self.binary.compiler if self.binary else None,
                "flags": record.flags(self.build.flags, project),
                "launches": {"judged": len(self.workload.launches)},
            },
        )


def _result(id_: str, passed: bool, detail: str, data: Json | None = None) -> GateResult:
    name = next(gate.name for gate in GATES if gate.id == id_)
    return GateResult(id_, name, "pass" if passed else "fail", detail, data=data or {})
