"""Every exception Radicel raises on purpose.

    RadicelError
    ├── ProgramError                     the program text or its use is wrong
    │   ├── UnknownVariableError         (KeyError) a variable nobody made
    │   ├── DuplicateArgumentError       (TypeError) a name given twice, by bind and by call
    │   ├── RoleError                    (ValueError) a role inside a role, an end without a begin
    │   ├── BatchError                   some items of a batch failed; `.states`, `.failures`
    │   └── SavedRunError                (ValueError) a file of saved results does not fit the program or its batch
    ├── InvalidValueError                (ValueError) an argument has a value it cannot have
    │   ├── SamplingError                a sampling parameter
    │   ├── ConstraintError              a schema, regex or grammar; `.keyword`, `.pointer`
    │   ├── ChoicesError                 the choices of a `select`
    │   ├── ContextLengthError           a prompt longer than the context or the KV pool
    │   └── ChatTemplateError            no template for a role, or one that cannot be rendered
    ├── ResultError                      (ValueError) the text is there, the value is not
    │   ├── IncompleteOutputError        cut by `max_tokens`; `.text`, `.name`
    │   └── OutputValidationError        a custom validator refused the finished text; `.text`, `.name`
    ├── CancelledError                   a value that will not come: its program or request was cancelled
    │   └── DeadlineError                (TimeoutError) cancelled by `timeout=`
    ├── ModelError                       (ValueError) weights and models
    │   ├── ModelNotFoundError           no such model here; says which command fetches it
    │   ├── UnsupportedModelError        an architecture we do not have; lists those we do
    │   └── WeightsError                 a missing, extra, misshapen or damaged tensor or file
    ├── BackendError                     the machine under the program
    │   ├── NoBackendError               (ValueError) no backend given and no default set
    │   ├── BackendClosedError           used after `close()`
    │   ├── EngineDeadError              a step raised; `.__cause__` is what it raised
    │   ├── ForkedProcessError           a runtime used in a child made by `os.fork()`
    │   ├── RemoteError                  a server answered with an error
    │   └── ReplayError                  a replayed program asks what was not recorded; `.call`, `.expected`, `.got`
    └── UnsupportedError                 (ValueError) a documented feature that this version or backend lacks

`RadicelError` never hides what happened: an error of a backend or of a body is raised as it is, and where one of
ours is raised for it, the original is its `__cause__`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "BackendClosedError",
    "BackendError",
    "BatchError",
    "CancelledError",
    "ChatTemplateError",
    "ChoicesError",
    "ConstraintError",
    "ContextLengthError",
    "DeadlineError",
    "DuplicateArgumentError",
    "EngineDeadError",
    "ForkedProcessError",
    "IncompleteOutputError",
    "InvalidValueError",
    "ModelError",
    "ModelNotFoundError",
    "NoBackendError",
    "OutputValidationError",
    "ProgramError",
    "RadicelError",
    "RemoteError",
    "ReplayError",
    "ResultError",
    "RoleError",
    "SamplingError",
    "SavedRunError",
    "UnknownVariableError",
    "UnsupportedError",
    "UnsupportedModelError",
    "WeightsError",
]


class RadicelError(Exception):
    """Root of the tree: catch this to catch everything Radicel raises on purpose."""


class ProgramError(RadicelError):
    """The text of a program, or the way it is called, is wrong."""


class UnknownVariableError(ProgramError, KeyError):
    """A variable was read that the program never made.

    Args:
        name: the variable asked for.
        known: the variables that exist, for the message.
    """

    def __init__(self, name: str, known: Sequence[str] = ()) -> None:
        super().__init__(name)
        self.name = name
        self.known = tuple(known)

    def __str__(self) -> str:
        made = ", ".join(map(repr, self.known)) if self.known else "none"
        return f"no variable {self.name!r} in this state; variables made so far: {made}"


class DuplicateArgumentError(ProgramError, TypeError):
    """An argument was given twice, once by `bind` and once by the call."""


class RoleError(ProgramError, ValueError):
    """A role turn inside another role turn, or an end without its begin."""


_MOST_TOLD = 10


def _told(index: int, error: BaseException) -> str:
    """The error in a line, with the node that failed where that is known (`Executor` notes it at the error)."""
    message = f"{type(error).__name__}: {error}".partition("\n")[0]
    item = f", item {index} of the batch"
    nodes = [note.removesuffix(item) for note in getattr(error, "__notes__", ()) if note.endswith(item)]
    return f"{message} ({nodes[0]})" if nodes else message


class BatchError(ProgramError):
    """Some items of a batch failed.

    Attributes:
        states: the states of all items, in input order, the good ones too.
        failures: item index → the exception of that item.
    """

    def __init__(self, states: Sequence[Any], failures: Mapping[int, BaseException]) -> None:
        shown = [f"  item {index}: {_told(index, error)}" for index, error in list(failures.items())[:_MOST_TOLD]]
        rest = [] if len(failures) <= _MOST_TOLD else [f"  … and {len(failures) - _MOST_TOLD} more, in `.failures`"]
        heading = f"{len(failures)} of {len(states)} items failed (all states are in `.states`):"
        super().__init__("\n".join([heading, *shown, *rest]))
        self.states = list(states)
        self.failures = dict(failures)


class SavedRunError(ProgramError, ValueError):
    """A file of saved results belongs to another program or batch, is being written elsewhere, or is damaged.

    Attributes:
        states: the states of all items, where the batch ran and could not be written down; else empty.
    """

    def __init__(self, message: str, *, states: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.states = list(states)


class InvalidValueError(RadicelError, ValueError):
    """An argument has a value that it cannot have."""


class SamplingError(InvalidValueError):
    """A sampling parameter has a value that it cannot have."""


class ConstraintError(InvalidValueError):
    """A schema, regex, grammar or list of choices cannot be enforced.

    Attributes:
        keyword: the schema keyword, regex construct or rule at fault, where one is.
        pointer: a JSON pointer into the schema (or a position in the text), where one is known.
    """

    def __init__(self, message: str, *, keyword: str | None = None, pointer: str | None = None) -> None:
        super().__init__(message)
        self.keyword = keyword
        self.pointer = pointer


class ChoicesError(InvalidValueError):
    """The choices of a `select` are empty, repeated, or not strings."""


class ContextLengthError(InvalidValueError):
    """A prompt is longer than the model's context or than the whole KV pool."""


