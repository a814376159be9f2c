"""Token healing in its parts: what is taken back, which tokens may come then, what a grammar makes of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from chat_tokenizers import STYLES, make
from radicel import SamplingParams
from radicel.chat import PromptEncoder
from radicel.constraint import Constraint
from radicel.prompt import Generated, Part, Text, TurnBegin, TurnEnd
from radicel.runtime.grammar import GrammarCompiler, Matcher
from radicel.runtime.healing import Healed, HealedStream, Healer, open_literal
from radicel.runtime.spellings import PrefixMatcher, Spellings
from radicel.runtime.tokenizer import Tokenizer


@cache
def tokenizer(style: str = "byte_level", bos: bool = False) -> Tokenizer:
    return make(style, bos=bos)


def heal(*prompt: Part, style: str = "byte_level", bos: bool = False, **sampling: object) -> Healed | None:
    codec = tokenizer(style, bos)
    ids = PromptEncoder(codec).encode(prompt).token_ids
    healed = Healer(codec, codec.vocab_size).heal(prompt, ids, SamplingParams.of(**sampling))
    assert healed is None or healed.ids + healed.tail == ids
    return healed


def tail(*prompt: Part, **options: object) -> str | None:
    healed = heal(*prompt, **options)  # type: ignore[arg-type]
    return None if healed is None else healed.text


# -- what is taken back ----------------------------------------------------------------------------------------------


def test_the_longest_end_with_which_a_token_goes_on_is_taken_back() -> None:
    assert tail(Text("Say Hel")) == " Hel"  # " Hello" is a token
    assert tail(Text("Say ")) == " "
    assert tail(Text("Say Hello")) is None  # no token goes on from there


def test_adjacent_literals_are_one() -> None:
    assert tail(Text("Say H"), Text(""), Text("el")) == " Hel"


TURN = (TurnBegin("user"), Text("Hi"), TurnEnd(), TurnBegin("assistant"))


@pytest.mark.parametrize(
    ("prompt", "by_default", "forced"),
    [
        ((Text("Say Hel"),), " Hel", " Hel"),
        ((*TURN, Text("Say Hel")), None, " Hel"),
        (TURN, None, None),
        ((*TURN, Text("x"), TurnEnd(), Text("Say Hel")), " Hel", " Hel"),
        ((Text("Say "), Generated("Hel", (1, 2))), None, None),
        ((Text("Say "), Generated("Hel")), None, None),
        ((Text("Say "), Generated("", ()), Text(" Hel")), " Hel", " Hel"),
        ((Text("Say"), Generated(" He"), Text("l")), "l", "l"),
        ((Text("Say"), Generated(" He"), Text("llo")), None, None),  # " Hello" is one token, half of it not a literal's
        ((Text("Say "), Text("<|im_start|>", special=True)), None, None),
        ((Text("Say <|im_start|>", special=True), Text(" Hel")), " Hel", " Hel"),
    ],
)
def test_literals_are_healed_and_nothing_else(
    prompt: tuple[Part, ...], by_default: str | None, forced: str | None
) -> None:
    assert tail(*prompt) == by_default
    assert tail(*prompt, token_healing=True) == forced
    assert tail(*prompt, token_healing=False) is None


def test_what_stands_before_a_literal_stays() -> None:
    codec = tokenizer()
    prompt = (Text("Say"), Generated(" x", (5, 6)), Text(" Hel"))
    healed = heal(*prompt)
    assert healed is not None
    assert healed.ids[-2:] == (5, 6)
    assert codec.decode(healed.tail) == " Hel"
    assert open_literal(prompt, inside_turns=False) == " Hel"


def test_one_id_stays() -> None:
    assert tail(Text(" Hel")) == "Hel"
    assert tail(Text(" ")) is None
    assert tail(Text(" Hel"), bos=True) == " Hel"
    healed = heal(Text("Hel"), style="llama_first", bos=True)  # its first token begins with a space of its own
    assert healed is not None
    assert healed.text == " Hel"
    assert healed.ids == tokenizer("llama_first", True).bos_ids


def test_ids_given_by_a_caller_and_prompts_whose_probabilities_are_asked_for_stand() -> None:
    codec = tokenizer()
    ids = codec.encode("Say Hel")
    assert Healer(codec, codec.vocab_size).heal(ids, ids, SamplingParams(token_healing=True)) is None
    assert tail(Text("Say Hel"), logprob_start_len=0) is None
    assert tail(Text("Say Hel"), logprob_start_len=0, token_healing=True) == " Hel"


def test_a_stop_id_is_not_taken_back() -> None:
    last, middle = reversed(tokenizer().encode("Hel"))
    assert tail(Text("Say Hel"), stop_token_ids=[middle]) == "l"
    assert tail(Text("Say Hel"), stop_token_ids=[last]) is None


@pytest.mark.parametrize("style", STYLES)
def test_a_tail_is_text_that_ends_the_literal(style: str) -> None:
    rng = random.Random(style)
    parts = ["Hel", " He", "yes", " ", "\n", "\n\n", "Zo", "ë", "客", "😀", "qu", "the", "a", "<think", '{"', "name"]
    found = 0
    for _ in range(300):
        text = "".join(rng.choices(parts, k=rng.randint(1, 5)))
        taken = tail(Text(text), style=style, bos=rng.random() < 0.5)
        if taken is not None:
            assert text.endswith(taken) or " " + text == taken
            found += 1
    assert found > 30


# -- which tokens may come -------------------------------------------------------------------------------------------


def bits(matcher: Matcher, size: int) -> set[int]:
    row = np.zeros((size + 31) // 32, np.int32)
    matcher.fill_mask(row)
    return {i for i in range(size) if row[i >> 5] >> (i & 31) & 1}


def spelled(spellings: Spellings, ids: list[int]) -> bytes:
    return b"".join(map(spellings.token_bytes, ids))


@pytest.mark.parametrize("style", STYLES)
def test_a_mask_holds_the_own_next_token_and_all_that_go_over_the_end(style: str) -> None:
    codec = tokenizer(style)
    spellings = Spellings.of(codec, codec.vocab_size)
    for text in (" Hel", " ", "the", "\n\n", "Zoë", "客单", "a <b"):
        ids = codec.encode_run(text, at_start=False)
        matcher = PrefixMatcher(ids, spellings)
        data = spelled(spellings, ids)
        for done, own in enumerate(ids):
            rest = data[len(spelled(spellings, ids[:done])) :]
            want = {i for i in range(codec.vocab_size) if spellings.token_bytes(i).startswith(rest)} | {own}
            assert bits(matcher, codec.vocab_size) == want
            assert not {i for i in want if codec.is_markup(i)}
            assert not matcher.is_complete()
            assert matcher.accept(own)
        assert matcher.is_complete()
        assert bits(matcher, codec.vocab_size) == set(range(codec.vocab_size))


def test_a_prefix_matcher_keeps_the_contract() -> None:
    """Random walks: masks agree with accept, rollback and fork lead back, an end token only after the prefix."""
    codec = tokenizer()
    spellings = Spellings.of(codec, codec.vocab_size)
    end = codec.hf.eos_token_id
    rng = random.Random(3)
    for _ in range(100):
        ids = codec.encode_run(rng.choice([" Hel", " quick br", "Hello th", "\n\n", "assis"]), at_start=False)
        matcher = PrefixMatcher(ids, spellings, frozenset({end}))
        data, trail = spelled(spellings, ids), []
        while not matcher.is_complete():
            assert not matcher.accept(end)
            token = rng.choice(sorted(bits(matcher, codec.vocab_size)))
            fork = matcher.fork()
            assert matcher.accept(token)
            trail.append(token)
            assert fork.accept(token)
            matcher.rollback(1)
            assert bits(matcher, codec.vocab_size) != bits(fork, codec.vocab_size) or not fork.is_complete()
            matcher = fork
        assert spelled(spellings, trail).startswith(data)
        assert matcher.accept(end)
        assert matcher.is_terminated()
        assert bits(matcher, codec.vocab_size) == set()
        assert not matcher.accept(trail[0])
        matcher.rollback(1 + len(trail))
        assert bits(matcher, codec.vocab_size) == bits(PrefixMatcher(ids, spellings), codec.vocab_size)
        with pytest.raises(ValueError, match="rollback"):
            matcher.rollback(1)
        wrong = next(i for i in range(codec.vocab_size) if spellings.token_bytes(i) == b"z")
        assert not matcher.accept(wrong)


# -- with a grammar --------------------------------------------------------------------------------------------------

CONSTRAINTS = [
    Constraint.regex("(yes|no)"),
    Constraint.regex("[a-c]*"),
    Constraint.regex("(ab)?"),
    Constraint.regex(r'[^"]+"'),
    Constraint.choices(["a", "ab", " b", "/x"]),
    Constraint.dtype(int),
    Constraint.of({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, strict=True),
    Constraint.of({"type": "array", "items": {"enum": ["x", None]}, "maxItems": 2}, whitespace="flexible"),
    Constraint.of(str),
    Constraint.grammar('root ::= "a" root "b" | "c"'),
    Constraint.grammar('start: start "+" N | N\nN: /[0-9]/'),
    Constraint.grammar('root ::= [ x]* following\nfollowing ::= "\'" [a-b]'),
]
BEFORE = [" ", "Answer: ", 'a/"\\', "\n", "é", "([{", "a"]


@cache
def by_bytes() -> GrammarCompiler:
    return GrammarCompiler([bytes([i]) for i in range(256)], vocab_size=257, end_ids={256})


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=lambda c: c.kind)
def test_after_the_prompt_s_end_a_grammar_is_the_same(constraint: Constraint, before: str) -> None:
    plain = by_bytes().compile(constraint).matcher()
    after = by_bytes().compile(Healed((), (), before).constrained(constraint)).matcher()
    for byte in before.encode():
        assert bits(after, 257) == {byte}
        assert not after.is_complete()
        assert after.accept(byte)
    rng = random.Random(before)
    for _ in range(12):
        allowed = bits(plain, 257)
        assert bits(after, 257) == allowed
        assert after.is_complete() == plain.is_complete()
        if plain.is_terminated():
            assert after.is_terminated()
            break
        byte = rng.choice(sorted(allowed - {256}) or [256])
        assert plain.accept(byte)
        assert after.accept(byte)


def test_a_constraint_is_cached_with_what_stands_before_it() -> None:
    constraint = Constraint.regex("(yes|no)")
    assert Healed((), (), " ").constrained(constraint).key != constraint.key
    assert Healed((), (), " ").constrained(constraint).parse("yes") == "yes"


WORDS = [" y", " ye", " yes", "ye", "yes", " n", " no", "no", " H", " Hello", "Hel", " He", " Hel"]


def first_tokens(constraint: Constraint, *tail: str) -> set[str]:
    """What may come first where these tokens are taken back, with every byte and `WORDS` for tokens."""
    names = [*(bytes([i]) for i in range(256)), *(word.encode() for word in WORDS), b""]
    end = len(names) - 1
    compiler = GrammarCompiler(names, vocab_size=len(names), end_ids={end})
    spellings = Spellings(names, len(names), compiler.vocabulary.encode)
    ids = [next(i for i in range(end - 1, -1, -1) if names[i] == word.encode()) for word in tail]
    inner = compiler.compile(Healed((), tuple(ids), "".join(tail)).constrained(constraint)).matcher()
    return {names[i].decode() for i in bits(PrefixMatcher(ids, spellings, frozenset({end}), inner), len(names))}


@pytest.mark.parametrize(
    ("constraint", "tail", "want"),
    [
        # After a space of its own, nothing that this allows would be cut off from the space: it is not taken alone.
        (Constraint.choices(["yes", "no"]), " ", {" y", " ye", " yes", " n", " no"}),
        (Constraint.choices(["yes", "12"]), " ", {" ", " y", " ye", " yes"}),
        (Constraint.regex("(yes)?"), " ", {" ", " y", " ye", " yes"}),  # the text may end there
        (Constraint.choices(["lo", "lp"]), " Hel", {" Hel", " Hello"}),
        (Constraint.choices(["x"]), " Hel", {" Hel"}),
    ],
)
def test_under_a_grammar_the_first_token_is_a_natural_one(constraint: Constraint, tail: str, want: set[str]) -> None:
    assert first_tokens(constraint, tail) == want


def test_of_several_tokens_the_own_ones_stay_allowed() -> None:
    assert first_tokens(Constraint.choices(["yes"]), "x", " ") == {"x"}
    assert first_tokens(Constraint.choices(["lo"]), " H", "e", "l") == {" H", " Hel", " Hello"}


# -- the text --------------------------------------------------------------------------------------------------------


def pieces_of(codec: Tokenizer, healed: Healed, ids: list[int], **options: object) -> tuple[HealedStream, list[str]]:
    pieces: list[str] = []
    stream = HealedStream(codec, healed, on_text=pieces.append, **options)
    for token in ids:
        if stream.push(token):
            break
    stream.finish()
    return stream, pieces


def cases(codec: Tokenizer, rng: random.Random) -> Iterator[tuple[Healed, list[int], str]]:
    """Prompts' ends, and ids that spell them in one of many ways, and more."""
    by_bytes = {codec.token_bytes(i): i for i in range(codec.vocab_size) if not codec.is_markup(i)}
    for _ in range(200):
        end = rng.choice([" Hel", "é", "\n", "quick brown", "客"])
        more = rng.choice(["", "lo", "lo there", "ë!", "客单价", "stop here", "\n\n stop"])
        data, ids = (end + more).encode(), []
        while data:
            length = rng.choice([n for n in range(1, len(data) + 1) if data[:n] in by_bytes])
            ids.append(by_bytes[data[:length]])
            data = data[length:]
        yield Healed((1,), tuple(codec.encode_run(end, at_start=False)), end), ids, more


