"""The most of a text that appending forced text can reach, and where what is reached differs.

In: a text under a grammar, the ids that were written. Out: counts of the tokens that the tokenizer makes of the text,
by what the grammar says of their bytes: a byte is forced where no other one, and no end, could stand there after all
that is before it. A token is in the bound where all of its bytes are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from radicel import LocalRuntime
from radicel.constraint import Constraint
from radicel.runtime.grammar import GrammarCompiler

__all__ = ["BOUND", "CAUSES", "counted"]

CAUSES = {
    "free": "no byte is forced: what the values are",
    "mixed": 'a byte that is chosen and forced ones in a token: the `",` that ends a text',
    "reached": "in the bound, and appended",
    "held back": "in the bound, but a longer token that the grammar allows begins with it",
    "not seen": "in the bound, where the engine names no forced bytes",
    "spelled otherwise": "in the bound, but its bytes were written in other tokens, some of them by the model",
}
BOUND = ("reached", "held back", "not seen", "spelled otherwise")
"""Those of the tokens whose bytes are all forced."""


def counted(runtime: LocalRuntime, type_: Any, text: str, ids: Sequence[int]) -> tuple[Counter[str], Counter[str]]:
    """How many tokens of the text there are by `CAUSES`; and the texts of those of the bound that were not reached."""
    constraint = Constraint.of(type_)
    flags = forced_bytes(constraint, text.encode())
    written = spans_written(runtime, constraint, ids)
    vocabulary = runtime._grammars.vocabulary
    found: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    begin = 0
    for token in vocabulary.encode(text):
        end = begin + len(vocabulary.text_bytes[token])
        inside = flags[begin:end]
        if all(inside):
            cause = written.get((begin, end), "spelled otherwise")
            if cause != "reached":
                missed[vocabulary.text_bytes[token].decode("utf-8", "replace")] += 1
        else:
            cause = "mixed" if any(inside) else "free"
        found[cause] += 1
        begin = end
    return found, missed


def forced_bytes(constraint: Constraint, data: bytes) -> list[bool]:
    """Of each byte, whether no other one could stand there."""
    end = 256
    compiler = GrammarCompiler([bytes([byte]) for byte in range(end)], vocab_size=end + 1, end_ids={end})
    matcher = compiler.compile(constraint).matcher()
    row = compiler.vocabulary.empty_mask()
    found = []
    for byte in data:
        matcher.fill_mask(row)
        found.append(int(np.unpackbits(row.view(np.uint8)).sum()) == 1)
        assert matcher.accept(byte)
    return found


def spans_written(runtime: LocalRuntime, constraint: Constraint, ids: Sequence[int]) -> dict[tuple[int, int], str]:
    """The bytes of each token that was written, and why it was not appended as forced, if it was not."""
    vocabulary = runtime._grammars.vocabulary
    matcher: Any = runtime._grammars.compile(constraint).matcher()
    core = getattr(matcher, "_inner", matcher)._core
    found: dict[tuple[int, int], str] = {}
    at = number = 0
    while number < len(ids):
        appended, cause = matcher.forced_tokens(), "reached"
        if not appended or list(ids[number : number + len(appended)]) != appended:  # at the end of a budget
            cause = "held back" if core.forced_bytes() else "not seen"
            appended = [ids[number]]
        for token in appended:
            assert matcher.accept(token)
            found[at, at + len(vocabulary.text_bytes[token])] = cause
            at += len(vocabulary.text_bytes[token])
        number += len(appended)
    return found
