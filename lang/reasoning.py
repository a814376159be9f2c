"""Takes what a model thinks apart from what it answers: `<think>ab</think>cd` is the reasoning "ab", the answer "cd".

In: the text of a `gen`, whole or in pieces. Out: pieces of reasoning and pieces of answer, never a piece of a tag.

A reasoning block counts only at the beginning of the text (after white space): a tag further on is the answer's own.
White space next to the tags belongs to neither side. Reasoning that never ends leaves the answer empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .errors import UnsupportedError
from .stops import StopMatcher

__all__ = ["REASONING_SUFFIX", "ReasoningFormat", "ReasoningSplitter", "Split", "reasoning_format", "split_reasoning"]

REASONING_SUFFIX = "_reasoning_content"
"""The reasoning of the variable `x` is the variable `x` + this."""


class ReasoningFormat(NamedTuple):
    """How a family of models marks its reasoning.

    Attributes:
        begin: the tag before it.
        end: the tag after it.
        opened: whether the chat template writes the first tag, so that the text begins inside the reasoning.
    """

    begin: str = "<think>"
    end: str = "</think>"
    opened: bool = False


_FORMATS = {
    "deepseek-r1": ReasoningFormat(opened=True),
    "deepseek-v3": ReasoningFormat(),
    "glm45": ReasoningFormat(),
    "kimi": ReasoningFormat("◁think▷", "◁/think▷"),
    "qwen3": ReasoningFormat(),
    "qwen3-thinking": ReasoningFormat(opened=True),
}


class Split(NamedTuple):
    """What a piece of text added to each side."""

    reasoning: str
    answer: str


def reasoning_format(model_type: str) -> ReasoningFormat:
    """The format of a family of models.

    Raises:
        UnsupportedError: a family we do not know; lists those we do.
    """
    try:
        return _FORMATS[model_type.lower()]
    except (KeyError, AttributeError):
        known = ", ".join(map(repr, _FORMATS))
        raise UnsupportedError(f"separate_reasoning(model_type={model_type!r}): known are {known}") from None


def split_reasoning(text: str, form: ReasoningFormat = ReasoningFormat()) -> Split:  # noqa: B008  (immutable)
    """The reasoning and the answer of a whole text."""
    splitter = ReasoningSplitter(form)
    return _joined([splitter.feed(text), splitter.finish()])


class ReasoningSplitter:
    """Splits one text that comes in pieces; the pieces' borders change nothing.

    Args:
        form: how the reasoning is marked.
    """

    def __init__(self, form: ReasoningFormat = ReasoningFormat()) -> None:  # noqa: B008  (immutable)
        self._form = form
        self._stage = self._before
        self._held = ""
        self._end = StopMatcher([form.end])
        self._fed = 0

    def feed(self, text: str) -> Split:
        """Takes the next piece; returns what is now certain of each side."""
        return self._stage(text)

    def finish(self) -> Split:
        """No more text comes: what was held back is settled."""
        held, self._held = self._held, ""
        if self._stage == self._before:
            # White space, then at most the beginning of a tag, that no reasoning followed.
            return Split(held.lstrip(), "") if self._form.opened else Split("", held)
        if self._stage == self._reasoning:
            return Split((held + self._end.finish()).rstrip(), "")
        return Split("", "")

    def _before(self, text: str) -> Split:
        """Until it is known whether the text begins with the first tag."""
        self._held += text
        begun, tag = self._held.lstrip(), self._form.begin
        if tag.startswith(begun) and begun != tag:
            return Split("", "")
        rest, self._held = self._held, ""
        if begun.startswith(tag):
            self._stage, rest = self._opening, begun[len(tag) :]
        else:
            self._stage = self._opening if self._form.opened else self._answer
        return self._stage(rest)

    def _opening(self, text: str) -> Split:
        """White space after the first tag."""
        text = text.lstrip()
        if not text:
            return Split("", "")
        self._stage = self._reasoning
        return self._reasoning(text)

    def _reasoning(self, text: str) -> Split:
        """Until the last tag; white space is held back, for it is dropped before the tag."""
        self._fed += len(text)
        safe = self._held + self._end.feed(text)
        shown = safe.rstrip()
        self._held = safe[len(shown) :]
        if self._end.matched is None:
            return Split(shown, "")
        over = self._fed - self._end.num_chars - len(self._form.end)
        self._stage, self._held = self._gap, ""
        return _joined([Split(shown, ""), self._gap(text[len(text) - over :])])

    def _gap(self, text: str) -> Split:
        """White space after the last tag."""
        text = text.lstrip()
        if text:
            self._stage = self._answer
        return Split("", text)

    def _answer(self, text: str) -> Split:
        return Split("", text)


def _joined(parts: Sequence[Split]) -> Split:
    return Split("".join(p.reasoning for p in parts), "".join(p.answer for p in parts))