def test_a_text_begins_after_the_prompt_s_end() -> None:
    codec = tokenizer()
    replaced = hidden = 0
    for healed, ids, more in cases(codec, random.Random(5)):
        stream, pieces = pieces_of(codec, healed, ids)
        assert stream.text == more == "".join(pieces)
        kept, reasons = stream.visible_ids(ids)
        assert (reasons == ("healing",)) == bool(stream.replaced)
        head = healed.tail[: len(healed.tail) - len(stream.replaced)]
        assert healed.tail[len(head) :] == stream.replaced
        if more:
            assert [*head, *kept] == ids
        assert b"".join(map(codec.token_bytes, [*head, *kept])) == (healed.text + more).encode()
        after = b"".join(map(codec.token_bytes, kept[stream.num_hidden :]))
        assert after.endswith(more.encode())
        assert len(kept) - stream.num_hidden == (len(ids) - stream.num_healed if more else 0)
        replaced += bool(stream.replaced)
        hidden += bool(stream.num_hidden)
    assert replaced > 30
    assert hidden > 10


def test_a_stop_never_begins_in_the_prompt_s_end_and_cuts_exactly() -> None:
    codec = tokenizer()
    rng = random.Random(6)
    cut = 0
    for healed, ids, more in cases(codec, rng):
        stop = rng.choice([healed.text[-1] + more[:1], more[:1], more[1:3], "o", "stop"]) or "zz"
        stream, pieces = pieces_of(codec, healed, ids, stop=[stop])
        want = more.partition(stop)[0]
        assert stream.text == want == "".join(pieces)
        kept, reasons = stream.visible_ids(ids)
        head = healed.tail[: len(healed.tail) - len(stream.replaced)]
        assert b"".join(map(codec.token_bytes, [*head, *kept])) == (healed.text + want).encode()
        cut += "stop" in reasons
    assert cut > 10


