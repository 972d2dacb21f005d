"""A language model that runs here, through Hugging Face's transformers: any causal model with a chat template, from a
folder, a GGUF file or the hub's cache. The only file of the agent that imports torch.

Nothing of a model's folder is run but its chat template, which transformers keeps in a sandbox of Jinja's.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuda_agent.agent.models import Limits, Message, Reply, Tool, Usage
from cuda_agent.agent.models.parse import parse
from cuda_agent.agent.models.template import CHATML, Template
from cuda_agent.agent.models.textual import call_schema
from cuda_agent.errors import Cancelled, ContextOverflow, ModelError

if TYPE_CHECKING:
    import llguidance
    import torch

INSTALL = "pip install 'cuda-agent-lsp[llm]'"
ROOM = 8  # a reply may need an eighth of the context, or all its tokens if they are fewer
CHUNK = 256  # tokens of a prompt read at once on the CPU: a cancelled reply ends between two chunks' layers


class Transformers:
    """`where` is a folder, a .gguf file or a hub id; `device` is auto, cpu or cuda:N; `dtype` is auto or torch's name.
    Raises ModelError when a package or the model is missing, or it does not fit in memory."""

    def __init__(self, where: str, device: str = "auto", dtype: str = "auto") -> None:
        folder, gguf = _place(where)
        self.name = f"transformers:{_called(where, folder, gguf)}"
        try:
            with _while_importing(OMP_WAIT_POLICY="PASSIVE", TQDM_DISABLE="1"):
                # llguidance: its absence is said here, not at the first forced call.
                import llguidance  # noqa: F401
                import torch
                import transformers
        except ImportError as error:
            raise ModelError(f"a model that runs here needs {error.name or error}: {INSTALL}.") from error
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        self._device = _device(device)
        self._limits, self._end = Limits(), float("inf")
        with _told(where, self._device):
            self._tokenizer, self._model = _load(folder, gguf, self._device, dtype)
        config = self._model.config.get_text_config()
        self.context = int(getattr(config, "max_position_embeddings", 0) or 0)
        self._template = self._chat(self.name)
        self._stops = self._stop_tokens()
        self._guide: llguidance.LLTokenizer | None = None
        self._cache: tuple[list[int], Any] | None = (
            None  # the tokens of the last turn, and what the layers keep of them
        )
        layers = next(m for m in self._model.modules() if isinstance(m, torch.nn.ModuleList))
        for layer in layers:
            layer.register_forward_pre_hook(self._watch)

    def reply(self, messages: Sequence[Message], tools: Sequence[Tool], limits: Limits) -> Reply:
        self._limits, self._end = limits, time.monotonic() + limits.seconds
        force = limits.force and bool(tools)
        prompt = self._tokens(self._template.prompt(messages, tools, force))
        room = self._room(len(prompt), limits)
        with _told(self.name, self._device):
            new = self._generate(prompt, room, self._constraint(tools, len(prompt)) if force else None)
        ended = bool(new) and new[-1] in self._stops
        text = self._tokenizer.decode(
            new[:-1] if ended else new, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        if force:
            text = self._template.opening + text + (self._template.closing if ended else "")
        parsed = parse(text, tools)
        return Reply(parsed.prose, parsed.calls, Usage(len(prompt), len(new)), parsed.complaint, not ended)

    def close(self) -> None:
        """Gives the memory back."""
        import torch

        self._model = self._tokenizer = self._guide = self._cache = None
        if self._device != "cpu":
            torch.cuda.empty_cache()

    # ------------------------------------------------------------ tokens

    def _tokens(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _room(self, prompt: int, limits: Limits) -> int:
        """How many tokens the reply may have. Raises ContextOverflow."""
        if not self.context:
            return limits.tokens
        left = self.context - prompt
        if left < min(limits.tokens, max(1, self.context // ROOM)):
            raise ContextOverflow(
                f"the conversation has {prompt} tokens and {self.name} takes {self.context}, its reply among them."
            )
        return min(limits.tokens, left)

    def _chat(self, name: str) -> Template:
        tokenizer = self._tokenizer
        if not tokenizer.chat_template:
            if "<|im_start|>" not in tokenizer.get_vocab():
                raise ModelError(f"{name} has no chat template: choose a model that was trained for chat.")
            tokenizer.chat_template = CHATML
        special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}

        def render(conversation: Any, **options: Any) -> str:
            return str(tokenizer.apply_chat_template(conversation, tokenize=False, **options))

        return Template(render, special | set(tokenizer.all_special_tokens))

    def _stop_tokens(self) -> frozenset[int]:
        """What ends a reply. A converted model's configuration may name none, or the wrong one: what the template
        writes behind a reply is right."""
        named = [self._model.generation_config.eos_token_id, self._tokenizer.eos_token_id]
        stops = {token for one in named for token in (one if isinstance(one, list) else [one]) if token is not None}
        behind = self._tokens(self._template.after_reply())
        control = {token for token, what in self._tokenizer.added_tokens_decoder.items() if what.special}
        if behind and behind[0] in control | set(self._tokenizer.all_special_ids):
            stops.add(behind[0])
        return frozenset(stops)

    def _constraint(self, tools: Sequence[Tool], prompt: int) -> _Constraint:
        from llguidance import LLMatcher
        from llguidance.hf import from_tokenizer

        if self._guide is None:
            width = self._model.get_output_embeddings().weight.shape[0]
            self._guide = from_tokenizer(self._tokenizer, n_vocab=width, eos_token=sorted(self._stops))
        spaced = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
        grammar = LLMatcher.grammar_from_json_schema(dict(call_schema(tools)), overrides=spaced)
        return _Constraint(LLMatcher(self._guide, grammar, log_level=0), prompt)

    # ------------------------------------------------------------ generation

    def _watch(self, *_: Any) -> None:
        """Before each layer: a long prompt is cancelled while it is read, too."""
        if self._limits.cancelled():
            raise Cancelled("stopped while the model was answering")
        if time.monotonic() > self._end:
            seconds = f"{self._limits.seconds:.1f}".removesuffix(".0")
            raise ModelError(
                f"{self.name} did not finish its reply within {seconds} s: allow more, or choose a smaller model."
            )

    def _generate(self, prompt: list[int], room: int, constraint: _Constraint | None) -> list[int]:
        import torch

        cache, self._cache = self._kept(prompt), None  # a reply that breaks off leaves a cache that fits nothing
        ids = torch.tensor([prompt], device=self._device)
        out = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            cache=cache,
            max_new_tokens=room,
            eos_token_id=sorted(self._stops) or None,
            pad_token_id=min(self._stops, default=0),
            logits_processor=[constraint] if constraint else [],
            prefill_chunk_size=CHUNK if self._device == "cpu" else None,
        )[0].tolist()
        if cache is not None:
            self._cache = out[: cache.get_seq_length()], cache
        return list(out[len(prompt) :])

    def _kept(self, prompt: list[int]) -> Any:
        """What the layers keep of the last turn, up to where this prompt differs. None: this model's layers keep
        something that cannot be cut back."""
        from transformers import DynamicCache
        from transformers.cache_utils import DynamicLayer

        cache = DynamicCache(config=self._model.config)
        if any(type(layer) is not DynamicLayer for layer in cache.layers) or not cache.layers:
            return None
        if self._cache is None:
            return cache
        tokens, cache = self._cache
        same = next((i for i, (a, b) in enumerate(zip(tokens, prompt, strict=False)) if a != b), len(tokens))
        if (surplus := len(tokens) - min(same, len(prompt) - 1)) > 0:
            cache.crop(-surplus)
        return cache


class _Constraint:
    """A logits processor: no token that a call of the tools could not go on with."""

    def __init__(self, matcher: llguidance.LLMatcher, prompt: int) -> None:
        self._matcher, self._read = matcher, prompt
        self._check()

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        import torch

        new = input_ids[0, self._read :].tolist()
        self._read += len(new)
        if new:
            self._matcher.consume_tokens(new)
        allowed = torch.frombuffer(bytearray(self._matcher.compute_logit_bias()), dtype=torch.uint8)
        self._check()
        return scores.masked_fill(allowed.to(scores.device)[: scores.shape[-1]] == 0, float("-inf"))

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ModelError(f"the model's call cannot be constrained: {self._matcher.get_error().splitlines()[0]}")


# ---------------------------------------------------------------- loading


def _place(where: str) -> tuple[str, str | None]:
    """(folder or hub id, name of the GGUF file in it or None). Raises ModelError for a path that holds no model."""
    path = Path(where).expanduser()
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelError(f"{path} is no model: give its folder, a .gguf file or a hub id.")
        return str(path.parent), path.name
    if path.is_dir():
        if (path / "config.json").is_file():
            return str(path), None
        files = sorted(file.name for file in path.glob("*.gguf"))
        if len(files) == 1:
            return str(path), files[0]
        said = f"holds {len(files)} .gguf files: name one" if files else "holds neither config.json nor a .gguf file"
        raise ModelError(f"{path} {said}.")
    if where.startswith(("/", ".", "~")) or where.count("/") > 1 or "\\" in where or where.endswith(".gguf"):
        raise ModelError(f"there is no model {path}: give a folder, a .gguf file or a hub id.")
    return where, None


def _called(where: str, folder: str, gguf: str | None) -> str:
    """For people and records: no path of this machine."""
    if gguf:
        return gguf.removesuffix(".gguf")
    return Path(folder).resolve().name if Path(where).expanduser().is_dir() else where


def _device(device: str) -> str:
    import torch

    if device == "auto":
        return "cuda:0" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        return device
    number = int(device.partition(":")[2] or 0)
    if not torch.cuda.is_available() or number >= torch.cuda.device_count():
        raise ModelError(f"torch sees no {device} here: set cudaAgent.modelDevice to cpu or auto.")
    return f"cuda:{number}"


def _load(folder: str, gguf: str | None, device: str, dtype: str) -> tuple[Any, Any]:
    """(tokenizer, model)."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

    options: dict[str, Any] = {"trust_remote_code": False}
    if gguf:
        options["gguf_file"] = gguf
        dtype = ("float32" if device == "cpu" else "bfloat16") if dtype == "auto" else dtype
    options["config"] = AutoConfig.from_pretrained(folder, **options)
    tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    if gguf:  # packed weights would want compiled kernels from the hub
        options["quantization_config"] = GgufConfig(dequantize=True)
    wanted = "auto" if dtype == "auto" else getattr(torch, dtype)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=wanted, **options)
    return tokenizer, model.to(device).eval()


