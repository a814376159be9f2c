"""The state: what a program's body writes to and reads from, and what a run returns.

In: `s += …`, roles, forks. Out: values, texts, messages and what is known about them, waiting where they are not there
yet. Writing goes to a `Stream`; waiting goes through its `Executor`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

from .bindings import Binding, Plain, raise_again
from .calls import UnstartedCall
from .errors import InvalidValueError, ProgramError
from .executor import current, start_calls_of_caller
from .follow import Follower, Piece, StreamFollower, VariableFollower, blame, follow, follow_async, render
from .ir import format_stream
from .primitives.expr import Expr
from .primitives.inline import Inline
from .prompt import Generated, Prompt, Text, TurnBegin, TurnEnd
from .stream import ANONYMOUS, Stream
from .turns import Turns

if TYPE_CHECKING:
    from .branches import Branches
    from .seeing import RunReport

__all__ = ["State"]


class State(Turns):
    """A text under construction, and its variables. The first parameter of every program; the result of every run.

    `s += x` appends text, `gen`, `select`, a role turn, an inlined program, or a sum or list of these, and never
    waits. `s["x"]` is the value of a variable: it waits, and raises what went wrong with it.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._call: UnstartedCall | None = None

    # --- writing ----------------------------------------------------------------------------------------------------

    def __iadd__(self, other: object) -> State:
        if other is not self:
            self._stream.append(other)
        return self

    def __setitem__(self, name: str, value: Any) -> None:
        self.set_var(name, value)

    def set_var(self, name: str, value: Any) -> None:
        """Makes `name` a variable with this value."""
        self._stream.bind(_checked_name(name), Plain(value))

    @contextlib.contextmanager
    def var_scope(self, name: str) -> Iterator[State]:
        """What is appended inside the block becomes the variable `name`: its text, without role markup."""
        _checked_name(name)
        begin = len(self._stream.nodes)
        try:
            yield self
        finally:
            self._stream.bind(name, self._stream.scope(begin))

    def fork(self, n: int = 1, position_ids_offset: object = None) -> Branches:
        """`n` branches that all continue this text. The shared text is computed once.

        Args:
            n: how many, at least 1.
            position_ids_offset: accepted for programs written for other front ends, and ignored.

        Raises:
            InvalidValueError: `n` is not an integer of at least 1.
        """
        from .branches import Branches

        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise InvalidValueError(f"fork({n!r}): must be an integer ≥ 1, the number of branches")
        self._ready()
        parent = self._stream
        return Branches(parent, [State(parent.branch(index, n)) for index in range(n)])

    @contextlib.contextmanager
    def copy(self, position_ids_offset: object = None) -> Iterator[State]:
        """A branch to try something on: this text stays as it is, and the copy's new variables come back."""
        (branch,) = self.fork(1)
        try:
            yield branch
        except BaseException:
            branch.cancel()
            raise
        finally:
            branch._stream.close("the copy's block has ended")
        for name, binding in branch._stream.made.items():
            self._stream.bind(name, binding)

    # --- reading ----------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        return self._read(self._binding(name), lambda binding: binding.value())

    def get_var(self, name: str) -> Any:
        """`s[name]`."""
        return self[name]

    def __contains__(self, name: object) -> bool:
        self._ready()
        return isinstance(name, str) and self._stream.lookup(name) is not None

    def variables(self) -> list[str]:
        """The names of the variables made so far, in order."""
        self._ready()
        return [name for name in self._stream.names() if not name.startswith(ANONYMOUS)]

    def meta(self, name: str) -> Any:
        """What is known about a variable: a `Meta`; a list where `n > 1` or branches made the variable."""
        return self._read(self._binding(name), lambda binding: binding.meta())

    def get_meta_info(self, name: str) -> Any:
        """`s.meta(name)`."""
        return self.meta(name)

    def text(self) -> str:
        """The whole text so far, role markup included where the backend can say what it is. Waits for its values."""
        return render(self._stream.executor.backend, self._prompt())

    def messages(self) -> list[dict[str, str]]:
        """The role turns so far, a fresh list. Text outside turns is left out; an open turn has its text so far."""
        messages: list[dict[str, str]] = []
        in_turn = False
        for part in self._prompt():
            if isinstance(part, TurnBegin):
                messages.append({"role": part.role, "content": ""})
            elif isinstance(part, (Text, Generated)) and in_turn:
                messages[-1]["content"] += part.text
            in_turn = isinstance(part, TurnBegin) or (in_turn and not isinstance(part, TurnEnd))
        return messages

    @property
    def ret_value(self) -> Any:
        """What the program's body returned. Waits for its end; None inside the body."""
        self._ready()
        executor = self._stream.executor
        executor.wait(lambda: executor.body_done or executor.inside())
        return executor.ret_value

    def error(self) -> BaseException | None:
        """What the program (or this branch) failed with so far, or None."""
        if self._stream.parent is not None:
            return next((cell.error() for cell in self._stream.cells if cell.error() is not None), None)
        return self._stream.executor.error(self._stream.tip)

    def sync(self) -> None:
        """Waits until all that was appended so far is there; raises what went wrong with it."""
        self._prompt()

    def cancel(self) -> None:
        """Ends the program (or this branch): its requests stop, values not finished raise `CancelledError`."""
        if self._stream.parent is not None:
            self._stream.cancel()
        else:
            self._stream.executor.cancel()

    # --- reading while it is written --------------------------------------------------------------------------------

    def text_iter(self, name: str | None = None, *, var_name: str | None = None) -> Iterator[str]:
        """The text of a variable, or the whole text, in pieces as it appears; raises what the program raised.

        Closing the iterator before its end, outside the program's body, cancels the program. Without `stream=True`
        the text of a value appears in one piece.

        Args:
            name: the variable; None for the whole text.
            var_name: another name for `name`.

        Raises:
            UnknownVariableError: at once, where the body can no longer make the variable.
        """
        executor = self._stream.executor
        return follow(executor, self._follower(name or var_name), self._on_drop(), _piece_text)

    def text_async_iter(
        self, name: str | None = None, return_meta_data: bool = False, *, var_name: str | None = None
    ) -> AsyncIterator[Any]:
        """`text_iter` for an event loop.

        Args:
            name: the variable; None for the whole text.
            return_meta_data: whether to give pairs of text and meta; meta is None until the value is finished, and
                the last pair (its text may be empty) has it.
            var_name: another name for `name`.
        """
        form: Callable[[Piece], Any] = _piece_and_meta if return_meta_data else _piece_text
        follower = self._follower(name or var_name)
        return follow_async(self._stream.executor, follower, self._on_drop(), form, last=return_meta_data)

    # --- seeing it ---------------------------------------------------------------------------------------------------

    def report(self) -> RunReport:
        """What the program cost so far: per value its tokens, times, and why tokens were computed.

        `print` it, or `save_html` and `save_trace` it. Outside the program's body it waits for the program's end.
        """
        from .seeing import batch_report

        self._ready()
        executor = self._stream.executor
        executor.wait(lambda: executor.finished or executor.inside())
        return batch_report([self])

    def _repr_html_(self) -> str:
        """The conversation, for notebooks."""
        from .seeing.notebook import conversation

        return conversation(self)

    def __repr__(self) -> str:
        nodes, names = len(self._stream.nodes), ", ".join(self._stream.names()) or "none"
        return f"<State: {nodes} nodes, variables: {names}>"

    def format(self) -> str:
        """The recorded nodes, one a line."""
        return format_stream(self._stream.tip)

    # --- how it waits -----------------------------------------------------------------------------------------------

    def _prompt(self) -> Prompt:
        """The text so far as a prompt; waits for the body (outside it) and for every value in the text."""
        self._ready()
        stream, executor = self._stream, self._stream.executor
        executor.wait(lambda: executor.body_done or executor.inside())
        cells = stream.frontier_cells()
        executor.wait(lambda: all(cell.done for cell in cells))
        failure = blame(executor, next((cell.failure for cell in cells if cell.failure is not None), None))
        if failure is not None:
            _saw(failure)
            raise_again(failure)
        return executor.prompt(stream.tip)

    def _binding(self, name: str) -> Binding:
        """The variable; waits for the body to make it, where the reader is outside of the body."""
        self._ready()
        stream, executor = self._stream, self._stream.executor
        executor.wait(lambda: stream.lookup(name) is not None or self._missing(name) is not None)
        binding = stream.lookup(name)
        if binding is None:
            error = self._missing(name)
            assert error is not None
            raise_again(error)
        return binding

    def _missing(self, name: str) -> BaseException | None:
        """Why there will be no such variable, or None while the body may still make it."""
        executor = self._stream.executor
        if executor.body_error is not None:
            return executor.body_error
        if executor.body_done or executor.inside():
            return self._stream.unknown(name)
        return None

    def _read(self, binding: Binding, what: Callable[[Binding], Any]) -> Any:
        self._stream.executor.wait(lambda: binding.done)
        try:
            return what(binding)
        except BaseException as error:
            _saw(error)
            raise

    def _follower(self, name: str | None) -> Follower:
        self._ready()
        stream, executor = self._stream, self._stream.executor
        inside = executor.inside()
        if name is None:
            return StreamFollower(stream, lambda: inside or executor.finished, self.error)
        if stream.lookup(name) is None:
            error = self._missing(name)
            if error is not None:
                raise error
        return VariableFollower(executor, lambda: stream.lookup(name), lambda: self._missing(name))

    def _on_drop(self) -> Callable[[], None]:
        """What closing an iterator early does: nothing inside the body, which goes on and may cancel by itself."""
        return (lambda: None) if self._stream.executor.inside() else self._stream.executor.cancel

    # --- a program called without a state ---------------------------------------------------------------------------

    def _ready(self) -> None:
        """Starts the programs that the caller's body called; this state may be of one of them."""
        if self._call is not None and self._call.inlined:
            raise ProgramError("this call was inlined (`s += program(…)`): read its variables from that state")
        start_calls_of_caller()

    def _as_expr(self) -> Expr:
        body = self._call.take_inline() if self._call is not None else None
        if body is None:
            raise TypeError("a State cannot be appended to a state; append state['name'] or state.text()")
        return Inline(body)

    def __add__(self, other: object) -> Expr:
        return self._as_expr() + other

    def __radd__(self, other: object) -> Expr:
        return other + self._as_expr()


def _checked_name(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a variable's name is a str, not a {type(name).__name__}")
    return name


def _saw(error: BaseException) -> None:
    reader = current()
    if reader is not None:
        reader.seen.append(error)


def _piece_text(piece: Piece) -> str:
    return piece.text


def _piece_and_meta(piece: Piece) -> tuple[str, Any]:
    return piece.text, piece.meta
