"""What is needed after each token: found for all at once, equal to each followed alone; and budgets kept by it."""

from __future__ import annotations

import functools
import gc
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from radicel.accepts import _compiler
from radicel.constraint import Constraint
from radicel.runtime.grammar import GrammarCompiler, ordinary, places, spread
from radicel.runtime.grammar.kinds import borders_of, sets_of
from radicel.runtime.grammar.needs import NEVER, Needs
from radicel.runtime.grammar.outline import Outline
from radicel.runtime.grammar.reach import Reach, TooMuchWork
from radicel.runtime.grammar.vocabulary import Vocabulary
from radicel.schema.constraint_rules import constraint_rules

PIECES = (
    '", "', '": "', '": ', '{"', '"}', '"]', ", ", "[{", "}, {", '["', "[[", "[[[[[[[[", "true", "null", "10", "00",
    "-1", "\\n", '\\"', "name", "tags", "the", " of", "ing", "aaaaaaaa", "2024-", "-01", "é", "日本",
    '", "name": ', '": [', "]]", "}}", "  ", "0000000000000000", "abcdefghijklmnopqrstuvwxyz", "((((", 16 * "(",
)  # fmt: skip
HALVES = ["日".encode()[:2], "😀".encode()[:2], "😀".encode()[:3], b"a" + "é".encode()[:1], "é".encode()[1:] + b'"']
TOKENS = [*(bytes([byte]) for byte in range(256)), *(piece.encode() for piece in PIECES), *HALVES]
END = len(TOKENS)
FLAT = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["name", "tags"],
    "additionalProperties": False,
}
CONSTRAINTS = [
    Constraint.of(FLAT),
    Constraint.of(FLAT, any_order=True),
    Constraint.of({"type": "string", "minLength": 3, "maxLength": 30}),
    Constraint.of({"type": "string", "pattern": "[0-9]{5}"}),
    Constraint.of({"type": "array", "items": {"type": "string", "format": "date"}}),
    Constraint.of({}),
    Constraint.regex("[a-z]*(foo|客单价)?"),
    Constraint.grammar('root ::= "(" root ", the rest of it)" | "x"'),
    Constraint.of(FLAT).thinking(),
]


@functools.cache
def compiler() -> GrammarCompiler:
    return GrammarCompiler(TOKENS, vocab_size=END + 1, end_ids={END})


def reach_of(made: Constraint, vocabulary: Vocabulary) -> Reach:
    return Reach(Outline(*constraint_rules(made)), vocabulary)


def known_needs(needs: Needs) -> dict[int, int]:
    found = dict(zip(needs.ids.tolist(), needs.needs.tolist()))
    for need, mask in needs.by_size:
        for token_id in np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist():
            assert token_id not in found
            found[token_id] = need
    return found


@pytest.mark.parametrize("ordinary", [0, 10_000], ids=["by length", "one by one"])
@pytest.mark.parametrize("made", CONSTRAINTS, ids=str)
def test_all_tokens_need_what_each_needs_alone(
    made: Constraint, ordinary: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spread, "_FEWEST_ORDINARY", ordinary)
    vocabulary = compiler().vocabulary
    all_at_once, alone = reach_of(made, vocabulary), reach_of(made, vocabulary)
    draw = random.Random(3)
    matcher = compiler().compile(made).matcher()
    row = vocabulary.empty_mask()
    place = all_at_once.number(all_at_once.start)
    place_alone = alone.number(alone.start)
    for _ in range(12):
        wanted = {i: alone.need_after(place_alone, data) for i, data in enumerate(TOKENS)}
        wanted = {i: need for i, need in wanted.items() if need < NEVER}
        found = all_at_once.after(place)
        assert known_needs(found) == wanted
        assert found.most == max(wanted.values(), default=NEVER)
        for remaining in (1, 2, 5, 9, 30):
            mask = found.within(remaining, vocabulary.size)
            bits = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
            assert bits == sorted(i for i, need in wanted.items() if need < remaining)
        matcher.fill_mask(row)
        ids = [i for i in wanted if row[i >> 5] >> (i & 31) & 1 and TOKENS[i].isascii()]
        if not ids:
            break
        token = draw.choice(ids)
        assert matcher.accept(token)
        place = all_at_once.walk(place, TOKENS[token].decode())
        place_alone = alone.walk(place_alone, TOKENS[token].decode())


