"""What each tool call does. What compiles or runs goes to a job process (`jobs.py`), once the file was found inside the
allowed folders and its folder is trusted."""

from __future__ import annotations

import re
import shlex
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cuda_agent.config import Settings
from cuda_agent.engine.codec import from_json, to_json
from cuda_agent.errors import SourceError, Untrusted, UsageError
from cuda_agent.inputs import RUN_TIMEOUT_S, read_source
from cuda_agent.judge.evidence import to_json as evidence_json
from cuda_agent.lsp import render
from cuda_agent.lsp.documents import OpenFile
from cuda_agent.lsp.proposals import Proposals, judged_hash
from cuda_agent.mcp import editor, results, roots
from cuda_agent.mcp.jobs import Jobs, Say
from cuda_agent.mcp.tasks import Ask
from cuda_agent.model import Candidate, Proposal, Verdict
from cuda_agent.source.documents import Document
from cuda_agent.trust import Trust

COMPILE_S = 120.0
Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class Caller:
    """Who asks: the folders it may name files in, its name, and where its progress goes."""

    folders: Sequence[Path]
    name: str
    say: Say

    @property
    def origin(self) -> str:
        """What it writes is text of a model, whoever it is."""
        return f"model:{re.sub(r'[^A-Za-z0-9._-]+', '-', self.name).strip('-')[:40] or 'mcp'}"


@dataclass(frozen=True)
class Source:
    """A file as it is now: in an editor where one has it open, else on disk."""

    path: Path
    folder: Path  # the allowed one that holds it; jobs run there
    text: str
    uri: str
    open: editor.OpenText | None

    @property
    def file(self) -> OpenFile:
        version = self.open.version if self.open else 0
        return OpenFile(self.uri, self.path, "cuda", Document(str(self.path), self.text, version))


