"""`verify --from evidence.json`: judge again what was judged, and say whether the evidence still holds.

The file is judged as it is now where the edit still fits it; what is not as it was then (text, flags, inputs, device,
driver) is named. A claim is confirmed only by evidence of the same kind: the emulator says nothing about a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cuda_agent import judge
from cuda_agent.device import open_device
from cuda_agent.errors import NoInputs, SourceError, UsageError, WorkloadError
from cuda_agent.inputs import read_source
from cuda_agent.judge import record
from cuda_agent.judge.digest import sha256
from cuda_agent.judge.evidence import candidate_from_json, schema, to_json
from cuda_agent.model import Build, Candidate, LaunchMap, Workload
from cuda_agent.source import edits, joined
from cuda_agent.source.documents import Document
from cuda_agent.source.symbols import module as parse_module
from cuda_agent.toolchain.build import find_build
from cuda_agent.toolchain.launchers import with_launches
from cuda_agent.workload import bundle, own

Json = dict[str, Any]
TIMING_GATES = frozenset({"G8", "G9", "G10", "G11", "G12"})


@dataclass(frozen=True)
class RecheckRequest:
    """`source` and `inputs` say where the file and the bundle lie when they are not where the evidence says."""

    evidence: Path
    source: Path | None = None
    inputs: Path | None = None
    device: str = "auto"
    timeout_s: float | None = None  # for a run of the program and a job of the original; the recorded ones else


@dataclass(frozen=True)
class Recheck:
    """`holds` is None when nothing could be decided. `evidence` is the new one (the earlier one where nothing was
    judged), with the answer under `again`."""

    holds: bool | None
    sentence: str
    evidence: Json


def recheck(
    request: RecheckRequest,
    *,
    on_event: Callable[[Mapping[str, Any]], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Recheck:
    """Raises UsageError for a file that is no evidence or holds too little, SourceError when the source is not found,
    NoInputs when its inputs are gone."""
    then = schema.read(request.evidence)
    made = then["record"]
    if made.get("record") != record.VERSION or made.get("quick"):
        raise UsageError(f"{request.evidence} holds no full judgement of this version: judge again")
    recorded = candidate_from_json(then)
    file = find_source(request.evidence, made["file"], request.source)
    build, project = find_build(file), _project(file, made["file"])
    present = joined.again(recorded.original, read_source(file), lambda name: read_source(joined.path_of(file, name)))
    changed = [a.name or file.name for a, b in joined.pairs(recorded.original, present) if a.text != b.text]
    candidate, differs = _as_it_is_now(recorded, present, " and ".join(changed))
    differs += _build_differs(made, build, project)
    sentence = _no_longer_fits(candidate, build, " and ".join(changed))
    if candidate is None or sentence:
        return Recheck(False, sentence, then | {"again": _again(then, False, sentence, differs)})
    workload = bundle_of(made, candidate, file, request.inputs)
    options = record.options_from_json(made["options"])
    if request.timeout_s:
        options = replace(options, deadline_s=request.timeout_s, program_timeout_s=request.timeout_s)
    with open_device(device_of(request.device, made)) as device:
        differs += _device_differs(made, device.info.name, device.info.driver)
        if record.inputs(workload) != made["inputs"]:
            differs.append("the inputs are others: this kernel was captured again, or its specification changed")
        verdict = judge.judge(
            device,
            build,
            workload,
            candidate.original,
            candidate,
            options=options,
            on_event=on_event,
            cancelled=cancelled,
        )
    diff = edits.unified_diff(candidate.original, candidate.text, joined.shown(file, candidate.original))
    now = to_json(verdict, candidate=candidate, diff=diff)
    differs += _results_differ(then, now)
    holds, sentence = compare(then, now)
    return Recheck(holds, sentence, now | {"again": _again(then, holds, sentence, differs)})


def _again(then: Json, holds: bool | None, sentence: str, differs: list[str]) -> Json:
    device = then["record"].get("device") or {}
    return {
        "holds": holds,
        "sentence": sentence,
        "differs": differs,
        "then": {
            "status": then["status"],
            "evidence_level": then["evidence_level"],
            "headline": then["headline"],
            "date": then["record"].get("date"),
            "device": device.get("name"),
            "ci": then["timing"]["ci"] if then["timing"] else None,
        },
    }


# ---------------------------------------------------------------- what was judged, as it is now


def find_source(evidence: Path, recorded: str, given: Path | None) -> Path:
    """The source file: the given one (or the recorded path below a given folder), else the recorded path below this
    folder, the evidence's, or one above them. Raises SourceError."""
    if given is not None:
        places = [given] if given.is_file() else [given / recorded, given / Path(recorded).name]
    else:
        here, there = Path.cwd(), Path(os.path.abspath(evidence)).parent
        places = [folder / recorded for start in (here, there) for folder in (start, *start.parents)]
    for place in places:
        if place.is_file():
            return Path(os.path.abspath(place))
    where = f"below {given}" if given else "here or beside the evidence"
    raise SourceError(f"{recorded} was not found {where}: say where it is with --source FILE")


