"""The server's state and what every handler may use; the handlers themselves are in `handlers/`, one file a request.

One asyncio loop, no threads. It answers from what it holds, never compiles, never imports numpy or cupy."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.uris import to_fs_path

from cuda_agent import __version__
from cuda_agent.config import Settings, parse, trusted_only
from cuda_agent.engine import messages
from cuda_agent.engine.client import EngineClient
from cuda_agent.errors import CudaAgentError, UsageError
from cuda_agent.lsp import outcomes
from cuda_agent.lsp.attach import Listener
from cuda_agent.lsp.client import Client
from cuda_agent.lsp.compiler_facts import CompilerFacts
from cuda_agent.lsp.documents import Documents, OpenFile
from cuda_agent.lsp.editor_model import EditorModel
from cuda_agent.lsp.jobs import Job, Jobs
from cuda_agent.lsp.proposals import Proposals
from cuda_agent.lsp.protocol import Protocol, converter, reply
from cuda_agent.trust import Trust

_log = logging.getLogger(__name__)
SCHEME = "cuda-agent-proposal"
REFRESH_S = 0.15
LEVELS = ("error", "warning", "info", "debug")
ASK = "CUDA Agent compiles and runs the code in {} and in the folders below it. Trust this folder?"


class CudaAgentServer(LanguageServer):
    """One editor, one workspace, one engine."""

    protocol: Protocol

    def __init__(self) -> None:
        super().__init__("cuda-agent", __version__, protocol_cls=Protocol, converter_factory=converter)
        self.client = Client()
        self.documents = Documents()
        self.settings = Settings()
        self.trust = Trust()
        self.proposals = Proposals(documents=lambda: self.documents)
        self.engine = EngineClient(self._engine_said, self._engine_lost)
        self.jobs = Jobs(self, lambda job, event: outcomes.finish(self, job, event))
        self.attached = Listener(self)
        self.editor_model = EditorModel(self)
        self.facts = CompilerFacts(self, lambda file: outcomes.facts_changed(self, file))
        self.root: Path | None = None
        self.tasks: set[asyncio.Task[Any]] = set()
        self._given: dict[str, Any] = {}  # settings as the client gave them
        self._refresh: asyncio.TimerHandle | None = None
        self._asking: dict[Path, asyncio.Task[bool]] = {}  # by the folder that is asked about
        self._said: set[str] = set()
        self.published: set[str] = set()  # files with diagnostics of ours

    # ------------------------------------------------------------ start and end

    def begin(self, params: types.InitializeParams) -> None:
        """Take what `initialize` says."""
        self.client = Client.of(params)
        self.documents = Documents(self.client.encoding)
        folders = params.workspace_folders or []
        uri = folders[0].uri if folders else params.root_uri
        name = to_fs_path(uri) if uri else params.root_path
        self.root = Path(name) if name else None
        self.engine.root = str(self.root or "")
        self.trust = Trust()
        self.trust.open_folders(self.workspace_paths() or ([self.root] if self.root else []))
        if self.client.says_trust:
            self.trust.tell(bool(self.client.options["trusted"]))
        self.engine.trusted = self.trust.answers
        self.configure(self.client.options.get("settings") or {})

    def complete_capabilities(self, capabilities: types.ServerCapabilities) -> None:
        """What pygls's builder does not know."""
        if self.client.text_document_content and capabilities.workspace is not None:
            options = types.TextDocumentContentOptions(schemes=[SCHEME])
            capabilities.workspace.text_document_content = options

    async def end(self) -> None:
        """End all jobs and the engine. Safe to call twice."""
        self.facts.close()
        await self.attached.close()
        await self.engine.close()

    def spawn(self, work: Any) -> None:
        """A task that is not forgotten and whose failure is said."""
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self.failed("a background task", failure)

    # ------------------------------------------------------------ settings and trust

    def configure(self, values: Any) -> None:
        """Take settings; one that cannot be read is named and left at its default, the others hold."""
        if not isinstance(values, Mapping):
            return
        self._given = {**self._given, **values}
        settings = Settings()
        for key, value in trusted_only(self._given, self.trusted).items():
            try:
                settings = parse({key: value}, settings)
            except UsageError as problem:
                self.say_once(str(problem), types.MessageType.Warning)
        self.settings = settings
        logging.getLogger("cuda_agent").setLevel(settings.log_level.upper())

    @property
    def trusted(self) -> bool:
        """Whether restricted settings are read: the editor's word, else the answer for the workspace's folder; without
        a folder an open file's."""
        if self.trust.told is not None:
            return self.trust.told
        if self.root is not None:
            return self.trust.covers(self.root)
        return any(self.covers(file) for file in self.documents)

    def workspace_paths(self) -> list[Path]:
        """Every folder that the workspace has now."""
        names = (to_fs_path(folder.uri) for folder in self.workspace.folders.values())
        return [Path(name) for name in names if name]

    def covers(self, file: OpenFile) -> bool:
        """Whether the file's code may be compiled and run."""
        return file.path is not None and self.trust.covers(file.path)

    async def trust_changed(self) -> None:
        """Let everything follow what is trusted now."""
        self.configure({})
        self.tell_status()
        await self.engine.trust(self.trust.answers)
        for file in self.documents:
            self.facts.schedule(file, 0.0)
        self.refresh_soon()

    async def ensure_trust(self, path: Path) -> bool:
        """True when the file's code may run. Asks the person about its folder, once, where no editor said no; two
        callers share one question."""
        while (folder := self.trust.missing(path)) is not None:
            if self.trust.told is False:
                return False
            asking = self._asking.get(folder)
            if asking is None or asking.done():
                asking = self._asking[folder] = asyncio.create_task(self._ask_trust(folder))
            if not await asyncio.shield(asking):
                return False
        await self.engine.trust(self.trust.answers)  # the answer may have been given in another program
        return True

    async def _ask_trust(self, folder: Path) -> bool:
        yes, no = types.MessageActionItem("Trust this folder"), types.MessageActionItem("Not now")
        question = types.ShowMessageRequestParams(types.MessageType.Warning, ASK.format(folder), [yes, no])
        answer = await reply(self.window_show_message_request(question))
        trusted = answer is not None and answer.title == yes.title
        if trusted:
            self.trust.remember(folder, True)
            await self.trust_changed()
        return trusted

    # ------------------------------------------------------------ the engine's words

    def _engine_said(self, event: object) -> None:
        if isinstance(event, messages.JobProgress):
            self.jobs.progressed(event)
        elif isinstance(event, messages.JobDone):
            self.jobs.done(event)
        elif isinstance(event, messages.ModelAsk):
            self.editor_model.asked(event)
        elif isinstance(event, messages.ModelStop):
            self.editor_model.stopped(event)
        elif isinstance(event, messages.Log):
            self.log(event.message, event.level)
            if event.level == "error":
                self.say_once(event.message, types.MessageType.Warning)

    def _engine_lost(self, reason: str) -> None:
        """Say what happened, end its jobs, and start a fresh one by asking for the facts again."""
        self.log(f"{reason}; a fresh one starts with the next request", "warning")
        self.jobs.lost(reason)
        self.tell_status()
        for file in self.documents:
            self.facts.schedule(file, 1.0)

    # ------------------------------------------------------------ saying things

    def say(self, message: str, kind: types.MessageType = types.MessageType.Info) -> None:
        self.window_show_message(types.ShowMessageParams(type=kind, message=message))

    def say_once(self, message: str, kind: types.MessageType) -> None:
        """For what would otherwise come with every cursor move."""
        if message not in self._said:
            self._said.add(message)
            self.say(message, kind)

    def log(self, message: str, level: str = "info") -> None:
        """To the editor's log, where the setting `logLevel` wants that much."""
        if LEVELS.index(level) > LEVELS.index(self.settings.log_level):
            return
        kinds = {"error": types.MessageType.Error, "warning": types.MessageType.Warning, "info": types.MessageType.Info}
        self.window_log_message(types.LogMessageParams(kinds.get(level, types.MessageType.Log), message))

    def failed(self, where: str, failure: BaseException, command: bool = False) -> str:
        """The catch-all's last word: log it, tell the person, return the sentence. An error of ours that repeats on
        its own is told once; the answer to a command is told each time."""
        if isinstance(failure, CudaAgentError):
            sentence, kind = str(failure), types.MessageType.Warning
        else:
            text = "".join(traceback.format_exception(failure))
            _log.error("%s failed\n%s", where, text)
            self.log(f"{where} failed\n{text}", "error")
            sentence, kind = f"CUDA Agent: {where} failed: {failure!r}", types.MessageType.Error
        if command:
            self.say(sentence, kind)
        else:
            self.say_once(sentence, kind)
        return sentence

    def report_server_error(self, error: Exception, source: Any) -> None:
        """pygls's own last resort; handlers have their catch-all, so this is about messages it could not use."""
        _log.warning("%s: %s", getattr(source, "__name__", source), error)

    def trace_message(self, message: Any) -> None:
        """`$/logTrace` while the client set a trace; method names only, no text of the person's files."""
        if self.protocol.trace == types.TraceValue.Off or not hasattr(message, "method"):
            return
        id = getattr(message, "id", None)
        verbose = f"id {id}" if id is not None and self.protocol.trace == types.TraceValue.Verbose else None
        self.log_trace(types.LogTraceParams(message=f"received {message.method}", verbose=verbose))

    def tell_job(self, job: Job, state: str, message: str) -> None:
        """`cudaAgent/job`, to clients that announced it."""
        if self.client.custom("job"):
            fields = {"job": job.id, "kind": job.kind, "uri": job.uri, "kernel": job.kernel, "state": state}
            more = {"percentage": job.percentage, "message": message, "best": job.best}
            self.protocol.notify("cudaAgent/job", {**fields, **more})

    def tell_status(self) -> None:
        """`cudaAgent/status`, to clients that announced it."""
        if self.client.custom("status"):
            status = {"trusted": self.trusted, "engine": self.engine.state, "device": self.settings.device}
            self.protocol.notify("cudaAgent/status", status)

    def refresh_soon(self) -> None:
        """Ask for new lenses. The request is for all files, so several causes within `REFRESH_S` make one."""
        wanted = self.client.refreshes_lenses or (self.client.refreshes_hints and self.settings.inlay_hints)
        if wanted and self._refresh is None:
            self._refresh = asyncio.get_running_loop().call_later(REFRESH_S, self._refresh_now)

    def _refresh_now(self) -> None:
        self._refresh = None
        if self.client.refreshes_lenses:
            self.workspace_code_lens_refresh(None)
        if self.client.refreshes_hints and self.settings.inlay_hints:
            self.workspace_inlay_hint_refresh(None)

    def debug_information(self) -> dict[str, Any]:
        return {
            "version": __version__,
            "python": sys.version.split()[0],
            "pid": os.getpid(),
            "engine": {"state": self.engine.state, "pid": self.engine.pid},
            "client": self.client.name,
            "encoding": self.documents.encoding,
            "trusted": self.trusted,
            "root": str(self.root) if self.root else None,
            "jobs": [{"job": job.id, "kind": job.kind, "kernel": job.kernel} for job in self.jobs.all()],
            "threads": [thread.name for thread in threading.enumerate()],
            "modules": sorted(name for name in sys.modules if "." not in name and not name.startswith("_")),
        }
