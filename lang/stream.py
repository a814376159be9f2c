"""One stream of text being written: the end of a chain of nodes, and the variables made on the way.

In: what primitives record (`primitives/expr.py` has the interface).
Out: nodes, checked and handed to the executor; bindings. A state (`state.py`) is a user's view of a stream.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from . import verify
from .bindings import Binding, Cell, Scope
from .errors import CancelledError, ProgramError, RoleError, UnknownVariableError
from .executor import Executor, start_calls_of_caller
from .ir import Branch, Node, Op, expand, frontier, site_of_caller
from .pool import dispatcher
from .primitives.expr import as_expr
from .sampling import SamplingParams

__all__ = ["ANONYMOUS", "Defaults", "Stream"]

ANONYMOUS = "_gen_"
"""Begins the names of values that the program gave none."""


class Defaults:
    """Sampling parameters for what a `gen` does not say: those of the call, and under them those of the program."""

    __slots__ = ("call", "program")

    def __init__(self, call: SamplingParams | None = None, program: SamplingParams | None = None) -> None:
        self.call = call or SamplingParams()
        self.program = program or SamplingParams()


class Stream:
    """A stream that can be appended to.

    Args:
        executor: of the program.
        defaults: for sampling parameters that a `gen` does not say.
        parent: the stream this one is a branch of.
        branch: which branch.

    Attributes:
        start: the BRANCH node of a branch, else None.
        tip: the last node.
        nodes: the nodes written here, after `start`.
        cells: the generating ones among them.
        made: the variables made here.
        inherited: those of the parent when the branch began.
        role: the role of the open turn.
        closed: why nothing can be appended any more, or None.
    """

    def __init__(
        self, executor: Executor, defaults: Defaults, parent: Stream | None = None, branch: Branch | None = None
    ) -> None:
        self.executor = executor
        self.defaults = defaults
        self.parent = parent
        self.start: Node | None = None
        self.tip: Node | None = None
        self.nodes: list[Node] = []
        self.cells: list[Cell] = []
        self.made: dict[str, Binding] = {}
        self.inherited: Mapping[str, Binding] = {}
        self.role: str | None = None
        self.closed: str | None = None
        self.children: weakref.WeakSet[Stream] = weakref.WeakSet()
        if parent is not None:
            self.start = self.tip = verify.check(Node(Op.BRANCH, branch, parent.tip, site=site_of_caller()))
            self.inherited = {**parent.inherited, **parent.made}
            self.role = parent.role
            parent.children.add(self)

    def __del__(self) -> None:
        # A branch that nobody can read any more is not worth its tokens. Runs in the middle of any other code, so it
        # takes no lock.
        if self.parent is not None and self.closed is None:
            executor, waiting = self.executor, [cell for cell in self.cells if not cell.done]
            if waiting:
                dispatcher.put_from_finalizer(lambda: executor.drop(waiting))

    # --- the interface of primitives --------------------------------------------------------------------------------

    def append(self, value: object) -> None:
        """Records what `value` stands for. Checked as a whole first: a TypeError leaves nothing half recorded."""
        expr = as_expr(value)
        start_calls_of_caller()
        expr.record(self)

    def add(self, op: Op, payload: Any = None, *, variable: str | None = None, data: tuple[Node, ...] = ()) -> Node:
        """Records a node that generates nothing."""
        node = self._node(op, payload, variable, data)
        self._extend(node)
        return node

    def ask(self, op: Op, payload: Any) -> Cell:
        """Records a generating node and starts it as soon as it can run."""
        node = self._node(op, payload, payload.name)
        cell = self.executor.add(node)
        self.cells.append(cell)
        self._extend(node)
        return cell

    def bind(self, name: str, binding: Binding) -> None:
        """Makes `name` a variable of the state."""
        with self.executor.changed:
            self.made[name] = binding
            self.executor.notify()

    def begin_turn(self, role: str) -> None:
        """Opens a role turn; RoleError when one is open."""
        if self.role is not None:
            raise RoleError(f"a turn of {role!r} inside a turn of {self.role!r}; end the {self.role} turn first")
        self.add(Op.TURN_BEGIN, role)
        self.role = role

    def end_turn(self, role: str | None = None) -> None:
        """Ends the open turn; RoleError when it is not one of `role`."""
        if self.role is None:
            raise RoleError(f"{role or 'role'}_end without {role or 'role'}_begin: no turn is open")
        if role is not None and role != self.role:
            raise RoleError(f"{role}_end inside a turn of {self.role!r}; end it with {self.role}_end")
        self.add(Op.TURN_END)
        self.role = None

    def name_for(self, name: str | None) -> str:
        """The name itself, or a fresh one for an unnamed value."""
        return f"{ANONYMOUS}{self.executor.fresh_number()}" if name is None else name

    def merged(self, own: SamplingParams) -> SamplingParams:
        """A node's own sampling parameters over those of call and program."""
        merged = own.over(self.defaults.call).over(self.defaults.program)
        merged.check()
        return merged

    @contextlib.contextmanager
    def inside(self, call: SamplingParams, program: SamplingParams) -> Iterator[None]:
        """While an inlined program records here: its call's and its own sampling parameters come before the outer
        ones of their kind.
        """
        outer = self.defaults
        self.defaults = Defaults(call.over(outer.call), program.over(outer.program))
        try:
            yield
        finally:
            self.defaults = outer

    def branch(self, index: int, size: int) -> Stream:
        """A stream that continues this one from here."""
        return type(self)(self.executor, self.defaults, self, Branch(index, size))

    # --- reading ----------------------------------------------------------------------------------------------------

    def lookup(self, name: str) -> Binding | None:
        """What the variable stands for, if it was made."""
        return self.made.get(name) or self.inherited.get(name)

    def names(self) -> list[str]:
        """The variables, in the order they were made."""
        return list(dict.fromkeys([*self.inherited, *self.made]))

    def unknown(self, name: str) -> BaseException | None:
        """What a read of a variable raises that the body has not made."""
        return UnknownVariableError(name, [made for made in self.names() if not made.startswith(ANONYMOUS)])

    def frontier_cells(self) -> list[Cell]:
        """The cells that the text so far waits for."""
        return [self.executor.cells[node] for node in frontier(self.tip)]

    def scope(self, since: int) -> Scope:
        """The text written here from node number `since` on."""
        cells = self.executor.cells
        parts: list[str | Cell] = []
        for node in (step for added in self.nodes[since:] for step in expand(added)):
            if node.op is Op.TEXT:
                parts.append(node.payload.text)
            elif node.op.generates:
                parts.append(cells[node])
        return Scope(parts)

    def cancel(self, error: CancelledError | None = None) -> None:
        """Fails what is not finished here and in the branches of this stream."""
        error = error or CancelledError("the branch was cancelled")
        self.executor.cancel_cells(self.cells, error)
        for child in list(self.children):
            child.cancel(error)

    def drop(self) -> None:
        """Cancels what is not finished here and in the branches of this stream; nobody will read it."""
        self.executor.drop(self.cells)
        for child in list(self.children):
            child.drop()

    def close(self, reason: str) -> None:
        """Nothing can be appended any more, because of `reason`."""
        self.closed = reason

    def continue_as(self, branch: Stream) -> None:
        """The stream goes on where `branch` is."""
        with self.executor.changed:
            self.nodes.extend(branch.nodes)
            self.cells.extend(branch.cells)
            self.tip = branch.tip
            self.executor.notify()

    # --- the chain --------------------------------------------------------------------------------------------------

    def _node(self, op: Op, payload: Any, variable: str | None = None, data: tuple[Node, ...] = ()) -> Node:
        if self.closed is not None:
            raise ProgramError(f"nothing can be appended here: {self.closed}")
        return verify.check(Node(op, payload, self.tip, data, site_of_caller(variable)))

    def _extend(self, node: Node) -> None:
        with self.executor.changed:
            self.nodes.append(node)
            self.tip = node
            self.executor.notify()