@contextlib.contextmanager
def _while_importing(**defaults: str) -> Iterator[None]:
    """Environment variables that libraries read once, when they load: threads that spin while they wait slow each other
    down on a busy machine; progress bars belong in no log. The programs that this process starts see none of it."""
    added = {name: value for name, value in defaults.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


@contextlib.contextmanager
def _told(name: str, device: str) -> Iterator[None]:
    """What torch, transformers and the hub raise, as a ModelError that says what to do."""
    try:
        yield
    except ImportError as error:
        raise ModelError(f"{name} needs a package that is missing: {_first(error)} {INSTALL} brings most.") from error
    except (OSError, ValueError, KeyError, RuntimeError, MemoryError) as error:
        if _out_of_memory(error):
            raise ModelError(
                f"{name} does not fit in the memory of {device}: choose a smaller model, cudaAgent.modelDtype "
                "bfloat16, or a shorter context."
            ) from error
        raise ModelError(_hub(name, error) or f"{name} cannot be used: {_first(error)}") from error


def _out_of_memory(error: Exception) -> bool:
    import torch

    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "not enough memory" in str(error)  # torch's allocator on the CPU


def _hub(name: str, error: Exception) -> str | None:
    """What the hub's client said, from the exceptions that led to this one."""
    from huggingface_hub import constants, errors

    for one in _chain(error):
        if isinstance(one, errors.GatedRepoError):
            return f"{name} wants its terms accepted on the hub, and a token: set HF_TOKEN."
        if isinstance(one, errors.RepositoryNotFoundError):
            return f"there is no model {name} on the hub, or it is private: check the name, or set HF_TOKEN."
        if isinstance(one, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled):
            if constants.is_offline_mode() or os.environ.get("TRANSFORMERS_OFFLINE"):
                return f"{name} is not in the hub's cache here, and HF_HUB_OFFLINE forbids to fetch it."
            return f"{name} is not in the hub's cache here, and the hub cannot be reached: give a folder instead."
        if isinstance(one, errors.HFValidationError):
            return f"{name!r} is neither a folder here nor a hub id such as owner/name."
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _first(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300]
