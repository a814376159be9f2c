"""What a trace found: the nodes a program will record, where it stopped, and what is wrong with it.

In: nodes and notes of the tracer. Out: `Trace`, for people to print, for checks, and for `lower.py` to plan with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from . import checks
from .ir import Node, Op, Site, format_nodes, prompt_of
from .problems import Problem
from .prompt import Generated, Part, Prompt, Text
from .template import Template, Value

if TYPE_CHECKING:
    from .backend import Backend

__all__ = ["OpenEnd", "Trace", "filled_prompt", "text_pieces"]


@dataclass(frozen=True)
class OpenEnd:
    """Where a trace ended before the program did: what follows depends on a value that only a run has.

    Attributes:
        file: of the program's line.
        line: the line that looked inside the value.
        variable: what the program calls the value, with the attribute or item; None where that is not known.
        reason: what the line does.
        program: whose body it is; a program that is started inside another one has a trace of its own.
    """

    file: str
    line: int
    variable: str | None
    reason: str
    program: str

    def __str__(self) -> str:
        value = f" {self.variable!r}" if self.variable else ""
        return f"open end of {self.program}{value} at {self.file}:{self.line}: {self.reason}"


@dataclass(eq=False)
class Trace:
    """What a program asks for, as far as that can be told before it runs.

    Attributes:
        program: its name.
        nodes: what it records, in the order of recording, with prefix edges and data edges; programs that it starts
            are among them, as streams of their own.
        opens: where it ended before its program did; empty where everything was traced.
        tip: the last node of the program's own stream.
        ret_value: what its body returned; None where the trace ended before.
        taken: the choices that this arm is the trace of: select node → choice.
        arms: with `arms=…`, the traces of the arms; `nodes` and `opens` are then those of all of them, and nodes
            before a decision are the same ones in each arm.
        found: problems that showed while it was traced.

    A trace assumes that every call of a model succeeds, and takes the first branch for the one that a
    `join("first")` goes on from: the node's data edges lead to them all.
    """

    program: str
    nodes: Sequence[Node]
    opens: Sequence[OpenEnd] = ()
    tip: Node | None = None
    ret_value: Any = None
    taken: Sequence[tuple[Node, str]] = ()
    arms: Sequence[Trace] = ()
    found: Sequence[Problem] = field(default=(), repr=False)

    @property
    def stream_nodes(self) -> Sequence[Node]:
        """`nodes`."""
        return self.nodes

    @property
    def generating(self) -> list[Node]:
        """The nodes that a model writes."""
        return [node for node in self.nodes if node.op.generates]

    @property
    def arguments(self) -> list[str]:
        """The arguments that were not given and stand in some text."""
        return [node.payload for node in self.nodes if node.op is Op.ARGUMENT]

    @cached_property
    def problems(self) -> list[Problem]:
        """What is wrong with the program, as far as that can be told without a backend."""
        return self.check()

    def check(self, backend: Backend | None = None) -> list[Problem]:
        """What is wrong with the program, errors first. Asks no model.

        Args:
            backend: whose tokenizer and context to count with; without one, bytes are counted and what depends on
                tokens is a warning.
        """
        found = [*self.found, *checks.problems_of(self.nodes, backend)]
        unique = dict.fromkeys(found)
        return sorted(unique, key=lambda problem: problem.severity != "error")

    def prompt(self, node: Node, written: Callable[[Node], Generated], value_of: Callable[[Value], Any]) -> Prompt:
        """The prompt of a generating node, where the values before it are known; see `filled_prompt`."""
        return filled_prompt(node.prefix, written, value_of)

    def __str__(self) -> str:
        lines = [f"trace of {self.program}", *format_nodes(self.nodes).splitlines()]
        lines += [f"{arm.taken_text}: {len(arm.nodes)} nodes" for arm in self.arms]
        lines += [str(end) for end in self.opens]
        lines += [str(problem) for problem in self.problems]
        return "\n".join(lines)

    @property
    def taken_text(self) -> str:
        """The choices that this arm is the trace of, for people."""
        return "arm " + ", ".join(f"{node.payload.name}={choice!r}" for node, choice in self.taken)

    def __repr__(self) -> str:
        return f"<Trace of {self.program}: {len(self.nodes)} nodes, {len(self.opens)} open ends>"


def text_pieces(node: Node) -> Iterator[Text | Node]:
    """What a TEXT node is made of: text, and for each value in it the node that makes the value."""
    payload = node.payload
    if isinstance(payload, Text):
        yield payload
        return
    for piece in payload.pieces:
        if isinstance(piece, str):
            yield Text(piece, payload.special)
        else:
            yield from (value.node for value in piece.values())


def filled_prompt(tip: Node | None, written: Callable[[Node], Generated], value_of: Callable[[Value], Any]) -> Prompt:
    """The prompt up to and including `tip`, as a run makes it, where the values are known.

    Args:
        tip: the last node; None for an empty prompt.
        written: the text of a generating node on the way.
        value_of: the value of a `Value`'s variable at its node (its text, where `written` is set).
    """

    def part(found: Any) -> Part | None:
        if not isinstance(found, Template):
            return found  # type: ignore[no-any-return]
        text = found.text(value_of)
        return Text(text, found.special) if text else None

    parts = (part(found) for found in prompt_of(tip, written))
    return tuple(found for found in parts if found is not None)


def open_end(site: Site, variable: str | None, reason: str, program: str) -> OpenEnd:
    """The open end at a place in the program."""
    return OpenEnd(site.file, site.line, variable, reason, program)
