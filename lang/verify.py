"""What every node must be like: a table of rules with their reasons, run where nodes are built.

In: a node that was just built. Out: nothing, or a `ProgramError` that names the rule and the node.

These rules hold by construction. Breaking one is a mistake in Radicel or in a primitive, never in a user's program
(whose mistakes are refused earlier, with their own errors), so they are off unless `RADICEL_VERIFY=1` or `enable`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from .errors import ProgramError
from .ir import Branch, GenCall, Node, Op, SelectCall, chain, open_role
from .prompt import Text
from .template import Template

__all__ = ["RULES", "Rule", "check", "enable"]


@dataclass(frozen=True)
class Rule:
    """A property of one node.

    Attributes:
        name: for the message.
        reason: why it must hold.
        holds: whether it does; it sees the node and, through its edges, everything before it.
    """

    name: str
    reason: str
    holds: Callable[[Node], bool]


_PAYLOADS: dict[Op, Callable[[object], bool]] = {
    Op.TEXT: lambda p: (isinstance(p, Text) and p.text != "") or (isinstance(p, Template) and len(p.pieces) > 0),
    Op.ARGUMENT: lambda p: isinstance(p, str) and p != "",
    Op.TURN_BEGIN: lambda p: isinstance(p, str) and p != "",
    Op.TURN_END: lambda p: p is None,
    Op.GEN: lambda p: isinstance(p, GenCall) and p.name != "",
    Op.SELECT: lambda p: isinstance(p, SelectCall) and len(p.choices) > 0,
    Op.BRANCH: lambda p: isinstance(p, Branch) and 0 <= p.index < p.size,
    Op.JOIN: lambda p: p in ("gather_variable", "first"),
    Op.APPEND: lambda p: isinstance(p, tuple) and all(n.op is Op.BRANCH for n in p),
}

RULES: tuple[Rule, ...] = (
    Rule(
        "the payload belongs to the op",
        "every reader of a node takes the payload's type from its op",
        lambda node: _PAYLOADS[node.op](node.payload),
    ),
    Rule(
        "a turn begins outside a turn",
        "chat templates have no turn inside a turn",
        lambda node: node.op is not Op.TURN_BEGIN or open_role(node.prefix) is None,
    ),
    Rule(
        "a turn ends inside a turn",
        "an end without a begin has no role",
        lambda node: node.op is not Op.TURN_END or open_role(node.prefix) is not None,
    ),
    Rule(
        "only joins and texts with values have data edges",
        "the text of every other node is known when it is recorded",
        lambda node: not node.data or node.op in (Op.JOIN, Op.APPEND, Op.TEXT),
    ),
    Rule(
        "a text needs what makes the values in it",
        "its text is not known before they are",
        lambda node: (
            node.op is not Op.TEXT or node.data == (node.payload.nodes if isinstance(node.payload, Template) else ())
        ),
    ),
    Rule(
        "a value in a text comes from a node that makes one",
        "every other node has no value",
        lambda node: node.op is not Op.TEXT or all(n.op.generates or n.op in (Op.ARGUMENT, Op.JOIN) for n in node.data),
    ),
    Rule(
        "an argument stands alone",
        "it belongs to no stream: the caller gives it",
        lambda node: node.op is not Op.ARGUMENT or node.prefix is None,
    ),
    Rule(
        "joined branches hang on the stream that joins them",
        "a branch of another program has another backend and another life",
        lambda node: node.op not in (Op.JOIN, Op.APPEND) or all(_shares_root(node, end) for end in node.data),
    ),
    Rule(
        "an append knows where each branch starts",
        "the text before the fork would be there twice",
        lambda node: (
            node.op is not Op.APPEND
            or (
                len(node.payload) == len(node.data)
                and all(start in chain(end) for end, start in zip(node.data, node.payload))
            )
        ),
    ),
    Rule(
        "an append keeps turns whole",
        "a branch that leaves a turn open or closes its parent's would break the turns after it",
        lambda node: node.op is not Op.APPEND or all(open_role(end) == open_role(node.prefix) for end in node.data),
    ),
)

_enabled = os.environ.get("RADICEL_VERIFY", "") not in ("", "0")


def enable(on: bool = True) -> bool:
    """Switches the checks on or off for the process; returns what it was."""
    global _enabled
    was, _enabled = _enabled, on
    return was


def check(node: Node) -> Node:
    """The node, checked against every rule while the checks are on.

    Raises:
        ProgramError: a rule does not hold.
    """
    if _enabled:
        for rule in RULES:
            if not rule.holds(node):
                raise ProgramError(f"{node} at {node.site}: {rule.name} ({rule.reason})")
    return node


def _shares_root(node: Node, end: Node) -> bool:
    """Whether the branch ending at `end` started from a node of the stream that `node` continues."""
    ends = chain(end)
    if node.prefix is None:
        return ends[0].op is Op.BRANCH
    mine = set(chain(node.prefix))
    return ends[0].op is Op.BRANCH or any(n in mine for n in ends)
