"""Runs a program's body on symbolic values: the same recording as a run, without a backend.

In: a program and its arguments, some or all. Out: a `Trace`.

The body writes to a stream as it does in a run (`stream.py`), so every primitive is traced by its own rule. Three
things differ: values are symbols (`var.py`), text with symbols in it becomes a TEXT node with data edges, and a program
that the body calls is traced here and now.

`traced.py` has the streams; here is what those of one trace share, and the arms of its branches.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, cast

from . import notes
from .bindings import Cell
from .errors import ProgramError, UnknownVariableError
from .executor import current
from .frames import user_site
from .ir import GenCall, Node, Op, SelectCall
from .marks import DamagedMark, Marks
from .state import State
from .stream import Defaults
from .template import Piece, Template, Value
from .trace import OpenEnd, Trace
from .traced import BLIND, OpenEndReached, TraceExecutor, TraceStream
from .var import Arg, Var, names_of
from .watch import is_watchable

if TYPE_CHECKING:
    from .program import Program

__all__ = ["trace_call"]


def trace_call(program: Program, args: Sequence[Any], kwargs: Mapping[str, Any], *, arms: int = 1) -> Trace:
    """The trace of a call; see `Program.trace`.

    Args:
        program: the program.
        args: its arguments by position.
        kwargs: its arguments by name, and sampling parameters; `sampling` as in `run`.
        arms: how many ways at most to trace where the body branches on a `select`.
    """
    done: list[tuple[Tracer, TraceExecutor, State]] = []
    waiting: list[tuple[dict[int, str], list[Node]]] = [({}, [])]
    while waiting:
        choices, replay = waiting.pop()
        tracer = Tracer(choices, replay, arms - len(done) - len(waiting))
        try:
            executor, state = tracer.run(program, tuple(args), dict(kwargs))
        except _Arms as arm:
            waiting += [({**choices, arm.index: choice}, tracer.nodes) for choice in reversed(arm.choices)]
        else:
            done.append((tracer, executor, state))
    traces = [_made(program, *one) for one in done]
    return traces[0] if len(traces) == 1 and not traces[0].taken else _merged(program, traces)


class _Arms(BaseException):
    """The body branches on a select whose choices can all be traced."""

    def __init__(self, index: int, choices: tuple[str, ...]) -> None:
        self.index = index
        self.choices = choices


class Tracer:
    """What the streams of one trace share.

    Args:
        choices: the number of a select node → the choice that this trace takes it for.
        replay: nodes that an earlier trace made up to a decision; equal ones are taken from there.
        arms: how many arms may still be traced, this one included.

    Attributes:
        marks: those of its values.
        nodes: in the order of recording.
        opens: where bodies ended.
        cells: of all its generating nodes.
        notes: for the checks.
    """

    def __init__(self, choices: Mapping[int, str], replay: Sequence[Node], arms: int) -> None:
        self.marks = Marks()
        self.nodes: list[Node] = []
        self.opens: list[OpenEnd] = []
        self.notes = notes.Notes()
        self.choices = choices
        self.cells: dict[Node, Cell] = {}
        self.undecided: _Arms | None = None
        self._replay = replay
        self._arms = arms

    def run(
        self, program: Program, args: tuple[Any, ...], kwargs: dict[str, Any], forgiving: bool = False
    ) -> tuple[TraceExecutor, State]:
        """Runs the body. Raises what the body raises, and `_Arms`."""
        call, body = program._prepare(args, kwargs, kwargs.pop("sampling", None), self.argument)
        executor = TraceExecutor(self, program.name)
        executor.forgiving = forgiving
        state = State(TraceStream(executor, Defaults(call, program.sampling)))
        executor.open()
        executor.run_body(partial(self._begin, program, body, state))
        error = self.undecided or executor.error(state._stream.tip)
        if isinstance(error, UnknownVariableError):
            self._explain(program, args, kwargs, executor, error)
        elif error is not None:
            raise error
        return executor, state

    def _begin(self, program: Program, body: Callable[[State], Any], state: State) -> Any:
        arguments = [node.payload for node in self.nodes if node.op is Op.ARGUMENT]
        if arguments and not is_watchable(program._fn):
            self.open(arguments[0], BLIND)
        return body(state)

    def argument(self, name: str) -> Arg:
        """A symbol for an argument that was not given."""
        node = self.record(Node(Op.ARGUMENT, name))
        return cast("Arg", Arg.over(self.marks.mark(Value(name, node)), self))

    # --- nodes and texts --------------------------------------------------------------------------------------------

    def record(self, node: Node) -> Node:
        """Takes a node in; returns it, or its equal of an earlier arm."""
        index = len(self.nodes)
        if index < len(self._replay):
            before = self._replay[index]
            if before.op is node.op and before.prefix is node.prefix and before.data == node.data:
                node = before if before.payload == node.payload else node
        self.nodes.append(node)
        return node

    def pieces(self, text: str) -> tuple[Piece, ...]:
        """The text and the values in it; opens where a value in it was damaged."""
        try:
            return self.marks.pieces(text)
        except DamagedMark as damage:
            self.open(None, str(damage))

    def marked(self, template: Template) -> str:
        """The template as text for the body, with marks."""
        return Var.over("".join(p if isinstance(p, str) else self.marks.mark(p) for p in template.pieces), self)

    def refuse_values(self, payload: Any, what: str) -> None:
        """Opens where a value stands in something else than text."""
        for text in _texts_in(payload):
            if Marks.touched(text):
                try:
                    found = names_of(self.marks.pieces(text))
                except DamagedMark:
                    found = None
                self.open(found, f"is part of {what}, which then depends on the value")

    # --- open ends --------------------------------------------------------------------------------------------------

    def open(self, variable: str | None, reason: str) -> NoReturn:
        """Ends the trace of the body that is running."""
        executor = current()
        if not isinstance(executor, TraceExecutor) or executor.tracer is not self:
            raise ProgramError(f"the value {variable!r} of a trace is used outside of it; a run has values")
        executor.refuse_ended()
        site = user_site()
        self.opens.append(OpenEnd(site.file, site.line, variable, reason, executor.program))
        executor.ended = OpenEndReached(str(self.opens[-1]))
        raise executor.ended

    def known(self, pieces: tuple[Piece, ...]) -> str | None:
        """The text, where this arm has taken choices for all the values in it; None for any other text.

        Raises:
            _Arms: it depends on selects alone, and all choices of the next one can be traced.
        """
        if not all(isinstance(piece, str) or _is_choice(piece) for piece in pieces):
            return None
        texts: list[str] = []
        for piece in pieces:
            text = piece if isinstance(piece, str) else self._choice(cast("Value", piece))
            if text is None:
                return None
            texts.append(text)
        return "".join(texts)

    def _choice(self, value: Value) -> str | None:
        index = self.nodes.index(value.node)
        options = value.node.payload.choices
        if index not in self.choices and len(options) <= self._arms:
            self.undecided = _Arms(index, options)
            raise self.undecided
        return self.choices.get(index)

    # --- a variable that was never made -----------------------------------------------------------------------------

    def _explain(
        self,
        program: Program,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        executor: TraceExecutor,
        error: UnknownVariableError,
    ) -> None:
        """Makes problems of an unknown variable that ended the body, by a second run that goes on over such reads."""
        if executor.forgiving:
            return
        second = Tracer(self.choices, (), 1)
        with contextlib.suppress(Exception):  # what it meets beyond its first mistake says nothing more about that
            second.run(program, args, kwargs, forgiving=True)
        self.notes.unknown = second.notes.unknown
        self.notes.made_later = second.notes.made_later


def _made(program: Program, tracer: Tracer, executor: TraceExecutor, state: State) -> Trace:
    taken = [(tracer.nodes[index], choice) for index, choice in tracer.choices.items()]
    return Trace(
        program.name,
        tracer.nodes,
        tracer.opens,
        state._stream.tip,
        executor.ret_value,
        taken,
        found=tracer.notes.problems(),
    )


def _merged(program: Program, arms: Sequence[Trace]) -> Trace:
    nodes = dict.fromkeys(node for arm in arms for node in arm.nodes)
    opens = dict.fromkeys(end for arm in arms for end in arm.opens)
    found = dict.fromkeys(problem for arm in arms for problem in arm.found)
    return Trace(program.name, list(nodes), list(opens), arms=arms, found=list(found))


def _is_choice(piece: Piece) -> bool:
    plain = isinstance(piece, Value) and not (piece.steps or piece.conversion or piece.spec)
    return plain and cast("Value", piece).node.op is Op.SELECT


def _texts_in(payload: Any) -> Iterator[str]:
    """Every text in what a node asks for."""
    if isinstance(payload, str):
        yield payload
    elif isinstance(payload, (tuple, list)):
        for item in payload:
            yield from _texts_in(item)
    elif isinstance(payload, (GenCall, SelectCall)):
        yield payload.name
        yield from _texts_in([payload.sampling.stop, payload.sampling.stop_regex])
        if isinstance(payload, SelectCall):
            yield from payload.choices
        elif payload.constraint is not None:
            yield from (payload.constraint.source, *payload.constraint.options)
