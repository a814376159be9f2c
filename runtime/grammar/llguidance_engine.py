"""The engine llguidance behind the matcher contract: the default for every kind of constraint.

In: a `Constraint`. Out: a `CompiledGrammar`. Measured sound on what `lang/schema` lets through, and quick to compile.
No torch here.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance._tokenizer import TokenizerWrapper

from ...constraint import Constraint
from ...errors import ConstraintError
from ..cores import usable_cores
from .ahead import MOST_THREADS, MaskState
from .matcher import Mask
from .session import Session
from .sources import llguidance_grammar
from .vocabulary import Vocabulary

__all__ = ["LLGuidanceEngine", "LLGuidanceGrammar"]


class LLGuidanceEngine:
    """Compiles constraints for one vocabulary with llguidance. Used from many threads."""

    name = "llguidance"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        wrapper = TokenizerWrapper(_Tokens(vocabulary))
        self.tokenizer = LLTokenizer(wrapper, eos_token=sorted(vocabulary.end_ids))

    def compile(self, constraint: Constraint) -> LLGuidanceGrammar:
        """Makes a constraint ready.

        Raises:
            ConstraintError: llguidance cannot read or enforce it.
        """
        grammar = llguidance_grammar(constraint, self._vocabulary.tool_format)
        began = time.perf_counter()
        matcher = self._start(grammar)
        quickly = time.perf_counter() - began < _QUICK_S
        probe = matcher.deep_copy()
        if not matcher.is_error():
            probe.compute_bitmask()  # what is too complex often shows in the first mask
        if probe.is_error():
            reason = _reason(probe)
            keyword = next((name for said, name in _KEYWORDS.items() if said in reason), constraint.kind)
            raise ConstraintError(f"the {constraint.kind} constraint cannot be enforced: {reason}", keyword=keyword)
        most = min(MOST_THREADS, usable_cores()) if quickly else 1
        return LLGuidanceGrammar(matcher, self._vocabulary, lambda: self._start(grammar), most)

    def _start(self, grammar: str) -> LLMatcher:
        return LLMatcher(self.tokenizer, grammar, log_level=0, limits=_LIMITS)


_QUICK_S = 0.03
"""A grammar that is compiled within this time is compiled again for more lanes."""
_CROWDED = 2
"""So many matchers of one lane call for another."""

# Some real schemas have thousands of optional keys; four items a key in one row. Error texts stay free of the schema.
_LIMITS = LLParserLimits(max_items_in_row=60_000, step_max_items=400_000, verbose_errors=False)

# What the engine says, and the keyword that it speaks of.
_KEYWORDS = {"patternProperty": "patternProperties", "maxProperties": "minProperties", "range": "minimum"}


class LLGuidanceGrammar:
    """A `CompiledGrammar` of llguidance.

    Copies of an `LLMatcher` share its lexer behind a lock that is held while a mask is computed, so the masks of copies
    are never computed side by side. Where many sequences are under one grammar it is compiled again: each compilation
    is a lane, and the matchers that live at one time are spread over the lanes.

    Args:
        start: a matcher at the start.
        vocabulary: of the masks.
        again: compiles another `start`.
        most: how many lanes there may be.
    """

    engine = "llguidance"

    def __init__(self, start: LLMatcher, vocabulary: Vocabulary, again: Callable[[], LLMatcher], most: int = 1) -> None:
        self._lanes = [_Lane(start)]
        self._vocabulary = vocabulary
        self._again = again
        self._most = most
        self._lock = threading.Lock()

    def matcher(self) -> Session:
        """A fresh matcher at the start."""
        with self._lock:
            lane = min(self._lanes, key=len)
            if len(lane) >= _CROWDED and len(self._lanes) < self._most:
                lane = _Lane(self._again())
                self._lanes.append(lane)
            return Session(lane.core(lane.start.deep_copy()), self._vocabulary)


class _Lane:
    """The matchers that share a lexer. Its length is how many of them live."""

    def __init__(self, start: LLMatcher) -> None:
        self.start = start
        self._cores: weakref.WeakSet[_Core] = weakref.WeakSet()

    def core(self, matcher: LLMatcher) -> _Core:
        """A core of a copy."""
        made = _Core(matcher, self)
        self._cores.add(made)
        return made

    def __len__(self) -> int:
        return len(self._cores)


class _Core:
    def __init__(self, matcher: LLMatcher, lane: _Lane) -> None:
        self._matcher = matcher
        self._lane = lane

    def consume(self, token_id: int) -> bool:
        # A refused token would leave the matcher in its error state for good: it is only tried.
        return not self._matcher.is_stopped() and self._matcher.try_consume_tokens([token_id]) == 1

    def consume_all(self, ids: Sequence[int]) -> bool:
        ids = list(ids)
        if self._matcher.is_stopped():
            return not ids
        done = self._matcher.try_consume_tokens(ids)
        if done < len(ids) and done:
            self.undo(done)
        return bool(done == len(ids))

    def fill(self, row: Mask) -> None:
        self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)

    def allows(self, ids: Sequence[int]) -> bool:
        return bool(self._matcher.validate_tokens(list(ids)) == len(ids))

    def mask_state(self) -> MaskState | None:
        return None if self._matcher.is_stopped() else MaskState(id(self._lane), self._matcher)

    def undo(self, count: int) -> None:
        if not self._matcher.rollback(count):
            raise ConstraintError(f"llguidance cannot take back {count} tokens: {_reason(self._matcher)}")

    def copy(self) -> _Core:
        return self._lane.core(self._matcher.deep_copy())

    def may_end(self) -> bool:
        return bool(self._matcher.is_accepting())

    def must_end(self) -> bool:
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    def forced_bytes(self) -> bytes:
        return bytes(self._matcher.compute_ff_bytes())

    def error(self) -> str | None:
        return _reason(self._matcher) if self._matcher.is_error() else None


def _reason(matcher: LLMatcher) -> str:
    lines = matcher.get_error().strip().splitlines()
    first = lines[0] if lines else "no text is allowed"
    if "symbols.len()" in first:
        return "it has more parts than the engine holds (65,535)"
    return first.split("JSON schema: ")[-1]


class _Tokens:
    """The tokenizer in the form that llguidance asks for."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = min(vocabulary.end_ids)
        self.bos_token_id = None
        special = vocabulary.special_ids
        self.tokens = [
            (b"<|special|>" if i in special else text) for i, text in enumerate(vocabulary.text_bytes)
        ]  # fmt: skip
        self.special_token_ids = sorted(special)
        self._vocabulary = vocabulary

    def __call__(self, text: Any) -> list[int]:
        data = text if isinstance(text, bytes) else str(text).encode()
        return self._vocabulary.encode(data.decode("utf-8", "replace"))
