"""The recording of a program: immutable nodes, and how to walk and print them.

In: what a body appends to its state, lowered by `primitives/` to the ops below.
Out: `Node`s, a DAG with two kinds of edge; `prompt_of` turns the walk to a node into a `Prompt`.

    prefix edge    this node continues that text: a stream is a chain of them, a fork is several children
    data edge      this node needs those nodes' text or values: a join points back at the ends of its branches

    text  "Hello "                       literal text
    text  "Hello " {name}                text with values in it, of a trace; its data edges lead to what makes them
    argument topic                       in a trace: an argument that was not given
    begin user, end                      a role turn
    gen x, select y                      generating nodes: a model writes their text
    branch 0 of 2                        the start of a branch; continues the node at which the fork stands
    join gather_variable                 branches come back as lists; adds no text
    join first                           continues the branch that ended first
    append                               adds the text that the branches wrote since the fork, in order
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from .choices import ChoicesMethod
from .constraint import Constraint
from .prompt import Generated, Part, Prompt, Text, TurnBegin, TurnEnd
from .sampling import SamplingParams
from .template import Template

__all__ = [
    "Branch",
    "GenCall",
    "Node",
    "Op",
    "SelectCall",
    "Site",
    "chain",
    "expand",
    "format_nodes",
    "format_stream",
    "frontier",
    "open_role",
    "parts_of",
    "prompt_of",
    "since",
    "site_of_caller",
]


class Op(enum.Enum):
    """What a node does. The comment is the type of its payload."""

    TEXT = "text"  # Text; a Template where the text has values in it that are not known yet
    ARGUMENT = "argument"  # str, its name
    TURN_BEGIN = "begin"  # str, the role
    TURN_END = "end"  # None
    GEN = "gen"  # GenCall
    SELECT = "select"  # SelectCall
    BRANCH = "branch"  # Branch
    JOIN = "join"  # str, the mode: "gather_variable" or "first"
    APPEND = "append"  # tuple[Node, ...], the BRANCH nodes at which the text of `data` starts

    def __init__(self, word: str) -> None:
        self.generates: bool = word in ("gen", "select")
        """Whether a model writes the node's text."""


@dataclass(frozen=True)
class Site:
    """Where in the user's code a node was recorded, and the variable it makes."""

    file: str
    line: int
    variable: str | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f" ({self.variable!r})" if self.variable else "")


@dataclass(frozen=True)
class GenCall:
    """What a `gen` asks for, defaults of call and program merged in."""

    name: str
    sampling: SamplingParams
    constraint: Constraint | None = None

    def __str__(self) -> str:
        said = "".join(f" {key}={value!r}" for key, value in self.sampling.said().items())
        return f"{self.name}{said}" + (f" {self.constraint.kind}" if self.constraint is not None else "")


@dataclass(frozen=True)
class SelectCall:
    """What a `select` asks for. `sampling` holds what a request needs beside: priority, timeout, seed."""

    name: str
    choices: tuple[str, ...]
    method: ChoicesMethod
    temperature: float
    sampling: SamplingParams

    def __str__(self) -> str:
        return f"{self.name} of {list(self.choices)!r} by {self.method!r}"


@dataclass(frozen=True)
class Branch:
    """Which branch of its fork a stream is."""

    index: int
    size: int

    def __str__(self) -> str:
        return f"{self.index} of {self.size}"


@dataclass(frozen=True, eq=False)
class Node:
    """One step of a program. Two nodes are equal only when they are the same one.

    Attributes:
        op: what it does.
        payload: what it does it with; its type belongs to the op.
        prefix: the node whose text this one continues; None at the start of a stream.
        data: nodes whose text or values it needs.
        site: where it was recorded.
    """

    op: Op
    payload: Any = None
    prefix: Node | None = None
    data: tuple[Node, ...] = ()
    site: Site | None = None

    def __str__(self) -> str:
        if isinstance(self.payload, Template):
            return f"text {self.payload}"
        if isinstance(self.payload, Text):
            text = repr(self.payload.text)
            return f"text special({text})" if self.payload.special else f"text {text}"
        if self.op is Op.APPEND or self.payload is None:
            return str(self.op.value)
        return f"{self.op.value} {self.payload}"

    __repr__ = __str__  # the dataclass's own would print the whole chain


