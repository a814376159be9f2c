"""Tool calls through the runtime, and their formats against what chat templates make of calls already made.

The templates here are our own, of the published ones' way to write a call (Qwen 2.5 and 3, Hermes 2 and 3, Llama 3.1,
Mistral before and since version 11): what such a template renders must be what a model may generate.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from radicel import Constraint, function, gen, role
from radicel.runtime import LocalRuntime
from radicel.runtime.grammar import GrammarCompiler
from radicel.schema.tool_calls import ToolCall

TOOLS: list[dict[str, Any]] = [
    {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "units": {"enum": ["C", "F"]}},
            "required": ["city"],
        },
    },
    {"name": "note-it", "parameters": {"properties": {"lines": {"type": "array", "items": {"type": "string"}}}}},
]
CALLS: list[dict[str, Any]] = [
    {"name": "weather", "arguments": {"city": 'Łódź "Old Town" 客', "days": 3, "units": "C"}},
    {"name": "note-it", "arguments": {"lines": ["a <b> & 'c'", "\\ \n é"]}},
    {"name": "weather", "arguments": {"city": ""}},
]
HERMES = (
    "{% for call in calls %}{{ '' if loop.first else '\\n' }}<tool_call>\n"
    '{"name": "{{ call.name }}", "arguments": {{ call.arguments | tojson }}}\n</tool_call>{% endfor %}'
)
LLAMA3 = '{"name": "{{ calls[0].name }}", "parameters": {{ calls[0].arguments | tojson }}}'
MISTRAL = (
    "[TOOL_CALLS]{{ space }}[{% for call in calls %}{{ call | tojson }}{% if not loop.last %}, {% endif %}{% endfor %}]"
)
MISTRAL11 = "{% for call in calls %}[TOOL_CALLS]{{ call.name }}[ARGS]{{ call.arguments | tojson }}{% endfor %}"
WRITTEN: list[tuple[str, str, list[bytes], int]] = [
    ("qwen", HERMES, [b"<tool_call>", b"</tool_call>"], 3),
    ("hermes", HERMES, [], 3),
    ("llama3", LLAMA3, [b"<|python_tag|>"], 1),
    ("mistral", MISTRAL, [b"[TOOL_CALLS]"], 3),
    ("mistral with a space", MISTRAL, [b"[TOOL_CALLS]"], 3),
    ("mistral11", MISTRAL11, [b"[TOOL_CALLS]", b"[ARGS]"], 3),
]


@pytest.mark.parametrize(("name", "template", "added", "most"), WRITTEN, ids=[row[0] for row in WRITTEN])
def test_what_a_template_writes_may_be_generated(name: str, template: str, added: list[bytes], most: int) -> None:
    special = {257, 258} if "mistral" in name or name == "llama3" else set()  # <tool_call> is an added one, not special
    tokens = [*(bytes([byte]) for byte in range(256)), b"<end>", *added]
    compiler = GrammarCompiler(
        tokens, vocab_size=len(tokens), end_ids={256}, special_ids=special & {*range(len(tokens))}
    )
    calls = CALLS[:most]
    text = rendered(template, calls=calls, space=" " if "space" in name else "")
    made = Constraint.tools(TOOLS)
    matcher = compiler.compile(made).matcher()
    assert all(map(matcher.accept, ids_of(text, {n.decode(): 257 + i for i, n in enumerate(added)}, special)))
    assert matcher.is_complete()
    assert [{"name": c.name, "arguments": c.arguments} for c in made.parse(text)] == calls
    bare = text.replace("[TOOL_CALLS]", "").replace("[ARGS]", "") if special else text  # a text without special tokens
    assert [c.arguments for c in made.parse(bare)] == [c["arguments"] for c in calls]


def rendered(template: str, **given: Any) -> str:
    """As transformers renders: its `tojson` writes what `json.dumps` does, and characters as themselves."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(template).render(**given)


def ids_of(text: str, added: dict[str, int], special: set[int]) -> list[int]:
    ids: list[int] = []
    while text:
        name = next((name for name, i in added.items() if text.startswith(name) and i in special), None)
        ids += list(text[0].encode()) if name is None else [added[name]]
        text = text[1:] if name is None else text[len(name) :]
    return ids


@pytest.fixture(scope="module")
def marked(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose tokenizer has Mistral's marker as a special token."""
    from transformers import AutoTokenizer

    path: Path = tiny.make_tiny_model(tmp_path_factory.mktemp("marked"), "llama")
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.add_special_tokens({"additional_special_tokens": ["[TOOL_CALLS]"]})
    tokenizer.save_pretrained(path)
    return path


@pytest.mark.parametrize("forced_runs", [True, False])
def test_a_program_calls_tools_with_a_special_marker(marked: Path, forced_runs: bool) -> None:
    @function
    def ask(s: Any) -> None:
        s += role("user", "What will it be?") + role("assistant", gen("calls", max_tokens=120, tools=TOOLS[:1], seed=5))
        s += role("tool", "rain") + role("assistant", gen("answer", max_tokens=4))

    draw = random.Random(4)
    with LocalRuntime(marked, device="cpu", kv_tokens=800, forced_runs=forced_runs, check_invariants=True) as rt:
        marker = rt.tokenizer.convert_tokens_to_ids("[TOOL_CALLS]")
        for seed in [draw.randrange(1_000) for _ in range(3)]:
            state = ask.run(backend=rt, seed=seed)
            calls = state["calls"]
            assert calls
            assert all(isinstance(call, ToolCall) and call.name == "weather" for call in calls)
            ids = state.meta("calls").token_ids
            assert ids[0] == marker
            assert marker not in ids[1:]