@pytest.mark.parametrize("made", CONSTRAINTS[:4], ids=str)
def test_what_must_be_exact_is_followed_to_its_end(made: Constraint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a step may do next to nothing; otherwise what is known depends on what was followed before."""
    vocabulary = compiler().vocabulary
    wanted = reach_of(made, vocabulary)
    outline = Outline(*constraint_rules(made))
    found = [Reach(outline, vocabulary, exact=exact) for exact in (True, False)]
    place = wanted.after(wanted.number(wanted.start))
    monkeypatch.setattr(places, "_MOST_WORK", 0)
    exact, other = ([reach.number(reach.start), reach] for reach in found)
    assert known_needs(exact[1].after(exact[0])) == known_needs(place)
    with pytest.raises(TooMuchWork):
        other[1].after(other[0])


@pytest.mark.parametrize("made", [*CONSTRAINTS[:3], Constraint.of({"additionalProperties": {"maxLength": 9}})], ids=str)
def test_a_real_vocabulary_is_followed_as_each_token_alone(made: Constraint, model_dir: Path) -> None:
    """A sample of its tokens, at the places of a random text; those allowed by the masks all the same."""
    from transformers import AutoTokenizer

    vocabulary = _compiler(AutoTokenizer.from_pretrained(model_dir)).vocabulary
    all_at_once, alone = reach_of(made, vocabulary), reach_of(made, vocabulary)
    draw = random.Random(4)
    place, place_alone = all_at_once.number(all_at_once.start), alone.number(alone.start)
    for _ in range(10):
        found = known_needs(all_at_once.after(place))
        sample = [*draw.sample(range(vocabulary.size), 1_500), *draw.sample(sorted(found), min(300, len(found)))]
        for token_id in sample:
            data = vocabulary.text_bytes[token_id]
            if data:
                need = alone.need_after(place_alone, data)
                assert found.get(token_id, NEVER) == need, data
        going_on = [i for i in sorted(found) if vocabulary.text_bytes[i].isascii() and found[i] > 0]
        if not going_on:
            break
        text = vocabulary.text_bytes[draw.choice(going_on)].decode()
        place, place_alone = all_at_once.walk(place, text), alone.walk(place_alone, text)


ODD = {
    '"': Constraint.of({"type": "string", "pattern": r"^(\w|[一-丌à-ÿ])+-[^x\u0100-\u0200]*$"}),
    '["http://a.de/': Constraint.of({"type": "array", "items": {"type": "string", "format": "iri"}}),
    '"a': Constraint.of({"type": "string", "minLength": 3, "maxLength": 9}),
    "": Constraint.regex("([^a]|😀x|[日-本]{2}y)*"),
    '"客': Constraint.of({"enum": ["客单价", "客单", "ß"]}),
}


@pytest.mark.parametrize("begun", ODD)
def test_a_character_in_no_token_leads_where_the_outline_says(begun: str) -> None:
    outline = Outline(*constraint_rules(ODD[begun]))
    found = places.Places(outline, compiler().vocabulary, lambda: None)
    borders = borders_of(sets_of(outline.rules.values(), lambda: None)).tolist()
    edges = [code + more for code in borders for more in (-1, 0, 1)]
    draw = random.Random(8)
    codes = [*edges, *(draw.randrange(0x11_0000) for _ in range(200)), *map(ord, "客单价ßàÿ一丌😀日本")]
    odd = [chr(code) for code in codes if 0x80 <= code < 0x11_0000 and not 0xD800 <= code < 0xE000]
    number = begin = found.walk(found.number(found.start), begun)
    checked = 0
    for _ in range(40):
        live = []
        for char in draw.sample(odd, min(len(odd), 120)):
            later = outline.step(found.place(number), char)
            wanted = found.number(later) if later.readings else places.DEAD
            assert found.walk(number, char) == wanted, char
            live += [char] * (wanted != places.DEAD)
        checked += len(live)
        after = found.walk(number, draw.choice([*live, *"a-x"]))
        number = begin if after == places.DEAD else after
    assert checked > 0


def written(made: Constraint, compiler: GrammarCompiler, budget: int, draw: random.Random) -> tuple[str, bool]:
    """A random text within a budget, forced runs as an engine takes them; and whether it ended whole."""
    matcher: Any = compiler.compile(made).matcher()
    row = compiler.vocabulary.empty_mask()
    out: list[int] = []
    while len(out) < budget and not matcher.is_terminated():
        ids = matcher.forced_tokens_within(budget - len(out))
        if not ids:
            matcher.fill_mask_within(row, budget - len(out))
            bits = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
            going_on = [i for i in bits if i != END]
            if not going_on:
                break
            ids = [draw.choice(going_on)]
        for token_id in ids[: budget - len(out)]:
            assert matcher.accept(token_id)
            out.append(token_id)
    return b"".join(TOKENS[i] for i in out).decode("utf-8", "replace"), matcher.is_complete()


@pytest.mark.parametrize("ordinary", [0, 10_000], ids=["by length", "one by one"])
@pytest.mark.parametrize("made", [made for made in CONSTRAINTS if made.on_budget == "close"], ids=str)
def test_every_budget_that_the_known_completion_fits_is_kept(
    made: Constraint, ordinary: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spread, "_FEWEST_ORDINARY", ordinary)
    vocabulary = compiler().vocabulary
    known = reach_of(made, vocabulary)
    least = known.need(known.number(known.start))
    draw = random.Random(5)
    one = compiler()
    for budget in (*range(least, least + 6), least + 13, least + 30):
        for _ in range(2):
            text, whole = written(made, one, budget, draw)
            assert whole, (budget, text)
            made.parse(text)


def test_a_token_that_begins_many_things_is_allowed_only_where_all_of_them_can_end() -> None:
    """Each parenthesis of a token asks for fifteen more tokens; the zone must begin before one is too many."""
    made = Constraint.from_gen(grammar='root ::= "(" root ", the rest of it)" | "x"', on_budget="close")
    assert made is not None
    one = compiler()
    for budget in (1, 20, 80, 160, 320):
        for seed in range(4):
            text, whole = written(made, one, budget, random.Random(seed))
            assert whole, (budget, text)


def test_a_mask_loses_what_does_not_fit_and_nothing_else() -> None:
    made = Constraint.of({"type": "string", "pattern": "[0-9]{5}"})
    one = compiler()
    matcher: Any = one.compile(made).matcher()
    vocabulary = one.vocabulary
    row, plain = vocabulary.empty_mask(), vocabulary.empty_mask()
    for token in ('"', "the", " of"):
        assert matcher.accept(TOKENS.index(token.encode()))
    known = reach_of(made, vocabulary)
    place = known.walk(known.number(known.start), '"the of')
    least = known.need(place)
    assert least == 4  # 00, 00, 0 and the quote
    for remaining in range(least, least + 20):
        matcher.fill_mask(plain)
        matcher.fill_mask_within(row, remaining)
        for token_id, data in enumerate(TOKENS):
            was = bool(plain[token_id >> 5] >> (token_id & 31) & 1)
            fits = known.need_after(place, data) < remaining
            assert bool(row[token_id >> 5] >> (token_id & 31) & 1) == (was and fits), (remaining, data)
    most = known.after(place).most
    assert most == 7  # one that begins a character of four bytes
    matcher.fill_mask(plain)
    matcher.fill_mask_within(row, most + 1)
    assert (row == plain).all()
    matcher.fill_mask_within(row, most)
    assert (row != plain).any()


def test_forced_text_that_does_not_fit_as_it_is_spelled_is_left_to_the_masks() -> None:
    class Letters(Vocabulary):
        """Spells texts letter by letter."""

        def encode(self, text: str) -> list[int]:
            return list(text.encode())

    made = Constraint.of({"const": {"name": ["abcdefghijklmnopqrstuvwxyz"]}})
    one = GrammarCompiler(TOKENS, vocab_size=END + 1, end_ids={END})
    one.vocabulary.__class__ = Letters
    for budget in (10, 20, 42, 60):
        text, whole = written(made, one, budget, random.Random(1))
        assert whole
        assert text == '{"name": ["abcdefghijklmnopqrstuvwxyz"]}'
    matcher: Any = one.compile(made).matcher()
    assert matcher.forced_tokens_within(10) == []
    assert len(matcher.forced_tokens_within(60)) > 10
    assert matcher.forced_tokens() == matcher.forced_tokens_within(4_000)


def test_what_takes_too_long_goes_on_when_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Constraint.of(FLAT)
    vocabulary = compiler().vocabulary
    whole = reach_of(made, vocabulary)
    wanted = known_needs(whole.after(whole.number(whole.start)))
    monkeypatch.setattr(places, "_MOST_WORK", 1)
    known = reach_of(made, vocabulary)
    place, asked = known.number(known.start), 0
    while True:
        asked += 1
        try:
            found = known.after(place)
            break
        except TooMuchWork:
            assert asked < 2_000
    assert asked > 1
    assert known_needs(found) == wanted


def test_what_was_found_is_forgotten_when_it_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_MOST_PLACES", 10)
    made = Constraint.of(FLAT)
    draw = random.Random(2)
    one = compiler()
    for budget in (20, 30, 60):
        text, whole = written(made, one, budget, draw)
        assert whole, (budget, text)


def test_ordinary_tokens_that_were_forgotten_for_others_are_followed_like_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread, "_FEWEST_ORDINARY", 0)
    vocabulary = Vocabulary(TOKENS, vocab_size=END + 1, end_ids={END})
    known, other = reach_of(Constraint.of(FLAT), vocabulary), reach_of(Constraint.of(FLAT), vocabulary)
    inside = known.walk(known.number(known.start), '{"name": "a')
    wanted = known_needs(known.after(inside))
    assert known.leads(inside)[2] is not None
    ordinary._known[vocabulary].sets.clear()
    gc.collect()
    inside = other.walk(other.number(other.start), '{"name": "a')
    assert other.leads(inside)[2] is None
    assert known_needs(other.after(inside)) == wanted


def test_places_are_followed_ahead_while_it_is_wanted() -> None:
    known = reach_of(Constraint.of(FLAT), compiler().vocabulary)
    known.warm(lambda: None, lambda: False)
    assert known.num_followed == 0
    known.warm(lambda: None, lambda: True, 3)
    assert known.num_followed == 3
    known.warm(lambda: None, lambda: True)
    assert 10 < known.num_followed <= 48
    path = known.path(known.number(known.start))
    assert path is not None
    known.after(known.walk(known.number(known.start), TOKENS[path[0]].decode()))
    assert known.num_followed <= 48, "it was followed already"


def test_a_request_finds_all_ready_that_its_steps_would_wait_for() -> None:
    one = GrammarCompiler(TOKENS, vocab_size=END + 1, end_ids={END})
    try:
        compiled: Any = one.submit(Constraint.of(FLAT)).result(timeout=60)
        compiled.steering.making.result(timeout=60)  # the last token of its prompt waits for this
        assert compiled.steering.is_ready()
        assert compiled.steering.prepare().num_followed > 0
        assert {"_sorted", "_sorted_ids", "_beginnings", "single_bytes"} <= one.vocabulary.__dict__.keys()
        one.submit(Constraint.regex("a")).result(timeout=60)
    finally:
        one.close()
