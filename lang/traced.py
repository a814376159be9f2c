"""One program of a trace: where a traced body runs, and the stream it writes to.

In: what a body does to its state; the `Tracer` of the whole trace (`tracer.py`). Out: nodes, symbols, an open end.

    TraceExecutor   in the place of an executor: every value is there at once, as a symbol
    TraceStream     makes templates of text with values in it, symbols of variables
    TraceLaunch     a program that the body calls is traced here and now
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, cast

from .backend import Backend
from .bindings import Answer, Binding, Cell, Plain, Reasoning
from .errors import CancelledError
from .executor import Executor, current, start_calls_of_caller
from .frames import user_site
from .ir import Branch, Node, Op, expand, frontier, prompt_of
from .launch import Launch
from .marks import Marks
from .prompt import Generated, Prompt, Text, TurnBegin
from .state import State
from .stream import Defaults, Stream
from .symbols import FirstOf, SideSymbol, SymbolCell
from .template import Template, Value
from .var import Arg, Var
from .watch import is_watchable, watched

if TYPE_CHECKING:
    from .tracer import Tracer

__all__ = ["BLIND", "OpenEndReached", "TraceExecutor", "TraceStream"]

BLIND = "reads a value, and what the body does with it cannot be watched, because its source is not there"


class OpenEndReached(BaseException):
    """The trace of a body ends here. No `except Exception` of the body stops it."""


class TraceExecutor(Executor):
    """One program of a trace.

    Args:
        tracer: of the whole trace.
        program: the program's name.
        parent: the program that started this one.

    Attributes:
        ended: what ended the trace of this program, or None.
        forgiving: whether an unknown variable is taken for one.
        blind: whether the body cannot be watched (`watch.py`).
    """

    def __init__(self, tracer: Tracer, program: str, parent: Executor | None = None) -> None:
        super().__init__(cast("Backend", _NoBackend(tracer)), parent=parent)
        self.tracer = tracer
        self.cells = tracer.cells  # text of one program holds values of another
        self.program = program
        self.ended: OpenEndReached | None = None
        self.forgiving: bool = isinstance(parent, TraceExecutor) and parent.forgiving
        self.blind = False
        self.launcher = lambda name: partial(TraceLaunch, tracer, name)

    def watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function's twin that is watched; without one, reading a value opens."""
        if not is_watchable(function):
            self.blind = True
        return watched(function)

    def add(self, node: Node) -> Cell:
        """A generating node has its symbol at once."""
        cell = SymbolCell(node, opener=self.tracer)
        self.cells[node] = cell
        return cell

    def prompt(self, tip: Node | None) -> Prompt:
        """The prompt with marks where values are."""
        if self.blind and frontier(tip):
            self.tracer.open(None, BLIND)
        parts = prompt_of(tip, self._written)
        return tuple(
            Text(self.tracer.marked(part), part.special) if isinstance(part, Template) else part for part in parts
        )

    def wait(self, until: Callable[[], bool], timeout: float | None = None) -> None:
        """Nothing is worth waiting for: it is there, or only a run brings it."""
        start_calls_of_caller()
        with self.changed:
            there = until() or until()  # the first question may make a forgiven variable
        if not there:
            self.tracer.open(None, "waits for what only a run brings")

    def refuse_ended(self) -> None:
        """A body that goes on after its open end (a bare `except:`) records nothing more."""
        if self.ended is not None and current() is self:
            raise self.ended

    def end_body(self, value: Any = None, error: BaseException | None = None) -> None:
        """An open end is no error."""
        super().end_body(value, None if error is self.ended else error)

    def cancel(self, error: CancelledError | None = None) -> None:
        """What a body cancels by itself depends on what was there by then."""
        if error is None and current() is not None and sys.exc_info()[1] is None:
            self.tracer.open(None, "cancels a program; what it has done by then only a run knows")
        super().cancel(error)


