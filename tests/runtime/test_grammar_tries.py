"""Trees of texts, and ordinary tokens: equal to what is found by looking at every text."""

from __future__ import annotations

import random

import numpy as np
import pytest
from radicel.runtime.grammar import ordinary
from radicel.runtime.grammar.kinds import within
from radicel.runtime.grammar.texts import texts_of
from radicel.runtime.grammar.tries import Trie
from radicel.runtime.grammar.vocabulary import Vocabulary

TOKENS = [
    *(bytes([byte]) for byte in range(256)),
    b"ab",
    b"abc",
    b'abc"',
    b'", "',
    b'a", "',
    b"   ",
    b'  "a',
    "é日".encode(),
]
TOKENS += ["日".encode()[:2], b"ab" + "日".encode()[:2], b"ab", b""]


def tree_of(texts: list[tuple[int, ...]]) -> Trie:
    sizes = np.array([len(text) for text in texts], np.int32)
    flat = np.array([symbol for text in texts for symbol in text], np.int32)
    return Trie(flat, (np.cumsum(sizes) - sizes).astype(np.int32), sizes)


@pytest.mark.parametrize("seed", range(30))
def test_a_tree_has_each_beginning_once_and_each_text_at_its_end(seed: int) -> None:
    draw = random.Random(seed)
    texts = [tuple(draw.randrange(3) for _ in range(draw.randrange(6))) for _ in range(draw.randrange(30))]
    tree = tree_of(texts)
    waiting: list[tuple[int, tuple[int, ...]]] = [(0, ())]
    while waiting:
        node, start = waiting.pop()
        one = np.array([node], np.int32)
        assert sorted(tree.texts_at(one)[0].tolist()) == [i for i, text in enumerate(texts) if text == start]
        below = [i for i, text in enumerate(texts) if text[: len(start)] == start]
        assert sorted(tree.texts_below(one).tolist()) == below
        children, parents = tree.children(one)
        symbols = tree.symbols[children].tolist()
        assert parents.tolist() == [0] * len(children)
        assert symbols == sorted({texts[i][len(start)] for i in below if len(texts[i]) > len(start)})
        waiting += [(child, (*start, symbol)) for child, symbol in zip(children.tolist(), symbols)]


def test_what_belongs_to_several_nodes_says_to_which() -> None:
    tree = tree_of([(1,), (1, 2), (3,), (1, 4), (3, 5), (1,)])
    nodes, _ = tree.children(np.zeros(1, np.int32))
    texts, owners = tree.texts_at(nodes)
    assert sorted(zip(texts.tolist(), owners.tolist())) == [(0, 0), (2, 1), (5, 0)]
    children, parents = tree.children(nodes)
    assert list(zip(tree.symbols[children].tolist(), parents.tolist())) == [(2, 0), (4, 0), (5, 1)]


def test_ordinary_tokens_are_those_of_such_characters_alone() -> None:
    vocabulary = Vocabulary(TOKENS, vocab_size=len(TOKENS) + 1, end_ids={len(TOKENS)})
    texts = texts_of(vocabulary)
    flags = within(texts.codes, ordinary.FREE).astype(np.bool_)
    found = ordinary.ordinary_of(vocabulary, flags)
    assert found is not None
    assert ordinary.ordinary_of(vocabulary, flags.copy()) is found

    def size(data: bytes) -> int | None:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return None
        return len(text) if text and not any(c in '"\\' or c < " " for c in text) else None

    for first in range(len(found.sizes)):
        for last in range(first, len(found.sizes)):
            sizes = set(found.sizes[first : last + 1].tolist())
            bits = np.flatnonzero(np.unpackbits(found.mask(first, last).view(np.uint8), bitorder="little"))
            assert bits.tolist() == [i for i, data in enumerate(TOKENS) if size(data) in sizes]
    others = texts.ids[found.others].tolist()
    late = set(texts.late.tolist())
    assert sorted(others) == [i for i, data in enumerate(TOKENS) if data and size(data) is None and i not in late]
    runs = dict(zip(found.runs.tolist(), found.run_sizes.tolist()))
    for node, run in runs.items():
        for which in found.trie.texts_below(np.array([node], np.int32)).tolist():
            text = TOKENS[others[which]].decode(errors="ignore")
            plain = [c not in '"\\' and c >= " " for c in text]
            assert (plain.index(False) if False in plain else len(plain)) == run


def test_few_ordinary_tokens_are_followed_like_all_others() -> None:
    vocabulary = Vocabulary(TOKENS, vocab_size=len(TOKENS) + 1, end_ids={len(TOKENS)})
    codes = texts_of(vocabulary).codes
    assert ordinary.ordinary_of(vocabulary, codes == ord("a")) is None
