"""The engine llguidance behind the matcher contract: the default for every kind of constraint.

In: a `Constraint`. Out: a `CompiledGrammar`. Measured sound on what `lang/schema` lets through, and quick to compile.
No torch here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance._tokenizer import TokenizerWrapper

from ...constraint import Constraint
from ...errors import ConstraintError
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

    def compile(self, constraint: Constraint, written: Callable[[], None] = lambda: None) -> LLGuidanceGrammar:
        """Makes a constraint ready; `written` is called once its grammar's text is there.

        Raises:
            ConstraintError: llguidance cannot read or enforce it.
        """
        grammar = llguidance_grammar(constraint, self._vocabulary.tool_format)
        written()
        matcher = LLMatcher(self.tokenizer, grammar, log_level=0, limits=_LIMITS)
        probe = matcher.deep_copy()
        if not matcher.is_error():
            probe.compute_bitmask()  # what is too complex often shows in the first mask
        if probe.is_error():
            reason = _reason(probe)
            keyword = next((name for said, name in _KEYWORDS.items() if said in reason), constraint.kind)
            raise ConstraintError(f"the {constraint.kind} constraint cannot be enforced: {reason}", keyword=keyword)
        return LLGuidanceGrammar(matcher, self._vocabulary)


# Some real schemas have thousands of optional keys; four items a key in one row. Error texts stay free of the schema.
_LIMITS = LLParserLimits(max_items_in_row=60_000, step_max_items=400_000, verbose_errors=False)

# What the engine says, and the keyword that it speaks of.
_KEYWORDS = {"patternProperty": "patternProperties", "maxProperties": "minProperties", "range": "minimum"}


class LLGuidanceGrammar:
    """A `CompiledGrammar` of llguidance."""

    engine = "llguidance"

    def __init__(self, start: LLMatcher, vocabulary: Vocabulary) -> None:
        self._start = start
        self._vocabulary = vocabulary
        self._lock = threading.Lock()

    def matcher(self) -> Session:
        """A fresh matcher at the start."""
        with self._lock:
            return Session(_Core(self._start.deep_copy()), self._vocabulary)


class _Core:
    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def consume(self, token_id: int) -> bool:
        # A refused token would leave the matcher in its error state for good, so it is asked first.
        if self._matcher.is_stopped() or self._matcher.validate_tokens([token_id]) != 1:
            return False
        return bool(self._matcher.consume_token(token_id))

    def fill(self, row: Mask) -> None:
        self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)

    def allows(self, ids: Sequence[int]) -> bool:
        return bool(self._matcher.validate_tokens(list(ids)) == len(ids))

    def mask_state(self) -> LLMatcher | None:
        return None if self._matcher.is_stopped() else self._matcher

    def undo(self, count: int) -> None:
        if not self._matcher.rollback(count):
            raise ConstraintError(f"llguidance cannot take back {count} tokens: {_reason(self._matcher)}")

    def copy(self) -> _Core:
        return _Core(self._matcher.deep_copy())

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
