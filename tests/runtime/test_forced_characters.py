"""Forced bytes that begin or end inside a character are never spelled as a replacement character."""

from __future__ import annotations

import random

import numpy as np
import pytest
from radicel import Constraint
from radicel.runtime.grammar import GrammarCompiler, mask_words

BYTES = [bytes([i]) for i in range(256)] + ["\ufffd".encode(), "é".encode(), b"", b""]
END = 259


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(BYTES, vocab_size=len(BYTES), end_ids=frozenset({END}), special_ids=frozenset({258}))


@pytest.mark.parametrize("pattern", [r"[\uff71-\uff9d]+", "[😀-🙏]{1,3}", r"[^\W\d_]+", "ﾎ+é"])
def test_every_forced_id_is_accepted_at_any_byte_of_a_character(compiler: GrammarCompiler, pattern: str) -> None:
    grammar = compiler.compile(Constraint.regex(pattern))
    rng = random.Random(pattern)
    for _ in range(40):
        matcher = grammar.matcher()
        for _ in range(12):
            forced = matcher.forced_tokens()
            trial = matcher.fork()
            assert all(trial.accept(token) for token in forced)
            row = np.zeros(mask_words(len(BYTES)), np.int32)
            matcher.fill_mask(row)
            allowed = [i for i in range(len(BYTES)) if row[i >> 5] >> (i & 31) & 1]
            high = [i for i in allowed if BYTES[i][:1] >= b"\x80"] or allowed
            token = rng.choice(high)
            assert matcher.accept(token)
            if token == END:
                break
