"""Thirty prompts, and what transformers makes of them: the yardstick of the parity tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Where the two largest reference logits are closer than this, either token is right, and what follows may differ.
TIE = 1e-4
NEW_TOKENS = 20

_STORY = (
    "The ferry leaves the northern harbour at six in the morning. Its captain, a quiet woman from the islands, checks "
    "the ropes, counts the crates of apples and letters, and writes the weather into a small green book. "
)
_NOTES = "Nota: el señor Ibáñez llegó a las 7:45; la reunión duró veinte minutos. Größe: 3,5 m². 東京は晴れ。 "

SINGLE = [
    "What is the capital of France?",
    "Name three primary colours.",
    "Write one sentence about the sea.",
    "How many days are in a week?",
    "Translate 'good morning' into Spanish.",
    "What is 12 plus 30?",
    "Who wrote Romeo and Juliet?",
    "Give me a word that rhymes with 'light'.",
    "Explain gravity to a child in one sentence.",
    "List two fruits that are red.",
    "def fibonacci(n):\n    # complete this function",
    "Is ice lighter than water? Answer yes or no.",
    "Write a haiku about autumn.",
    "What does HTTP stand for?",
    "Turn this into a question: The train is late.",
]
NON_ASCII = [
    "Wie heißt die Hauptstadt von Österreich?",
    "¿Cuál es la capital de Perú?",
    "日本の首都はどこですか?",
    "Что такое вода?",
    "Write the emoji for a smile 😀 and for a cat 🐈.",
    "Où se trouve la tour Eiffel ? Réponds en français.",
]
CHATS = [
    [("user", "Hello!"), ("assistant", "Hello, how can I help?"), ("user", "Tell me a fact about bees.")],
    [("system", "You answer in one word."), ("user", "What colour is the sky?")],
    [
        ("system", "You are a cook."),
        ("user", "What do I need for an omelette?"),
        ("assistant", "Eggs, butter and salt."),
        ("user", "And for a salad?"),
    ],
    [("user", "My name is Ingrid."), ("assistant", "Nice to meet you, Ingrid."), ("user", "What is my name?")],
    [
        ("user", "Pick a number."),
        ("assistant", "7"),
        ("user", "Double it."),
        ("assistant", "14"),
        ("user", "Add one to it."),
    ],
]
LONG = [
    _STORY * 34 + "\n\nWhat does the captain write into the book?",
    _NOTES * 36 + "\n\n¿A qué hora llegó el señor Ibáñez?",
    "\n".join(f"Item {i}: {i * i} boxes of {'red' if i % 2 else 'blue'} paint." for i in range(1, 110))
    + "\nWhich is last?",
    _STORY * 18 + _NOTES * 18 + "\n\nSummarise the text in one sentence.",
]


def conversations() -> list[list[dict[str, str]]]:
    """The thirty prompts, as messages."""
    turns = [[("user", text)] for text in SINGLE + NON_ASCII] + CHATS + [[("user", text)] for text in LONG]
    return [[{"role": role, "content": content} for role, content in turn] for turn in turns]


@dataclass(frozen=True)
class Expected:
    """What transformers gives for one prompt.

    Attributes:
        prompt_ids: ids of the rendered conversation.
        output_ids: greedy ids, the end token excluded. Where the limit of tokens cuts a character, its first ids are
            left out: a text never ends in half a character, and `token_ids` spell the text.
        ended: whether an end token followed.
        logprobs: of output_ids.
        margins: difference of the two largest logits at each step, the end token's step included.
    """

    messages: list[dict[str, str]]
    prompt_ids: list[int]
    output_ids: list[int]
    ended: bool
    logprobs: list[float]
    margins: list[float]

    def assert_equal(self, output_ids: list[int] | tuple[int, ...]) -> None:
        """Equal ids, or equal up to a step at which the two largest reference logits tie within `TIE`."""
        ours = list(output_ids)
        for i, want in enumerate(self.output_ids):
            if i < len(ours) and ours[i] == want:
                continue
            assert self.margins[i] < TIE, (
                f"step {i} of {self.messages[-1]['content'][:40]!r}: {ours} != {self.output_ids}"
            )
            return
        if len(ours) > len(self.output_ids):
            assert self.margins[-1] < TIE, f"{len(ours)} ids where transformers ends after {len(self.output_ids)}"


class Reference:
    """transformers' own model and generate, in float32."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
        self._known: dict[str, Expected] = {}

    def prompt_ids(self, messages: list[dict[str, str]]) -> list[int]:
        """A conversation as transformers renders and encodes it."""
        ids: list[int] = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        return ids

    def expected(self, messages: list[dict[str, str]]) -> Expected:
        """The greedy continuation of a conversation, computed once."""
        import torch

        key = repr(messages)
        if key not in self._known:
            ids = self.prompt_ids(messages)
            out = self.model.generate(
                torch.tensor([ids], device=self.model.device),
                attention_mask=torch.ones(1, len(ids), dtype=torch.long, device=self.model.device),
                max_new_tokens=NEW_TOKENS,
                do_sample=False,
                output_logits=True,
                return_dict_in_generate=True,
            )
            self._known[key] = _expected(messages, ids, out, self.model.generation_config.eos_token_id, self.tokenizer)
        return self._known[key]


def _expected(
    messages: list[dict[str, str]], ids: list[int], out: Any, end: int | list[int], tokenizer: Any
) -> Expected:
    import torch

    ends = {end} if isinstance(end, int) else set(end)
    new = out.sequences[0, len(ids) :].tolist()
    logits = torch.stack([step[0] for step in out.logits])
    top = logits.topk(2).values
    ended = new[-1] in ends
    kept = new[:-1] if ended else new
    while kept and not ended and tokenizer.decode(kept).endswith("\ufffd"):
        kept = kept[:-1]
    logprobs = logits.log_softmax(-1)
    return Expected(
        messages=messages,
        prompt_ids=list(ids),
        output_ids=kept,
        ended=ended,
        logprobs=[float(logprobs[i, token]) for i, token in enumerate(kept)],
        margins=(top[:, 0] - top[:, 1]).tolist(),
    )