class TraceStream(Stream):
    """A stream whose variables are symbols."""

    executor: TraceExecutor

    def __init__(
        self, executor: Executor, defaults: Defaults, parent: Stream | None = None, branch: Branch | None = None
    ) -> None:
        super().__init__(executor, defaults, parent, branch)
        self._won: TraceStream | None = None
        self._joined: dict[int, Binding] = {}
        self._tracer = self.executor.tracer
        if self.start is not None:
            self.start = self.tip = self._tracer.record(self.start)
            self._tracer.notes.branch(self)

    def add(self, op: Op, payload: Any = None, *, variable: str | None = None, data: tuple[Node, ...] = ()) -> Node:
        """Records a node; text with values in it gets data edges."""
        if op is Op.TEXT:
            pieces = self._tracer.pieces(payload.text)
            if any(not isinstance(piece, str) for piece in pieces):
                payload = Template(pieces, payload.special)
                data = payload.nodes
        else:
            self._tracer.refuse_values(payload, "the name of a role")
        node = super().add(op, payload, variable=variable, data=data)
        if op is Op.JOIN and payload == "first":
            self._join_first(node)
        return node

    def ask(self, op: Op, payload: Any) -> Cell:
        """Records a generating node; what it asks for must be known."""
        self._tracer.refuse_values(payload, f"what the {op.value} {payload.name!r} asks for")
        return super().ask(op, payload)

    def bind(self, name: str, binding: Binding) -> None:
        """Makes a variable; sides of a text become symbols, too."""
        self.executor.refuse_ended()
        self._tracer.refuse_values(name, "the name of a variable")
        if isinstance(binding, (Answer, Reasoning)):
            binding = SideSymbol.made(binding)
        binding = self._joined.get(id(binding), binding)
        self._tracer.notes.bound(self, name, binding)
        super().bind(name, binding)

    def lookup(self, name: str) -> Binding | None:
        """The variable; it counts as read."""
        self.executor.refuse_ended()
        binding = super().lookup(name)
        if binding is not None:
            self._tracer.notes.read(binding)
            if self.executor.blind and not isinstance(binding, Plain):
                self._tracer.open(name, BLIND)
        return binding

    def unknown(self, name: str) -> BaseException | None:
        """Opens where the body that should make it has an open end itself."""
        if self.executor.ended is not None:
            self._tracer.open(name, f"reads it from {self.executor.program!r}, whose trace ended before it was made")
        if not self.executor.forgiving:
            return super().unknown(name)
        node = self._tracer.record(Node(Op.ARGUMENT, name))
        self._tracer.notes.forgiven(name, user_site(), self.names())
        super().bind(name, Plain(Arg.over(self._tracer.marks.mark(Value(name, node)), self._tracer)))
        return None

    def scope(self, since: int) -> Any:
        """The text written since, with marks where values are."""
        texts: list[str] = []
        for node in (step for added in self.nodes[since:] for step in expand(added)):
            if node.op is Op.TEXT:
                payload = node.payload
                texts.append(payload.text if isinstance(payload, Text) else self._tracer.marked(payload))
            elif node.op.generates:
                texts.append(self.executor.cells[node].text())
        text = "".join(texts)
        return Plain(Var.over(text, self._tracer) if Marks.touched(text) else text)

    def cancel(self, error: CancelledError | None = None) -> None:
        """What a body cancels by itself depends on what was there by then."""
        if error is None and sys.exc_info()[1] is None:
            self._tracer.open(None, "cancels a branch; what it has done by then only a run knows")

    def close(self, reason: str) -> None:
        """As in a run; joined branches are used."""
        super().close(reason)
        self._tracer.notes.closed(self)

    def continue_as(self, branch: Stream) -> None:
        """The branch that stands in for the one that ends first."""
        self._won = cast("TraceStream", branch)
        super().continue_as(branch)

    def _join_first(self, node: Node) -> None:
        """The variables after `join("first")`: of whichever branch that will be."""
        assert self._won is not None
        siblings = self._tracer.notes.siblings(self._won)
        names = dict.fromkeys(name for stream in siblings for name in stream.made)
        for name in names:
            found = [stream.made.get(name) for stream in siblings]
            joined = FirstOf(name, node, found, self._tracer)
            super().bind(name, joined)
            for binding in found:
                self._joined[id(binding)] = joined

    def _node(self, op: Op, payload: Any, variable: str | None = None, data: tuple[Node, ...] = ()) -> Node:
        self.executor.refuse_ended()
        return self._tracer.record(super()._node(op, payload, variable, data))


class TraceLaunch(Launch):
    """A program that a traced body calls: traced here and now."""

    def __init__(
        self,
        tracer: Tracer,
        program: str,
        body: Callable[[State], Any],
        backend: Backend,
        defaults: Defaults,
        *,
        stream: bool = False,
    ) -> None:
        parent = current()
        if not isinstance(backend, _NoBackend) or stream:
            tracer.open(None, "runs a program on a backend of its own, or streams it")
        self.executor = TraceExecutor(tracer, program, parent)
        self.state = State(TraceStream(self.executor, defaults))
        self._body = body

    def start(self, *pool: object) -> None:
        """Traces it."""
        self.executor.open()
        self.executor.run_body(lambda: self._body(self.state))
        error = self.executor.body_error
        if error is not None and not isinstance(error, Exception):
            raise error

    def run(self) -> State:
        """Traces it; raises what its body raised."""
        self.start()
        return self.result()


class _NoBackend:
    """Whatever would reach a backend ends the trace."""

    max_running = 0
    """What a batch asks to know how many bodies may wait: nothing waits in a trace."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def render(self, prompt: Prompt) -> str:
        """The text so far, where it has no role turns."""
        if any(isinstance(part, TurnBegin) for part in prompt):
            self._tracer.open(None, "reads the text with its role markup, which the chat template writes")
        text = "".join(part.text for part in prompt if isinstance(part, (Text, Generated)))
        return Var.over(text, self._tracer) if Marks.touched(text) else text

    def submit(self, *args: object) -> NoReturn:
        """See `Backend.submit`."""
        self._tracer.open(None, "asks the backend itself (submit)")

    def __getattr__(self, name: str) -> NoReturn:
        self._tracer.open(None, f"asks the backend itself ({name})")