def _project(file: Path, recorded: str) -> Path:
    """The folder that the recorded paths start from, wherever it was moved to."""
    parts = Path(recorded).parts
    return file.parents[len(parts) - 1] if file.parts[-len(parts) :] == parts else record.project_of(file)


def _as_it_is_now(recorded: Candidate, present: str, name: str) -> tuple[Candidate | None, list[str]]:
    """The recorded edit on the present text (None: it does not fit), and how that text differs. The file may hold the
    original or, accepted, the candidate."""
    if present == recorded.original:
        return recorded, []
    if present == recorded.text:
        return recorded, [f"{name} holds the candidate now: it is judged against the original in the evidence"]
    changed = f"{name} was changed elsewhere since; it is judged as it is now"
    moved = edits.rebase(recorded.edits, recorded.original, present)
    if moved is not None:
        return _with_texts(recorded, present, edits.apply(present, moved)), [changed]
    back = edits.rebase(edits.invert(recorded.original, recorded.edits), recorded.text, present)
    if back is not None:
        return _with_texts(recorded, edits.apply(present, back), present), [f"{changed}, the candidate in it"]
    return None, [f"{name} was changed"]


def _no_longer_fits(candidate: Candidate | None, build: Build, changed: str) -> str:
    """Why the edit is not whole any more: it does not fit the file, or changes launches of a header's kernel that is
    launched in other files than it was; empty where it is."""
    if candidate is None:
        return f"no longer holds: {changed} was changed where the edit is, so the edit does not fit it"
    found = joined.others(with_launches(build, joined.own(candidate.original)))
    more = sorted(found.keys() - joined.others(candidate.original))
    if more and candidate.launch != LaunchMap():
        names = ", ".join(more)
        return f"no longer holds: {candidate.kernel} is launched in {names} too now, which the edit leaves as it is"
    return ""


def _with_texts(recorded: Candidate, original: str, text: str) -> Candidate:
    return Candidate(
        recorded.kernel,
        original,
        text,
        edits.minimal(original, text),
        recorded.origin,
        recorded.numeric,
        recorded.launch,
        recorded.assumptions,
        id=sha256(text)[:12],
    )


def bundle_of(made: Json, candidate: Candidate, file: Path, given: Path | None) -> Workload:
    """The launches of the candidate's kernel in the bundle where the record says, or where it was moved. Raises
    NoInputs when they are gone or in part."""
    module = parse_module(Document(str(file), candidate.original))
    folder = given or _project(file, made["file"]) / made["bundle"]["path"]
    try:
        workload = own.load(folder, module, candidate.kernel)
    except WorkloadError as error:
        found = None if given else own.find(file, module, candidate.kernel)
        if found is None:
            raise NoInputs(f"the inputs of this evidence are not there ({error}): say where with --inputs") from error
        workload = found
    if gone := missing(workload):
        raise NoInputs(
            f"{len(gone)} blobs of the inputs in {folder} are gone (the first is {gone[0][:12]}): capture again"
        )
    return workload


def missing(workload: Workload) -> list[str]:
    """Blobs that the workload names and its folder lacks."""
    store = bundle.BlobStore(workload.blobs)
    return sorted(name for name in bundle.blob_names(workload) if name not in store)


def device_of(asked: str, made: Json) -> str:
    """Evidence of the emulator is checked on the emulator unless the person names another device."""
    return "emulator" if asked == "auto" and made["device"]["kind"] == "emulator" else asked


def _build_differs(made: Json, build: Build, project: Path) -> list[str]:
    now = record.flags(build.flags, project)
    if now == made["flags"]:
        return []
    gone = [flag for flag in made["flags"] if flag not in now]
    new = [flag for flag in now if flag not in made["flags"]]
    parts = [f"without {' '.join(gone)}"] * bool(gone) + [f"with {' '.join(new)}"] * bool(new)
    return [f"the flags are others: {' and '.join(parts) or 'in another order'}"]


