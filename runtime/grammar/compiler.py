"""Constraint → compiled grammar, off the step loop, kept while it is used.

In: a `Constraint`, and once the vocabulary. Out: a `CompiledGrammar`, at once (`compile`) or as a future (`submit`).
A constraint that cannot be enforced fails alone, with `ConstraintError`. No torch here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from ...constraint import Constraint
from ...errors import BackendClosedError, ConstraintError
from ...schema import apart
from .cache import BoundedCache
from .choice import engine_for
from .closing import ClosingGrammar, Steering, pauses
from .llguidance_engine import LLGuidanceEngine
from .matcher import CompiledGrammar
from .texts import texts_of
from .vocabulary import Vocabulary

__all__ = ["Engine", "GrammarCompiler"]

_WORKERS = 2
_AFTER_S = 0.002  # until who waits for a grammar has got it, which threads that work at once would hold up
# What a compiled grammar is taken to cost: measured over real schemas, engines do not report it.
_BASE_COST = 64 * 1024
_COST_PER_CHARACTER = 64


class Engine(Protocol):
    """A grammar engine for one vocabulary."""

    name: str

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        """Makes a constraint ready, or raises ConstraintError."""
        ...


class GrammarCompiler:
    """Compiles constraints for one vocabulary. May be used from many threads.

    Args:
        token_bytes: what each id adds to the text.
        vocab_size: columns of the logits, ≥ `len(token_bytes)`.
        end_ids: every id that ends a text; all are allowed where it may end.
        hf_tokenizer: the transformers tokenizer, which spells forced text.
        special_ids: ids that never stand for text, the end ids among them or not.
        cache_entries: most compiled grammars kept.
        cache_bytes: most memory that they are taken to cost.
        engine: `"llguidance"` or `"xgrammar"` to insist on one; None chooses per constraint (`choice.py`).
        exact: whether masks near a budget's end depend on the text alone, and so take as long as they take (see
            `Steering`).
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        *,
        vocab_size: int,
        end_ids: Iterable[int],
        hf_tokenizer: Any = None,
        special_ids: Iterable[int] = frozenset(),
        cache_entries: int = 512,
        cache_bytes: int = 256 * 1024 * 1024,
        engine: str | None = None,
        exact: bool = False,
    ) -> None:
        self._exact = exact
        self.vocabulary = Vocabulary(
            token_bytes, vocab_size=vocab_size, end_ids=end_ids, hf_tokenizer=hf_tokenizer, special_ids=special_ids
        )
        apart.warm()
        self._engine_name = engine
        self._engines: dict[str, Engine] = {}
        self._cache: BoundedCache[CompiledGrammar] = BoundedCache(cache_entries, cache_bytes)
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._beside: ThreadPoolExecutor | None = None
        self._vocabulary_ready: Future[None] | None = None
        self._compiling = self._preparing = 0
        self._closed = False

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        """The compiled grammar, from the cache or new; blocks while it compiles.

        Raises:
            ConstraintError: no engine enforces it; says why.
            BackendClosedError: after `close()`.
        """
        key = self._key(constraint)
        compiled = self._cache.get(key)
        if compiled is None:
            compiled = self._compile(constraint)
            self._prepare_later(compiled)
            self._cache.put(key, compiled, _cost(constraint))
        return compiled

    def submit(self, constraint: Constraint) -> Future[CompiledGrammar]:
        """Like `compile`, on a worker thread; done at once where the grammar is cached.

        From the first call to `close()` an engine is taken to run: what would hold its steps up is done in a process
        of its own (`lang/schema/apart.py`), and killed there after a while.
        """
        future: Future[CompiledGrammar] = Future()
        cached = self._cache.get(self._key(constraint))
        if cached is not None:
            future.set_result(cached)
            return future
        with self._lock:
            self._check_open()
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="radicel-grammar")
                self._beside = ThreadPoolExecutor(_WORKERS, thread_name_prefix="radicel-steering")
                apart.start()
                self._vocabulary_ready = self._beside.submit(self._prepare_vocabulary)
            self._compiling += 1
            compiling = self._pool.submit(self.compile, constraint)
        compiling.add_done_callback(self._compiled)
        return compiling

    def _prepare_vocabulary(self) -> None:
        """What is made once for a vocabulary, so that no step makes it."""
        pause = self._pauses()
        self.vocabulary.prepare(pause)
        texts_of(self.vocabulary, pause)

    def _compiled(self, _: Future[CompiledGrammar]) -> None:
        with self._lock:
            self._compiling -= 1

    def _prepare_later(self, compiled: CompiledGrammar) -> None:
        """Has what closing takes made by another thread, after the compiling: a request begins to run meanwhile."""
        if not isinstance(compiled, ClosingGrammar):
            return
        with self._lock:
            if self._beside is not None:
                self._preparing += 1
                compiled.steering.making = self._beside.submit(self._prepare, compiled.steering)

    def _prepare(self, steering: Steering) -> None:
        time.sleep(_AFTER_S)
        try:
            self._wait_for(self._vocabulary_ready)
            steering.begin(self._pauses())
        finally:
            with self._lock:
                self._preparing -= 1
                if self._beside is not None:
                    self._beside.submit(steering.warm, self._pauses(1.0), self._is_idle)

    def _pauses(self, rest: float = 0.25) -> Callable[[], None]:
        """Compiling comes first: a request waits for it before it begins, and for the rest beside its prompt."""
        return pauses(lambda: self._compiling > 0, rest)

    def _is_idle(self) -> bool:
        """Whether nobody waits for what is made here."""
        return self._beside is not None and not (self._compiling or self._preparing)

    def close(self) -> None:
        """Ends the workers and drops the cache. A second call does nothing."""
        with self._lock:
            self._closed = True
            pool, self._pool = self._pool, None
            beside, self._beside = self._beside, None
        if pool is not None and beside is not None:
            pool.shutdown(wait=True, cancel_futures=True)
            beside.shutdown(wait=True, cancel_futures=True)
            apart.stop()
        self._cache.clear()

    @staticmethod
    def _wait_for(*making: Future[None] | None) -> None:
        """For what a step would have to wait for else."""
        for one in making:
            if one is not None:
                one.result()

    @property
    def cached(self) -> int:
        """How many compiled grammars are kept."""
        return len(self._cache)

    def _key(self, constraint: Constraint) -> str:
        return f"{constraint.key} {constraint.on_budget}"

    def _compile(self, constraint: Constraint) -> CompiledGrammar:
        engine = self._engine(self._engine_name or engine_for(constraint))
        try:
            if constraint.on_budget != "close":
                compiled = engine.compile(constraint)
                self._wait_for(self._vocabulary_ready)
                return compiled
            steering = Steering(constraint, self.vocabulary, exact=self._exact)
            return ClosingGrammar(engine.compile(constraint), steering, self.vocabulary)
        except ConstraintError:
            raise
        except (RuntimeError, ValueError, RecursionError) as error:
            raise ConstraintError(
                f"{engine.name} cannot compile the {constraint.kind} constraint: {error}", keyword=constraint.kind
            ) from error

    def _engine(self, name: str) -> Engine:
        with self._lock:
            self._check_open()
            if name not in self._engines:
                self._engines[name] = self._new_engine(name)
            return self._engines[name]

    def _new_engine(self, name: str) -> Engine:
        if name == "llguidance":
            return LLGuidanceEngine(self.vocabulary)
        if name == "xgrammar":
            from .xgrammar_engine import XGrammarEngine  # imports torch

            return XGrammarEngine(self.vocabulary)
        raise ValueError(f"engine={name!r}: must be 'llguidance' or 'xgrammar'")

    def _check_open(self) -> None:
        if self._closed:
            raise BackendClosedError("the grammar compiler was closed")


def _cost(constraint: Constraint) -> int:
    characters = len(constraint.text) + sum(map(len, constraint.options))
    return _BASE_COST + _COST_PER_CHARACTER * characters
