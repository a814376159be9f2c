"""A finished program as the line of its item, and a state made of such a line.

In: the state of a program that ended well. Out: plain JSON; and from it a state that reads the same: variables and
what is known about them, text, messages, the value that the body returned. Nothing is run for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from typing_extensions import override

from ..backend import Backend, Meta
from ..bindings import Binding, Cell, raise_again
from ..executor import Executor
from ..ir import Node, Op
from ..prompt import Generated, Text, TurnBegin, TurnEnd
from ..state import State
from ..stream import Defaults, Stream
from .values import FindType, Unsaved, decode, decode_error, decode_prompt, encode, encode_error, encode_prompt

__all__ = ["RestoredLaunch", "state_as_row"]


def state_as_row(state: State) -> dict[str, Any]:
    """What a state says, as JSON. Its program has ended without an error."""
    stream = state._stream
    return {
        "variables": {name: _variable(binding) for name in stream.names() if (binding := stream.lookup(name))},
        "returned": _saved(lambda: stream.executor.ret_value),
        "text": encode_prompt(state._prompt()),
    }


def _variable(binding: Binding) -> dict[str, Any]:
    error = binding.error()
    if error is not None:  # the body has dealt with it
        return {"error": encode_error(error)}
    row = {"value": _saved(binding.value)}
    text, meta = binding.text(), binding.meta()
    if text != row["value"]:
        row["text"] = text
    if meta != Meta():
        row["meta"] = _saved(lambda: meta)
    return row


def _saved(read: Callable[[], Any]) -> Any:
    value = read()
    try:
        return encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        return {"$": "unsaved", "v": str(error)}


class RestoredLaunch:
    """A run that ended in an earlier process: what a batch does with a `Launch`, where there is nothing to do.

    Attributes:
        state: what it left.
        executor: an executor that is finished.
    """

    def __init__(self, row: Mapping[str, Any], backend: Backend, item: int, find: FindType) -> None:
        self.executor: Executor = _Ended(backend, decode(row.get("returned"), find))
        self.executor.item = item
        stream = Stream(self.executor, Defaults())
        for part in decode_prompt(row["text"]):
            _write(stream, part)
        for name, variable in row["variables"].items():
            stream.made[name] = _Restored(name, variable, find)
        stream.close("the program ended in an earlier run, and was restored from the file that it was saved to")
        self.state = State(stream)

    def start(self, *pool: Any) -> None:
        """Does nothing: it has ended."""

    async def wait(self) -> None:
        """Does nothing: it has ended."""


def _write(stream: Stream, part: Any) -> None:
    if isinstance(part, TurnBegin):
        node = Node(Op.TURN_BEGIN, part.role, stream.tip)
    elif isinstance(part, TurnEnd):
        node = Node(Op.TURN_END, None, stream.tip)
    else:
        written = Text(part.text) if isinstance(part, Generated) else part
        node = Node(Op.TEXT, written, stream.tip)
    stream.nodes.append(node)
    stream.tip = node


class _Ended(Executor):
    """The executor of a program that ended before this process began."""

    def __init__(self, backend: Backend, returned: Any) -> None:
        self._returned = returned
        super().__init__(backend)
        self.body_done = self.finished = True

    @property
    def ret_value(self) -> Any:
        """What the body returned."""
        if isinstance(self._returned, Unsaved):
            raise self._returned.error("what the program returned")
        return self._returned

    @ret_value.setter
    def ret_value(self, value: Any) -> None:
        """Set by the base class only, before there is one."""


class _Restored(Binding):
    """A variable of a restored state."""

    def __init__(self, name: str, row: Mapping[str, Any], find: FindType) -> None:
        self._name = name
        self._error = decode_error(row["error"]) if "error" in row else None
        self._value = decode(row.get("value"), find)
        self._meta = decode(row["meta"], find) if "meta" in row else Meta()
        self._text = str(row.get("text", row.get("value", "")))

    @property
    @override
    def cells(self) -> Sequence[Cell]:
        return ()

    @override
    def value(self) -> Any:
        if self._error is not None:
            raise_again(self._error)
        if isinstance(self._value, Unsaved):
            raise self._value.error(f"variable {self._name!r}")
        return self._value

    @override
    def meta(self) -> Any:
        return self._meta

    @override
    def text(self) -> str:
        return self._text

    @override
    def error(self) -> BaseException | None:
        return self._error