def chain(node: Node | None) -> list[Node]:
    """The nodes from the start of the stream to `node`, along prefix edges."""
    nodes = []
    while node is not None:
        nodes.append(node)
        node = node.prefix
    nodes.reverse()
    return nodes


def since(tip: Node, start: Node) -> list[Node]:
    """The nodes after `start` up to `tip`, along prefix edges."""
    nodes = []
    node: Node | None = tip
    while node is not None and node is not start:
        nodes.append(node)
        node = node.prefix
    nodes.reverse()
    return nodes


def frontier(tip: Node | None, stop: Node | None = None) -> list[Node]:
    """The generating nodes that the text up to `tip` waits for: when they have their text, all before them have.

    Args:
        tip: the end of the text, itself included.
        stop: a node at which to end the walk; its text counts as known.
    """
    found: list[Node] = []
    node = tip
    while node is not None and node is not stop:
        if node.op.generates:
            found.append(node)
            break
        if node.op is Op.APPEND:
            for end, start in zip(node.data, node.payload):
                found.extend(frontier(end, start))
        elif node.op is Op.TEXT and node.data:
            for needed in node.data:
                found.extend(frontier(needed))
        node = node.prefix
    return found


def open_role(tip: Node | None) -> str | None:
    """The role of the turn that is open after `tip`, or None."""
    node = tip
    while node is not None:
        if node.op is Op.TURN_BEGIN:
            return str(node.payload)
        if node.op is Op.TURN_END:
            return None
        node = node.prefix
    return None


def prompt_of(tip: Node | None, written: Callable[[Node], Generated]) -> Prompt:
    """The prompt that the stream up to and including `tip` makes; of a trace, with a Template in the place of a Text
    that has values in it (`trace.py` fills these).

    Args:
        tip: the last node; None for an empty prompt.
        written: the text of a generating node; called only for those on the way, which must have their text.
    """
    parts: list[Part] = []
    for node in chain(tip):
        if node.op is Op.TEXT:  # nearly all nodes: worth not asking further
            parts.append(node.payload)
        elif node.op is not Op.BRANCH:
            parts.extend(parts_of(node, written))
    return tuple(parts)


def expand(node: Node) -> Iterator[Node]:
    """The node itself; for an APPEND, the nodes whose text it adds."""
    if node.op is not Op.APPEND:
        yield node
        return
    for end, start in zip(node.data, node.payload):
        for inner in since(end, start):
            yield from expand(inner)


def parts_of(node: Node, written: Callable[[Node], Generated]) -> Iterator[Part]:
    """What the node adds to a prompt (see `prompt_of`)."""
    for step in expand(node):
        if step.op is Op.TEXT:
            text: Text = step.payload
            yield text
        elif step.op.generates:
            yield written(step)
        elif step.op is Op.TURN_BEGIN:
            yield TurnBegin(step.payload)
        elif step.op is Op.TURN_END:
            yield TurnEnd()


def format_stream(tip: Node | None) -> str:
    """Every node that `tip` leads back to, one a line, numbered in an order in which each follows what it needs."""
    numbers: dict[Node, int] = {}

    def visit(node: Node) -> None:
        for step in chain(node):
            if step in numbers:
                continue
            for needed in step.data:
                visit(needed)
            numbers[step] = len(numbers)

    if tip is not None:
        visit(tip)
    return format_nodes(numbers)


def format_nodes(nodes: Iterable[Node]) -> str:
    """The nodes, one a line, numbered; each stands after those that its edges lead to."""
    numbers: dict[Node, int] = {}
    lines: list[str] = []
    for node in nodes:
        after = f" after %{numbers[node.prefix]}" if node.prefix is not None else ""
        of = " of " + " ".join(f"%{numbers[n]}" for n in node.data) if node.data else ""
        lines.append(f"%{len(numbers)} {node}{after}{of}")
        numbers[node] = len(numbers)
    return "\n".join(lines)


def site_of_caller(variable: str | None = None) -> Site | None:
    """The innermost line outside Radicel that led here."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if not (module == "radicel" or module == "contextlib" or module.startswith("radicel.")):
            return Site(frame.f_code.co_filename, frame.f_lineno, variable)
        frame = frame.f_back
    return None
