"""HTML by functions, escaped by construction: text becomes markup only through `el`.

In: a tag's name, what is inside, attributes. Out: `Html`, the only text that is taken as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

__all__ = ["Html", "el", "joined", "style"]


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


_VOID = {"br", "hr", "input", "meta"}


def el(tag: str, /, *inside: str, **attributes: str | int | bool | None) -> Html:
    """An element.

    Args:
        tag: its name.
        inside: children; a plain str is escaped.
        attributes: `class_="x"` is `class="x"`, `data_node="3"` is `data-node="3"`; True stands without a value, None
            and False are left out.
    """
    shown = "".join(_attribute(key, value) for key, value in attributes.items())
    if tag in _VOID:
        return Html(f"<{tag}{shown}>")
    return Html(f"<{tag}{shown}>{joined(inside)}</{tag}>")


def joined(parts: Iterable[str]) -> Html:
    """The parts one after the other; a plain str is escaped."""
    return Html("".join(part if isinstance(part, Html) else escape(part, quote=False) for part in parts))


def style(**properties: str | float) -> str:
    """The value of a `style` attribute: numbers are percentages."""
    shown = {key: value if isinstance(value, str) else f"{value:.4g}%" for key, value in properties.items()}
    return ";".join(f"{key}:{value}" for key, value in shown.items())


def _attribute(key: str, value: str | int | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'