def test_min_tokens_count_from_the_value_on() -> None:
    codec = tokenizer()
    healed = Healed((1,), tuple(codec.encode_run(" He", at_start=False)), " He")
    ids = [codec.encode_run(c, at_start=False)[0] for c in " Heaaaa"]
    for least, text in ((0, ""), (1, "a"), (3, "aaa")):
        stream, _ = pieces_of(codec, healed, ids, stop=["a"], min_tokens=least)
        assert stream.text == text
        assert stream.num_healed == 3


def test_a_text_that_ends_inside_the_prompt_s_end_is_none() -> None:
    codec = tokenizer()
    healed = Healed((1,), tuple(codec.encode_run(" Hel", at_start=False)), " Hel")
    ids = [codec.encode_run(c, at_start=False)[0] for c in " He"]
    stream, pieces = pieces_of(codec, healed, ids)
    assert (stream.text, pieces, stream.num_left) == ("", [], 1)
    assert stream.visible_ids(ids) == ([], ())
    assert stream.replaced == ()


# -- what later prompts are made of ----------------------------------------------------------------------------------


@pytest.mark.parametrize("style", STYLES)
def test_later_prompts_have_the_ids_that_were_fed(style: str) -> None:
    codec = tokenizer(style)
    encoder = PromptEncoder(codec)
    prompt: tuple[Part, ...] = (Text("Say Hel"),)
    before = encoder.encode(prompt).token_ids
    hello = tuple(codec.encode_run(" Hello", at_start=False))
    taken = len(codec.encode_run(" Hel", at_start=False))
    assert codec.decode(before[-taken:]) == " Hel"
    value = Generated("lo", hello, "stop", before[-taken:])
    later = encoder.encode((*prompt, value, Text(" there")))
    assert later.token_ids[: len(before) - taken + len(hello)] == (*before[:-taken], *hello)
    assert codec.decode(later.token_ids, at_start=True) == "Say Hello there"
    assert later.reencoded == ()
    assert encoder.render((*prompt, value)) == "Say Hello"