def _device_differs(made: Json, name: str, driver: str) -> list[str]:
    then, found = made["device"], []
    if then["name"] != name:
        found.append(f"device: {then['name']} then, {name} now")
    if then["driver"] != driver:
        found.append(f"driver: {then['driver'] or 'none'} then, {driver or 'none'} now")
    return found


# ---------------------------------------------------------------- does it hold


def _results_differ(then: Json, now: Json) -> list[str]:
    """Differences that decide nothing by themselves."""
    found = []
    for what, key in (("compiler", "compiler"), ("CUDA Agent", "version")):
        a, b = then["record"].get(key), now["record"].get(key)
        if a and b and a != b:
            found.append(f"{what}: {a} then, {b} now")
    if then["numeric"] != now["numeric"] and now["numeric"]:
        found.append(f"outputs: {then['numeric']} then, {now['numeric']} now")
    if then["traffic"] != now["traffic"] and then["traffic"] and now["traffic"]:
        found.append("the predicted traffic is another")
    return found


def compare(then: Json, now: Json) -> tuple[bool | None, str]:
    """Whether the new judgement confirms the earlier one, and why in a sentence; None: it cannot tell."""
    if then["status"] == "undecided":
        return None, f"cannot decide: the earlier evidence decided nothing ({then['headline']})"
    if now["status"] == "undecided":
        return None, f"cannot decide: {now['headline'].removeprefix('Could not decide: ')}"
    if then["status"] != now["status"]:
        return False, f"no longer holds: {then['status']} then; now {now['headline']}"
    if then["status"] == "rejected":
        before, after = _failed(then), _failed(now)
        return True, f"holds: rejected again, by {after}" + (f" (by {before} then)" if before != after else "")
    unsaid = list(_unconfirmed(then, now))
    if unsaid:
        return None, f"cannot decide: {unsaid[0]}"
    if then["timing"] is None:
        return _predictions(then, now)
    return _times(then, now)


def _failed(evidence: Json) -> str:
    return next((gate["id"] for gate in evidence["gates"] if gate["status"] == "fail"), "no gate")


def _unconfirmed(then: Json, now: Json) -> Iterator[str]:
    """What passed then and did not run now. Times are not asked for where the code is the same now."""
    if then["timing"] and not now["timing"] and not now["record"]["same_code"]:
        where = now["record"]["device"]["name"]
        yield f"same results, but the time was measured on {then['timing']['device']} and {where} measures none"
    ran = {gate["id"]: gate for gate in now["gates"]}
    for gate in then["gates"]:
        again = ran.get(gate["id"])
        if gate["status"] == "pass" and again and again["status"] == "not-run" and gate["id"] not in TIMING_GATES:
            yield f"{gate['id']} ({gate['name']}) passed then and did not run now: {again['detail']}"


def _predictions(then: Json, now: Json) -> tuple[bool | None, str]:
    """Evidence without times: the same results, and the traffic that was to drop still drops."""
    if _drop(then) > 0 >= _drop(now):
        return False, f"no longer holds: the predicted traffic does not drop any more; now {now['headline']}"
    return True, f"holds: {now['headline']}"


def _drop(evidence: Json) -> float:
    traffic = evidence["traffic"]
    return float(traffic.get("sectors_before", 0) - traffic.get("sectors_after", 0))


def _times(then: Json, now: Json) -> tuple[bool | None, str]:
    a, b = then["timing"], now["timing"]
    if b is None:
        return not then["faster"], f"{'no longer holds' if then['faster'] else 'holds'}: {now['headline']}"
    words = f"{_interval(b)} now, {_interval(a)} then"
    if then["faster"] and not now["faster"]:
        return False, f"no longer holds: {b['label']}, {words}"
    if a["label"] != "SLOWER" and b["label"] == "SLOWER":
        return False, f"no longer holds: slower now, {words}"
    if b["ci"][1] < a["ci"][0]:
        return True, f"holds, by less: still {b['label']}, {words}"
    meet = "the intervals overlap" if a["ci"][1] >= b["ci"][0] else "by more"
    return True, f"holds: still {b['label']}, {words}; {meet}"


def _interval(timing: Json) -> str:
    return f"{timing['ratio']:.2f}× [{timing['ci'][0]:.2f}, {timing['ci'][1]:.2f}]"
