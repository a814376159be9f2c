"""The engine xgrammar behind the matcher contract: a pushdown automaton over bytes.

In: a `Constraint` of kind grammar, choices or regex, as GBNF. Out: a `CompiledGrammar`. JSON schemas are not given to
it: measured, it accepts eight shapes of schema that it then does not enforce. Importing it imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import xgrammar

from ...constraint import Constraint
from ...errors import ConstraintError
from .matcher import Mask
from .session import Session
from .sources import xgrammar_grammar
from .vocabulary import Vocabulary

__all__ = ["XGrammarEngine", "XGrammarGrammar"]


class XGrammarEngine:
    """Compiles constraints for one vocabulary with xgrammar. Used from many threads."""

    name = "xgrammar"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        info = xgrammar.TokenizerInfo(
            list(vocabulary.text_bytes),
            xgrammar.VocabType.RAW,
            vocab_size=vocabulary.size,
            stop_token_ids=sorted(vocabulary.end_ids),
        )
        # Our own cache holds what is compiled, with a bound.
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, constraint: Constraint) -> XGrammarGrammar:
        """Makes a constraint ready.

        Raises:
            ConstraintError: xgrammar cannot read it.
        """
        try:
            compiled = self._compiler.compile_grammar(xgrammar_grammar(constraint))
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1]
            raise ConstraintError(
                f"the {constraint.kind} constraint cannot be enforced: {reason}", keyword=constraint.kind
            ) from error
        return XGrammarGrammar(compiled, self._vocabulary)


class XGrammarGrammar:
    """A `CompiledGrammar` of xgrammar."""

    engine = "xgrammar"

    def __init__(self, compiled: Any, vocabulary: Vocabulary) -> None:
        self._compiled = compiled
        self._vocabulary = vocabulary

    def matcher(self) -> Session:
        """A fresh matcher at the start."""
        matcher = xgrammar.GrammarMatcher(self._compiled, terminate_without_stop_token=False)
        return Session(_Core(matcher, self._vocabulary), self._vocabulary)


class _Core:
    def __init__(self, matcher: Any, vocabulary: Vocabulary) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary

    def consume(self, token_id: int) -> bool:
        return bool(self._matcher.accept_token(token_id))

    def consume_all(self, ids: Sequence[int]) -> bool:
        for done, token_id in enumerate(ids):
            if not self.consume(token_id):
                self.undo(done)
                return False
        return True

    def fill(self, row: Mask) -> None:
        self._matcher.fill_next_token_bitmask(row.reshape(1, -1), 0)
        self._clear_padding(row)

    def allows(self, ids: Sequence[int]) -> bool:
        allowed = self.consume_all(ids)
        if allowed:
            self.undo(len(ids))
        return allowed

    def mask_state(self) -> None:
        return None

    def undo(self, count: int) -> None:
        if count:
            self._matcher.rollback(count)

    def copy(self) -> _Core:
        return _Core(self._matcher.fork(), self._vocabulary)

    def may_end(self) -> bool:
        return bool(self._matcher.is_completed())

    def must_end(self) -> bool:
        return self.may_end() and not self._goes_on()

    def forced_bytes(self) -> bytes:
        return str(self._matcher.find_jump_forward_string()).encode()

    def error(self) -> str | None:
        return None

    def _goes_on(self) -> bool:
        row = self._vocabulary.empty_mask()
        self.fill(row)
        for end in self._vocabulary.end_ids:
            row[end >> 5] &= ~(1 << (end & 31)) if end & 31 != 31 else 0x7FFFFFFF
        return bool(row.any())

    def _clear_padding(self, row: Mask) -> None:
        spare = self._vocabulary.size & 31
        if spare:
            row[-1] &= (1 << spare) - 1
