"""Literal text, and text whose special tokens are meant: `special("<fim_mid>")`."""

from __future__ import annotations

from typing_extensions import override

from ..ir import Op
from ..prompt import Text
from .expr import Expr, Recorder, checked_text

__all__ = ["Literal", "special"]


class Literal(Expr):
    """Text given by the program. Lowers to one TEXT node; empty text to none."""

    __slots__ = ("text",)

    def __init__(self, text: str, special: bool = False) -> None:
        self.text = Text(text, special)

    @override
    def record(self, to: Recorder) -> None:
        if self.text.text:
            to.add(Op.TEXT, self.text)

    def __repr__(self) -> str:
        return repr(self.text.text)


def special(text: str) -> Expr:
    """Text in which the spelling of a special token means that token.

    Text given by a program is otherwise only text: `"<|im_end|>"` in an argument never ends a turn.

    Args:
        text: the literal, such as `"<fim_mid>"`.

    Raises:
        TypeError: `text` is not a string.
    """
    if not isinstance(text, str):
        raise TypeError(f"special() takes a str, not a {type(text).__name__}")
    return Literal(checked_text(text), special=True)
