"""Constraints in the words of servers that take more than the OpenAI protocol's JSON schemas.

In: a constraint; which server. Out: what stands in the call's body beside the protocol's own parameters; nothing where
the protocol has words for it, or the server is not known to have any.

vLLM takes `structured_outputs` (since 0.12), SGLang `regex`, `ebnf` and, on its completions endpoint, `json_schema`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .conform import plain_pattern, plain_schema

if TYPE_CHECKING:
    from ..constraint import Constraint

__all__ = ["SERVERS", "guided"]


def _vllm(form: str, content: Any) -> dict[str, Any]:
    return {"structured_outputs": {{"choices": "choice"}.get(form, form): content}}


def _sglang(form: str, content: Any) -> dict[str, Any]:
    if form == "choices":
        return {"regex": "|".join(f"({re.escape(option)})" for option in content)}
    if form == "json":
        return {"json_schema": json.dumps(content)}
    return {{"grammar": "ebnf"}.get(form, form): content}


SERVERS: dict[str, Callable[[str, Any], dict[str, Any]]] = {"vllm": _vllm, "sglang": _sglang}
"""Server → its words for a constraint of a form (`"regex"`, `"grammar"`, `"choices"`, `"json"`) and its content."""


def guided(constraint: Constraint | None, server: str | None, *, chat: bool) -> dict[str, Any]:
    """The constraint in the server's own words; empty where the protocol's response format says it, or nothing can."""
    if constraint is None or server is None or constraint.wraps:
        return {}
    form = constraint.form
    if chat and (form in ("json", "choices") or constraint.kind == "dtype"):
        return {}  # a JSON schema says it
    if form == "json":
        return SERVERS[server](form, plain_schema(constraint))
    if form == "choices":
        return SERVERS[server](form, list(constraint.options))
    if form == "regex":
        return SERVERS[server](form, plain_pattern(constraint))
    return SERVERS[server](form, constraint.text) if form == "grammar" else {}