class ChatTemplateError(InvalidValueError):
    """A role was used and the model has no chat template, or its template cannot be rendered."""


class ResultError(RadicelError, ValueError):
    """A text was generated, but it is not the value that was asked for.

    Attributes:
        text: the text as it was generated.
        name: the variable's name, where it has one.
    """

    def __init__(self, message: str, *, text: str, name: str | None = None) -> None:
        super().__init__(message)
        self.text = text
        self.name = name


class IncompleteOutputError(ResultError):
    """A typed or constrained value was cut short by `max_tokens` or by the context."""


class OutputValidationError(ResultError):
    """The finished text has the right form, and the type's own validator refused it."""


class CancelledError(RadicelError):
    """The value will not come: its program or request was cancelled."""


class DeadlineError(CancelledError, TimeoutError):
    """The request was cancelled because its `timeout` passed."""


class ModelError(RadicelError, ValueError):
    """Something about a model or its files is wrong."""


class ModelNotFoundError(ModelError):
    """No such model on this machine; the message says which command fetches it."""


class UnsupportedModelError(ModelError):
    """An architecture for which Radicel has no model code."""


class WeightsError(ModelError):
    """A tensor or weights file is missing, unexpected, misshapen or damaged."""


class BackendError(RadicelError):
    """What runs the program cannot run it."""


class NoBackendError(BackendError, ValueError):
    """No backend was given and no default backend is set."""


class BackendClosedError(BackendError):
    """The backend was closed before or while the request ran."""


class EngineDeadError(BackendError):
    """A model step raised, so the engine stopped; `__cause__` is the exception of the step."""


class ForkedProcessError(BackendError):
    """A runtime was used in a child process made by `os.fork()`, where its threads and GPU context do not exist."""


class RemoteError(BackendError):
    """A remote server answered with an error."""


class ReplayError(BackendError):
    """A replayed program asks for something that was not recorded, or no longer asks for something that was.

    Attributes:
        call: which call, such as `"gen 'verdict'"`.
        expected: what was recorded.
        got: what was asked for.
    """

    def __init__(self, message: str, *, call: str, expected: str | None = None, got: str | None = None) -> None:
        super().__init__(message)
        self.call = call
        self.expected = expected
        self.got = got


class UnsupportedError(RadicelError, ValueError):
    """A documented feature that this version, model or backend does not have."""
