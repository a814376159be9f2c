"""`separate_reasoning`: what a model thinks and what it answers become two variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from ..bindings import Answer, Binding, Cell, Reasoning
from ..reasoning import REASONING_SUFFIX, ReasoningFormat, reasoning_format
from .expr import Expr, Recorder, as_expr

__all__ = ["separate_reasoning"]


class _Separated:
    """A recorder that binds both sides of every generated text, and is the one inside it for all else."""

    def __init__(self, to: Recorder, form: ReasoningFormat) -> None:
        self._to = to
        self._form = form

    def bind(self, name: str, binding: Binding) -> None:
        if isinstance(binding, Cell):
            self._to.bind(name + REASONING_SUFFIX, Reasoning(binding, self._form))
            binding = Answer(binding, self._form)
        self._to.bind(name, binding)

    def append(self, value: object) -> None:
        # The stream's own method, recording here: what an inlined program generates is inside, too.
        cast("Any", type(self._to)).append(self, value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._to, name)


class SeparateReasoning(Expr):
    """Lowers to what is inside; only the variables differ."""

    __slots__ = ("form", "inside")

    def __init__(self, inside: Expr, form: ReasoningFormat) -> None:
        self.inside = inside
        self.form = form

    def record(self, to: Recorder) -> None:
        self.inside.record(cast("Recorder", _Separated(to, self.form)))

    def children(self) -> Sequence[Expr]:
        return (self.inside,)


def separate_reasoning(content: object, model_type: str = "qwen3") -> Expr:
    """The variable of every `gen` inside holds the answer; `<name>_reasoning_content` holds the reasoning.

    The text of the state keeps both, as the model wrote them. `text_iter(name)` streams the answer alone. A
    constrained text is all answer.

    Args:
        content: `gen(...)`, or a sum or list with some.
        model_type: whose tags to look for, such as `"qwen3"` or `"deepseek-r1"`.

    Raises:
        UnsupportedError: a `model_type` that is not known; the message lists those that are.
    """
    return SeparateReasoning(as_expr(content), reasoning_format(model_type))