class Calls:
    """`run_any`: a client may give any command to `capture`, not only the person's own."""

    def __init__(self, settings: Settings, run_any: bool = False) -> None:
        self.settings, self.run_any = settings, run_any
        self.jobs = Jobs()
        self.handlers: dict[str, Callable[[Caller, Arguments], Awaitable[Arguments]]] = {
            "facts": self.facts,
            "capture": self.capture,
            "verify": self.verify,
            "bench": self.bench,
            "optimise": self.optimise,
            "proposals": self.proposals,
        }

    # ------------------------------------------------------------ tools

    async def facts(self, caller: Caller, given: Arguments) -> Arguments:
        source = await self._source(caller, given)
        return _result(await self._run("facts", caller, source, self._ask(caller, source, given), COMPILE_S))

    async def capture(self, caller: Caller, given: Arguments) -> Arguments:
        source = await self._source(caller, given)
        ask = self._ask(caller, source, given)
        settings, command, args = ask.settings, given.get("command"), given.get("args")
        if command is not None and args is not None:
            raise UsageError("`command` is the whole command: put the arguments there and leave `args` out")
        if command is not None and command != settings.run_command and not self.run_any:
            raise UsageError(
                "only the person's own run command is run for a client: they set it with `--set runCommand=…` in "
                "this server's start, or allow any with `--any-command`"
            )
        if command is not None:
            settings = replace(settings, run_command=_words(command))
        elif args is not None:
            settings = replace(settings, run_command="", arguments=_words(args))
        if settings.run_command:
            _need_trust(source.folder)
        ask = replace(ask, settings=settings)
        return _result(await self._run("capture", caller, source, ask, RUN_TIMEOUT_S))

    async def verify(self, caller: Caller, given: Arguments) -> Arguments:
        source = await self._source(caller, given)
        if ("candidate" in given) == ("candidate_file" in given):
            raise UsageError("give the rewrite either as `candidate` or in a `candidate_file`")
        text, reason = given.get("candidate"), " ".join(given.get("reason", "").split())[:300]
        if text is None:
            text = read_source(roots.find(given["candidate_file"], caller.folders)[0])
        ask = replace(self._ask(caller, source, given), candidate=text, reason=reason)
        return await self._propose(source, given, await self._run("verify", caller, source, ask, self._limit(ask)))

    async def bench(self, caller: Caller, given: Arguments) -> Arguments:
        source = await self._source(caller, given)
        ask = self._ask(caller, source, given)
        return _result(await self._run("bench", caller, source, ask, self._limit(ask)))

    async def optimise(self, caller: Caller, given: Arguments) -> Arguments:
        source = await self._source(caller, given)
        ask = self._ask(caller, source, given)
        return await self._propose(source, given, await self._run("optimise", caller, source, ask, self._limit(ask)))

    async def proposals(self, caller: Caller, given: Arguments) -> Arguments:
        """Of the files in the allowed folders. Which texts they are held against is the editor's where it is open."""
        known = Proposals()
        found: list[tuple[Source, Proposal]] = []
        if "file" in given:
            paths = [roots.find(given["file"], caller.folders)]
        else:
            paths = [place for place in map(self._inside(caller), known.paths()) if place is not None]
        for path, folder in paths:
            source = await _read(path, folder)
            found += [(source, proposal) for proposal in known.of_file(source.file)]
        rows = [_row(source, proposal) for source, proposal in found]
        if "proposal" not in given:
            return {"proposals": rows}
        chosen = next((proposal for _, proposal in found if proposal.id == given["proposal"]), None)
        if chosen is None:
            raise UsageError(f"there is no proposal {given['proposal']!r}; list them without `proposal`")
        evidence = results.verdict(evidence_json(chosen.verdict, chosen))
        rows = [row for row in rows if row["id"] == chosen.id]
        return {"proposals": rows, "diff": chosen.diff, "evidence": evidence}

    # ------------------------------------------------------------ shared

    async def _source(self, caller: Caller, given: Arguments) -> Source:
        """The file that a tool compiles or runs. SourceError, UsageError, Untrusted."""
        path, folder = roots.find(given["file"], caller.folders)
        _need_trust(path.parent)
        return await _read(path, folder)

    def _ask(self, caller: Caller, source: Source, given: Arguments) -> Ask:
        settings = self.settings
        changes = {
            "device": given.get("device"),
            "budget_seconds": given.get("budget"),
            "budget_candidates": given.get("candidates"),
        }
        settings = replace(settings, **{name: value for name, value in changes.items() if value is not None})
        return Ask(str(source.path), source.text, given.get("kernel"), origin=caller.origin, settings=settings)

    @staticmethod
    def _limit(ask: Ask) -> float:
        """Around a budget come a capture, builds and the last verdict."""
        return 4 * ask.settings.budget_seconds + RUN_TIMEOUT_S

    async def _run(self, kind: str, caller: Caller, source: Source, ask: Ask, limit_s: float) -> Any:
        folder = str(source.folder)
        return await self.jobs.run(kind, to_json(ask), folder, caller.say, limit_s, waits=kind != "facts")

    @staticmethod
    async def _propose(source: Source, given: Arguments, answer: Mapping[str, Any]) -> Arguments:
        """The tool's result; a verified candidate is shown to the person first, where that was asked for."""
        result = _result(answer)
        if not given.get("propose"):
            return result
        if result["status"] != "verified":
            return result | {"proposed": "not proposed: only what is verified is"}
        candidate, verdict = from_json(Candidate, answer["candidate"]), from_json(Verdict, answer["verdict"])
        hash = judged_hash(str(source.path), candidate)
        id, diff = uuid.uuid4().hex[:12], str(answer["diff"])
        proposal = Proposal(id, source.uri, candidate.kernel, hash, candidate, verdict, diff)
        if source.open is None:
            Proposals().put(proposal)
            return result | {"proposed": "the person sees it when they open the file in their editor"}
        await editor.propose(source.open, proposal)
        return result | {"proposed": "in the person's editor, where they accept it or not"}

    @staticmethod
    def _inside(caller: Caller) -> Callable[[Path], tuple[Path, Path] | None]:
        def place(path: Path) -> tuple[Path, Path] | None:
            try:
                return roots.find(str(path), caller.folders)
            except (UsageError, SourceError):
                return None

        return place


def _result(answer: Mapping[str, Any]) -> dict[str, Any]:
    return dict(answer["result"])


async def _read(path: Path, folder: Path) -> Source:
    found = await editor.find(path)
    text = found.text if found is not None else read_source(path)
    return Source(path, folder, text, found.uri if found is not None else path.as_uri(), found)


def _need_trust(folder: Path) -> None:
    if not Trust().covers(folder):
        raise Untrusted(
            f"{folder} is not trusted: nothing in it is compiled or run. The person who owns it may run "
            f"`cuda-agent trust {shlex.quote(str(folder))}` in a terminal; then call this tool again"
        )


def _words(line: str) -> str:
    """The line itself. UsageError when a shell could not split it."""
    try:
        shlex.split(line)
    except ValueError as error:
        raise UsageError(f"{line!r} cannot be split into words: {error}") from error
    return line


def _row(source: Source, proposal: Proposal) -> dict[str, Any]:
    return {
        "id": proposal.id,
        "file": str(source.path),
        "kernel": proposal.kernel,
        "origin": proposal.candidate.origin,
        "state": proposal.state,
        "status": proposal.verdict.status,
        "title": render.proposal_title(proposal),
    }
