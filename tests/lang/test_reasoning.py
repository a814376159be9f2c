"""Reasoning and answer are taken apart, whole or streamed at any border, and no piece of a tag leaks."""

import random

import pytest
from radicel.errors import UnsupportedError
from radicel.reasoning import ReasoningFormat, ReasoningSplitter, reasoning_format, split_reasoning

PLAIN, OPENED = reasoning_format("qwen3"), reasoning_format("deepseek-r1")

CASES = [
    # form, text, reasoning, answer
    (PLAIN, "<think>ab</think>cd", "ab", "cd"),
    (PLAIN, "<think>\nStep 1.\n\nStep 2.\n</think>\n\nIt is 4.\n", "Step 1.\n\nStep 2.", "It is 4.\n"),
    (PLAIN, "\n <think>a</think>b", "a", "b"),
    (PLAIN, "no thoughts", "", "no thoughts"),
    (PLAIN, "  spaced", "", "  spaced"),
    (PLAIN, "<thin", "", "<thin"),
    (PLAIN, "<thinking>", "", "<thinking>"),
    (PLAIN, " ", "", " "),
    (PLAIN, "", "", ""),
    (PLAIN, "<think>never ends </thi", "never ends </thi", ""),
    (PLAIN, "<think>a < b </ c</think>x", "a < b </ c", "x"),
    (PLAIN, "<think></think>x", "", "x"),
    (PLAIN, "<think>\n\n</think>\n\nx", "", "x"),
    (PLAIN, "<think>a</think>the <think> tag</think>", "a", "the <think> tag</think>"),
    (PLAIN, "It writes <think>x</think>", "", "It writes <think>x</think>"),
    (PLAIN, "<think>a</think>", "a", ""),
    (PLAIN, "<think>é😀</think>ü", "é😀", "ü"),
    (OPENED, "ab</think>cd", "ab", "cd"),
    (OPENED, "<think>ab</think>cd", "ab", "cd"),
    (OPENED, "\n ab </think> cd ", "ab", "cd "),
    (OPENED, "only thoughts ", "only thoughts", ""),
    (OPENED, "<th", "<th", ""),
    (reasoning_format("kimi"), "◁think▷a◁/think▷b", "a", "b"),
    (ReasoningFormat("[[", "]]"), "[[a] ]]]b", "a]", "]b"),
]


def stream(form, pieces):
    splitter = ReasoningSplitter(form)
    splits = [splitter.feed(piece) for piece in pieces] + [splitter.finish()]
    return "".join(s.reasoning for s in splits), "".join(s.answer for s in splits)


@pytest.mark.parametrize(("form", "text", "reasoning", "answer"), CASES)
def test_whole_and_at_every_character(form, text, reasoning, answer):
    assert split_reasoning(text, form) == (reasoning, answer)
    assert stream(form, text) == (reasoning, answer)
    for cut in range(len(text) + 1):
        assert stream(form, [text[:cut], text[cut:]]) == (reasoning, answer)


def test_random_pieces_equal_the_whole():
    rng = random.Random(3)
    words = ["<think>", "</think>", "<", "</", "think>", " ", "\n", "a", "b</think"]
    for _ in range(3000):
        text = "".join(rng.choice(words) for _ in range(rng.randint(0, 10)))
        form = rng.choice([PLAIN, OPENED])
        cuts = sorted(rng.randint(0, len(text)) for _ in range(4))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)])]
        assert stream(form, pieces) == split_reasoning(text, form), (text, pieces)


def test_pieces_are_shown_as_soon_as_they_are_certain():
    splitter = ReasoningSplitter(PLAIN)
    shown = [splitter.feed(piece) for piece in ["<th", "ink>", "so", " <", "b", "</think", ">", "\n", "yes", " no"]]
    assert shown == [
        ("", ""), ("", ""), ("so", ""), ("", ""), (" <b", ""),
        ("", ""), ("", ""), ("", ""), ("", "yes"), ("", " no"),
    ]  # fmt: skip


def test_unknown_family():
    with pytest.raises(UnsupportedError, match="model_type='gpt-2'.*'qwen3'"):
        reasoning_format("gpt-2")