def test_in_a_role_turn_too() -> None:
    codec = tokenizer()
    encoder = PromptEncoder(codec)
    prompt = (*TURN, Text("Say Hel"))
    before = encoder.encode(prompt).token_ids
    hello = codec.encode_run(" Hello")
    value = Generated("lo", tuple(hello), "stop", before[-3:])
    open_turn = encoder.encode((*prompt, value))
    assert open_turn.token_ids == (*before[:-3], *hello)
    assert codec.decode(open_turn.token_ids).endswith("\nSay Hello")
    closed = encoder.encode((*prompt, value, TurnEnd(), TurnBegin("user"), Text("?"), TurnEnd()))
    assert closed.token_ids[: len(open_turn.token_ids)] == open_turn.token_ids
    assert (open_turn.reencoded, closed.reencoded) == ((), ())


def test_behind_another_text_the_value_is_encoded_anew() -> None:
    """As where branches are appended one after the other: the second stands behind the first, not the literal."""
    codec = tokenizer()
    encoder = PromptEncoder(codec)
    literal = Text("Say Hel")
    end, hello = encoder.encode((literal,)).token_ids[-3:], tuple(codec.encode_run(" Hello"))
    first = second = Generated("lo", hello, "stop", end)
    joined = encoder.encode((literal, first, second))
    assert codec.decode(joined.token_ids) == "Say Hellolo"
    assert joined.reencoded == ("healing",)
