"""Structured LLM programs, written as decorated Python functions.

    from radicel import function, gen, system, user, assistant

    @function
    def ask(s, question):
        s += system("You answer in one word.") + user(question)
        s += assistant(gen("answer", max_tokens=8))

    print(ask.run(question="What colour is the sky?", backend=LocalRuntime())["answer"])

In: nothing; everything public is here. Importing this imports neither torch nor transformers: `LocalRuntime` and the
other heavy names are loaded when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import errors
from .backends.mock import MockBackend, Reply
from .branches import Branches
from .choices import (
    greedy_token_selection,
    joint_likelihood,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from .constraint import Constraint
from .default_backend import flush_cache, get_default_backend, set_default_backend
from .primitives import (
    assistant,
    assistant_begin,
    assistant_end,
    gen,
    gen_int,
    gen_string,
    image,
    role,
    select,
    separate_reasoning,
    special,
    system,
    system_begin,
    system_end,
    user,
    user_begin,
    user_end,
)
from .program import Program, function
from .sampling import SamplingParams
from .state import State

if TYPE_CHECKING:
    from .backends.openai import OpenAIBackend as OpenAIBackend
    from .endpoint import RuntimeEndpoint as RuntimeEndpoint
    from .lazy import Engine as Engine
    from .runtime import LocalRuntime as LocalRuntime
    from .schema.tool_calls import ToolCall as ToolCall
    from .seeing import batch_report as batch_report

    OpenAI = OpenAIBackend
    Runtime = Engine

__all__ = [
    "Branches",
    "Constraint",
    "Engine",
    "LocalRuntime",
    "MockBackend",
    "OpenAI",
    "OpenAIBackend",
    "Program",
    "Reply",
    "Runtime",
    "RuntimeEndpoint",
    "SamplingParams",
    "State",
    "ToolCall",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "batch_report",
    "errors",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "get_default_backend",
    "greedy_token_selection",
    "image",
    "joint_likelihood",
    "role",
    "select",
    "separate_reasoning",
    "set_default_backend",
    "special",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
]

# Name → (module, name there), loaded on first use.
_LAZY = {
    "Engine": ("lazy", "Engine"),
    "LocalRuntime": ("runtime", "LocalRuntime"),
    "OpenAI": ("backends.openai", "OpenAIBackend"),
    "OpenAIBackend": ("backends.openai", "OpenAIBackend"),
    "Runtime": ("lazy", "Engine"),
    "RuntimeEndpoint": ("endpoint", "RuntimeEndpoint"),
    "ToolCall": ("schema.tool_calls", "ToolCall"),
    "batch_report": ("seeing", "batch_report"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module, attribute = _LAZY[name]
    value = getattr(importlib.import_module(f".{module}", __name__), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
