"""The hash that names a text: the same in a record, in evidence and in a candidate's id."""

from __future__ import annotations

import hashlib


def sha256(text: str) -> str:
    """Of the bytes in the file: what was not UTF-8 when it was read goes back to what it was."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
