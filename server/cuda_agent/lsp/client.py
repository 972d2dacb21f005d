"""What the connected editor can do. Every answer has a fallback: a client without a capability must still work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lsprotocol import types

from cuda_agent.source.documents import Encoding


def _dig(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
        if value is None:
            return None
    return value


@dataclass(frozen=True)
class Client:
    """One view on `InitializeParams`."""

    capabilities: types.ClientCapabilities = field(default_factory=types.ClientCapabilities)
    options: Mapping[str, Any] = field(default_factory=dict)  # initializationOptions
    name: str = "unknown editor"

    @classmethod
    def of(cls, params: types.InitializeParams) -> Client:
        options = params.initialization_options
        name = params.client_info.name if params.client_info else "unknown editor"
        return cls(params.capabilities, options if isinstance(options, Mapping) else {}, name)

    def _has(self, *names: str) -> bool:
        return bool(_dig(self.capabilities, *names))

    @property
    def encoding(self) -> Encoding:
        """UTF-8 when the client offers it (our offsets are bytes), else UTF-16, which every client speaks."""
        offered = _dig(self.capabilities, "general", "position_encodings") or ()
        return "utf-8" if "utf-8" in [str(getattr(kind, "value", kind)) for kind in offered] else "utf-16"

    @property
    def applies_edits(self) -> bool:
        return self._has("workspace", "apply_edit")

    @property
    def document_changes(self) -> bool:
        return self._has("workspace", "workspace_edit", "document_changes")

    @property
    def progress(self) -> bool:
        return self._has("window", "work_done_progress")

    @property
    def refreshes_lenses(self) -> bool:
        return self._has("workspace", "code_lens", "refresh_support")

    @property
    def refreshes_hints(self) -> bool:
        return self._has("workspace", "inlay_hint", "refresh_support")

    @property
    def action_literals(self) -> bool:
        return self._has("text_document", "code_action", "code_action_literal_support")

    @property
    def disabled_actions(self) -> bool:
        return self._has("text_document", "code_action", "disabled_support")

    @property
    def action_tags(self) -> bool:
        """Whether it knows the tag for edits that a model wrote."""
        known = _dig(self.capabilities, "text_document", "code_action", "tag_support", "value_set") or ()
        return types.CodeActionTag.LlmGenerated in known

    @property
    def markdown(self) -> bool:
        formats = _dig(self.capabilities, "text_document", "hover", "content_format")
        return formats is None or types.MarkupKind.Markdown in formats

    @property
    def shows_documents(self) -> bool:
        return self._has("window", "show_document", "support")

    @property
    def configuration(self) -> bool:
        return self._has("workspace", "configuration")

    @property
    def registers_configuration(self) -> bool:
        return self._has("workspace", "did_change_configuration", "dynamic_registration")

    @property
    def text_document_content(self) -> bool:
        return self._has("workspace", "text_document_content")

    def custom(self, name: str) -> bool:
        """Whether the client announced a request or notification of ours in `experimental.cudaAgent`."""
        return bool(_dig(self.capabilities, "experimental", "cudaAgent", name))

    @property
    def says_trust(self) -> bool:
        """VS Code has workspace trust of its own and tells us; for others the server asks and remembers."""
        return isinstance(self.options.get("trusted"), bool)
