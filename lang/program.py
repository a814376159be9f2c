"""`@function`: a Python function becomes a program that can be run, inlined, bound and cached.

In: a function whose first parameter is the state. Out: a `Program`, whose runs are `launch.py`, `batch.py`.

    program.py   arguments and sampling parameters → a body          state.py      what the body writes and reads
    launch.py    a body → a run, here, on a worker or awaited         stream.py     writing → nodes
                                                                     executor.py   nodes → requests → values
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, overload

from .arguments import as_sampling, checked_signature
from .backend import Backend
from .batch import Batch, BatchItem
from .calls import UnstartedCall
from .default_backend import resolve_backend
from .errors import DuplicateArgumentError
from .executor import current
from .launch import Launch
from .prefix import constant_prefix
from .sampling import SamplingParams, split_sampling
from .saved import saved_run
from .state import State
from .stream import Defaults, Stream
from .trace import Trace
from .tracer import trace_call

if TYPE_CHECKING:
    from .graph import RequestGraph

__all__ = ["Program", "function"]


class Program:
    """A function that writes structured text with a model. Made by `@function`.

    Attributes:
        name: for messages.
        num_api_spec_tokens: accepted for programs written for other front ends, and kept.
        sampling: defaults for what neither a `gen` nor a call says.
        bound: arguments given by `bind`.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        name: str | None = None,
        num_api_spec_tokens: int | None = None,
        sampling: SamplingParams | None = None,
        bound: Mapping[str, Any] | None = None,
    ) -> None:
        self._fn = fn
        self._signature = checked_signature(fn)
        self.name = str(name or getattr(fn, "__name__", "program"))
        self.num_api_spec_tokens = num_api_spec_tokens
        self.sampling = sampling or SamplingParams()
        self.bound = dict(bound or {})
        functools.update_wrapper(self, fn)

    def run(
        self,
        *args: Any,
        backend: Backend | None = None,
        sampling: SamplingParams | Mapping[str, Any] | None = None,
        stream: bool = False,
        **kwargs: Any,
    ) -> State:
        """Runs the program to its end, the body in this thread, and raises what the body or the backend raised.

        Args:
            *args: the program's arguments, after the state.
            backend: what runs it; that of the running program or the default one when None.
            sampling: sampling parameters for every `gen` that does not say otherwise.
            stream: return at once, the body on a thread of its own; text can be read as it appears.
            **kwargs: the program's arguments, and sampling parameters by name (a program's parameter wins).

        Raises:
            TypeError: arguments that the program does not have, or lacks.
            NoBackendError: no backend anywhere.
        """
        launch = self._launch(args, kwargs, backend, sampling, stream=stream)
        if not stream:
            return launch.run()
        launch.start()
        return launch.state

    async def arun(
        self,
        *args: Any,
        backend: Backend | None = None,
        sampling: SamplingParams | Mapping[str, Any] | None = None,
        stream: bool = False,
        **kwargs: Any,
    ) -> State:
        """`run` for an event loop, which is never blocked. Cancelling the task cancels the program's requests."""
        launch = self._launch(args, kwargs, backend, sampling, stream=stream)
        launch.start()
        if stream:
            return launch.state
        await launch.wait()
        return launch.result()

    def run_batch(
        self,
        batch: Iterable[BatchItem],
        *,
        backend: Backend | None = None,
        sampling: SamplingParams | Mapping[str, Any] | None = None,
        progress_bar: bool = False,
        num_threads: int | str = "auto",
        on_error: str = "return",
        generator_style: bool = False,
        save: object = None,
        **kwargs: Any,
    ) -> Any:
        """Runs the program once for each item, all at the same time, and returns their states in input order.

        Args:
            batch: dicts of arguments by name, or tuples of arguments.
            backend: what runs them.
            sampling: sampling parameters for every item; those in an item's dict win.
            progress_bar: show progress on a terminal.
            num_threads: most bodies at a time, each on a thread of its own (for bodies that wait for other things
                than values, such as a web page); `"auto"` starts few and more only where bodies wait for values.
            on_error: `"return"`: every item is its own success or error (`state.error()`); `"raise"`: raises
                `BatchError` when all have ended.
            generator_style: return an iterator over the states, in input order, each as soon as it has ended.
            save: a file to which finished items are appended; a second run goes on with those that are missing.
            **kwargs: sampling parameters by name.

        Raises:
            BatchError: with `on_error="raise"`, if an item failed.
            TypeError: an item that is neither a dict nor a tuple.
            InvalidValueError: `num_threads` or `on_error`.
            SavedRunError: the file of `save` is not this batch's, or is being written elsewhere.
        """
        runs = self._batch(batch, backend, sampling, kwargs, num_threads=num_threads, on_error=on_error, save=save)
        if generator_style:
            return runs.iterate(progress_bar)
        return runs.run(progress_bar)

    async def arun_batch(
        self,
        batch: Iterable[BatchItem],
        *,
        backend: Backend | None = None,
        sampling: SamplingParams | Mapping[str, Any] | None = None,
        progress_bar: bool = False,
        num_threads: int | str = "auto",
        on_error: str = "return",
        save: object = None,
        **kwargs: Any,
    ) -> list[State]:
        """`run_batch` for an event loop. Cancelling the task cancels every item."""
        runs = self._batch(batch, backend, sampling, kwargs, num_threads=num_threads, on_error=on_error, save=save)
        return await runs.arun(progress_bar)

    def bind(self, **kwargs: Any) -> Program:
        """This program with some arguments fixed; giving one of them again is an error.

        Raises:
            DuplicateArgumentError: an argument bound before.
            TypeError: a name that is no parameter of the program.
        """
        self._refuse_bound(kwargs)
        known = self._parameters()
        if not self._takes_any_keyword():
            for name in kwargs:
                if name not in known:
                    raise TypeError(f"{self.name}.bind: {name!r} is no parameter; it has {', '.join(known) or 'none'}")
        return Program(
            self._fn,
            name=self.name,
            num_api_spec_tokens=self.num_api_spec_tokens,
            sampling=self.sampling,
            bound={**self.bound, **kwargs},
        )

    def trace(self, *args: Any, **kwargs: Any) -> Trace:
        """Runs the body on symbolic values and calls no backend: what the program asks for, before it runs.

        The body's own side effects happen. Where it looks inside a value that only a run has, the trace ends with an
        open end; what is recorded up to there is right.

        Args:
            *args: the program's arguments; those not given are symbolic, too.
            **kwargs: the program's arguments and sampling parameters, as in `run`; and `arms=8` (unless the program
                has such a parameter): where the body branches on a `select`, every choice is traced, up to so many
                arms in all, each by a run of the body.

        Raises:
            TypeError: arguments that the program does not have.
            what the body raises.
        """
        arms = 1 if "arms" in self._signature.parameters else kwargs.pop("arms", 1)
        return trace_call(self, args, kwargs, arms=arms)

    def plan(
        self,
        batch: Iterable[BatchItem] | BatchItem = (),
        backend: Backend | None = None,
        *,
        sampling: SamplingParams | Mapping[str, Any] | None = None,
    ) -> RequestGraph:
        """What a batch of calls will ask for, as one graph to `print` or `explain()`: what they share and cost.

        Asks no model. Every call is traced (see `trace`); arguments that are not given are symbolic.

        Args:
            batch: as for `run_batch`; a dict or tuple alone is a batch of one, nothing is one call without arguments.
            backend: whose tokenizer counts; without one, UTF-8 bytes are counted.
            sampling: sampling parameters for every call.

        Raises:
            TypeError: an item that is neither a dict nor a tuple, or arguments that the program does not have.
            what a body raises.
        """
        from .plan import plan  # numpy and rich come with it

        return plan(self, batch, backend, sampling)

    def cache(self, backend: Backend | None = None) -> int:
        """Computes ahead the text that every run begins with: what comes before the first argument or `gen`.

        The body is run once for it, up to there, with placeholders for its arguments. Waits for the backend.

        Returns:
            how many tokens were computed or found; 0 where nothing is constant or the backend has no cache.
        """
        resolved = resolve_backend(backend)
        prompt = constant_prefix(self._fn, list(self._signature.parameters.values())[1:], self.bound)
        return resolved.submit_prefill(prompt).result() if prompt else 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """With a state: inlines the program into it and returns what the body returns. Without one, inside a running
        program: a program of its own on the same backend, whose `State` is returned at once. Outside: `run`.
        """
        first = next(iter(self._signature.parameters))
        if args and isinstance(args[0], State):
            return self._inline(args[0]._stream, args[1:], kwargs)
        if isinstance(kwargs.get(first), State):
            state = kwargs.pop(first)
            return self._inline(state._stream, args, kwargs)
        caller = current()
        if caller is None or "backend" in kwargs or kwargs.get("stream"):
            return self.run(*args, **kwargs)
        sampling = kwargs.pop("sampling", None)
        kwargs.pop("stream", None)
        launch = self._launch(args, kwargs, None, sampling)
        launch.state._call = UnstartedCall(
            launch.start,
            lambda to: self._inline(to, args, {**kwargs, "sampling": sampling}),  # type: ignore[arg-type]
        )
        caller.calls.append(launch.state._call)
        return launch.state

    def __repr__(self) -> str:
        return f"<program {self.name}{self._signature}>"

    # --- arguments --------------------------------------------------------------------------------------------------

    def _launch(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        backend: Backend | None,
        sampling: SamplingParams | Mapping[str, Any] | None,
        *,
        stream: bool = False,
    ) -> Launch:
        call, body = self._prepare(args, kwargs, sampling)
        caller = current()
        launch = Launch if caller is None or caller.launcher is None else caller.launcher(self.name)
        made: Launch = launch(body, resolve_backend(backend), Defaults(call, self.sampling), stream=stream)
        made.executor.program = self.name
        return made

    def _batch(
        self,
        batch: Iterable[BatchItem],
        backend: Backend | None,
        sampling: SamplingParams | Mapping[str, Any] | None,
        keywords: Mapping[str, Any],
        **options: Any,
    ) -> Batch:
        resolved = resolve_backend(backend)
        shared = SamplingParams.of(**keywords).over(as_sampling(sampling))

        def launch(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Launch:
            try:
                return self._launch(args, kwargs, resolved, shared)
            except Exception as error:  # wrong arguments are the item's own error
                return Launch.failed(error, resolved)

        save = saved_run(options.pop("save"), self, sampling=shared.said())
        return Batch(launch, batch, save=save, **options)

    def _inline(self, stream: Stream, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        kwargs = dict(kwargs)
        call, body = self._prepare(args, kwargs, kwargs.pop("sampling", None))
        with stream.inside(call, self.sampling):
            return body(State(stream))

    def _prepare(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        sampling: SamplingParams | Mapping[str, Any] | None,
        missing: Callable[[str], Any] | None = None,
    ) -> tuple[SamplingParams, Callable[[State], Any]]:
        """The call's sampling parameters, and the body with its arguments filled in; those not given by `missing`."""
        said, rest = split_sampling(kwargs, reserved=self._signature.parameters)
        call = SamplingParams.of(**said.said()).over(as_sampling(sampling))
        self._refuse_bound(rest)
        free = [name for name in self._parameters() if name not in self.bound]
        if self.bound and args:  # positions count the parameters that are still free
            if len(args) > len(free):
                raise TypeError(f"{self.name}() takes {len(free)} more arguments, {len(args)} were given")
            for name, value in zip(free, args):
                if name in rest:
                    raise TypeError(f"{self.name}(): multiple values for argument {name!r}")
                rest[name] = value
            args = ()
        given = {**self.bound, **rest}
        if missing is not None:
            args, given = self._completed(args, given, missing)
        try:
            self._signature.bind(None, *args, **given)
        except TypeError as error:
            raise TypeError(f"{self.name}(): {error}") from None
        return call, lambda state: state._stream.executor.watched(self._fn)(state, *args, **given)

    def _completed(
        self, args: tuple[Any, ...], given: dict[str, Any], missing: Callable[[str], Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, and what `missing` makes for the required ones that are not among them."""
        positional = [p for p in self._free() if p.kind is inspect.Parameter.POSITIONAL_ONLY]
        args += tuple(missing(p.name) for p in positional[len(args) :] if p.default is p.empty)
        taken = [p.name for p in self._free()[: len(args)]]
        for parameter in self._free():
            variadic = parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
            required = parameter.default is parameter.empty and not variadic
            if required and parameter.name not in taken and parameter.name not in given:
                given[parameter.name] = missing(parameter.name)
        return args, given

    def _free(self) -> list[inspect.Parameter]:
        return list(self._signature.parameters.values())[1:]

    def _parameters(self) -> list[str]:
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        return [name for name, p in list(self._signature.parameters.items())[1:] if p.kind in kinds]

    def _takes_any_keyword(self) -> bool:
        return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in self._signature.parameters.values())

    def _refuse_bound(self, kwargs: Mapping[str, Any]) -> None:
        twice = [name for name in kwargs if name in self.bound]
        if twice:
            raise DuplicateArgumentError(
                f"{self.name}: {twice[0]!r} was bound to {self.bound[twice[0]]!r} before; leave it out, or use the "
                "program without that binding"
            )


@overload
def function(fn: Callable[..., Any]) -> Program: ...
@overload
def function(
    fn: None = None, *, name: str | None = None, num_api_spec_tokens: int | None = None, **sampling: Any
) -> Callable[[Callable[..., Any]], Program]: ...
def function(
    fn: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    num_api_spec_tokens: int | None = None,
    **sampling: Any,
) -> Program | Callable[[Callable[..., Any]], Program]:
    """Makes a program of a Python function; its first parameter receives the state, whatever it is called.

    Args:
        fn: the function, when used without parentheses.
        name: the program's name; the function's when None.
        num_api_spec_tokens: accepted for programs written for other front ends, and kept.
        **sampling: defaults for every `gen`, such as `temperature=0`.

    Raises:
        TypeError: not a plain function with a parameter for the state, or an unknown keyword.
        SamplingError: a default out of its range.
    """
    defaults = SamplingParams.of(**sampling)
    if fn is not None:
        return Program(fn, name=name, num_api_spec_tokens=num_api_spec_tokens, sampling=defaults)
    return lambda fn: Program(fn, name=name, num_api_spec_tokens=num_api_spec_tokens, sampling=defaults)
