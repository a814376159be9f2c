"""Nodes as text, for the normal form: ordinary patterns as patterns, the rest as JSON.

In: a node without anchors. Out: text that reads back to the same node; an ordinary pattern is spelled `^(?:…)$`, so
that readers other than our own understand it.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from typing import Any

from .regex_ast import Alt, And, Node, Not, Repeat, Seq, alt, both, is_plain, negation, repeat, seq, write
from .regex_parse import RegexParser

__all__ = ["is_ordinary", "read_node", "spell_node"]

_MARK = "\ue000"
_MOST_KNOWN = 2_048
_CODE = re.compile(r"\\x\{([0-9a-f]+)\}")
_known: OrderedDict[str, Node] = OrderedDict()


def spell_node(node: Node) -> str:
    """The node as text."""
    text = f"^(?:{write(node, engine=True)})$" if is_plain(node) else _MARK + json.dumps(_data(node))
    _remember(text, node)
    return text


def is_ordinary(text: str) -> bool:
    """Whether a node's text is a pattern that others read, too."""
    return not text.startswith(_MARK)


def read_node(text: str) -> Node:
    """The node that `spell_node` wrote."""
    node = _known.get(text)
    if node is None:
        node = _node(json.loads(text[1:])) if text.startswith(_MARK) else _ordinary(text[4:-2])
        _remember(text, node)
    return node


def _remember(text: str, node: Node) -> None:
    _known[text] = node
    while len(_known) > _MOST_KNOWN:
        _known.popitem(last=False)


def _ordinary(text: str) -> Node:
    return RegexParser(ecma=False).parse(_CODE.sub(lambda match: f"\\U{int(match[1], 16):08x}", text))


def _data(node: Node) -> Any:
    if is_plain(node):
        return write(node, engine=True)
    if isinstance(node, Seq):
        return {"seq": list(map(_data, node.items))}
    if isinstance(node, Alt):
        return {"alt": list(map(_data, node.options))}
    if isinstance(node, And):
        return {"and": list(map(_data, node.parts))}
    if isinstance(node, Not):
        return {"not": _data(node.part)}
    assert isinstance(node, Repeat)
    return {"repeat": [_data(node.item), node.low, node.high]}


def _node(data: Any) -> Node:
    if isinstance(data, str):
        return _ordinary(data)
    ((kind, value),) = data.items()
    if kind == "not":
        return negation(_node(value))
    if kind == "repeat":
        return repeat(_node(value[0]), value[1], value[2])
    parts = list(map(_node, value))
    return {"seq": seq, "alt": alt, "and": both}[kind](*parts)
