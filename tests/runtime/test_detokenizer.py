"""Text out of ids one by one: what decoding all of them gives, no half character, stops cut exactly, ids to match."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from chat_tokenizers import STYLES, make
from hypothesis import given, settings
from hypothesis import strategies as st
from radicel.errors import SamplingError
from radicel.runtime.detokenizer import TextStream
from radicel.runtime.tokenizer import Tokenizer
from tokenizers import AddedToken

_MADE: dict[str, Tokenizer] = {}


def made(style: str = "byte_level") -> Tokenizer:
    if style not in _MADE:
        _MADE[style] = make(style)
    return _MADE[style]


def run(tokenizer: Tokenizer, ids: Sequence[int], **options: Any) -> tuple[TextStream, list[str], int]:
    """The stream after these ids, the pieces it gave, and how many ids it took until a stop."""
    pieces: list[str] = []
    stream = TextStream(tokenizer, on_text=pieces.append, **options)
    taken = 0
    for token_id in ids:
        taken += 1
        if stream.push(token_id):
            break
    stream.finish()
    assert "".join(pieces) == stream.text
    return stream, pieces, taken


def byte_ids(tokenizer: Tokenizer, data: bytes) -> list[int]:
    """One id per byte."""
    table = tokenizer.all_token_bytes()
    return [table.index(bytes([b])) for b in data]


def chars(tokenizer: Tokenizer, *tokens: str) -> list[int]:
    """Ids whose pushed texts are these, as far as the vocabulary has them as single tokens."""
    return [i for token in tokens for i in tokenizer.encode_run(token, at_start=False)]


@pytest.mark.parametrize("style", STYLES)
def test_an_emoji_of_four_bytes_is_one_piece(style: str) -> None:
    tokenizer = made(style)
    ids = byte_ids(tokenizer, "😀客é".encode())
    assert len(ids) == 9
    stream, pieces, _ = run(tokenizer, ids)
    assert pieces == ["😀", "客", "é"]
    assert stream.visible_ids(ids) == (ids, ())


def test_a_token_with_the_tail_of_one_character_and_the_next() -> None:
    whole = "客单价".encode()
    hf_token = AddedToken("X", normalized=False)
    tokenizer = make(more=[hf_token])
    token = tokenizer.hf.convert_tokens_to_ids("X")
    tokenizer._bytes[token] = whole[2:6]
    ids = [*byte_ids(tokenizer, whole[:2]), token, *byte_ids(tokenizer, whole[6:])]
    stream, pieces, _ = run(tokenizer, ids)
    assert pieces == ["客单", "价"]
    stopped, _, taken = run(tokenizer, ids, stop=["单"])
    assert (stopped.text, taken) == ("客", 3)
    again, reasons = stopped.visible_ids(ids)
    assert tokenizer.decode(again) == "客"
    assert reasons == ("stop",)
    assert stream.text == "客单价"


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("text", ["é", "ab😀", "客"])
def test_an_unfinished_character_at_the_end_is_dropped(style: str, text: str) -> None:
    tokenizer = made(style)
    ids = byte_ids(tokenizer, text.encode()[:-1]) if style == "byte_level" else None
    if ids is None:
        ids = chars(tokenizer, text[:-1]) + byte_ids(tokenizer, text[-1].encode()[:-1])
    stream, _, _ = run(tokenizer, ids)
    assert stream.text == text[:-1]
    assert tokenizer.decode(ids) == stream.text
    visible, reasons = stream.visible_ids(ids)
    assert tokenizer.decode(visible) == stream.text
    assert ids[: len(visible)] == visible
    assert reasons == ("stop",)


@pytest.mark.parametrize("style", STYLES)
def test_random_ids_stream_to_what_whole_decoding_gives(style: str) -> None:
    tokenizer = made(style)
    ordinary = [i for i in range(tokenizer.vocab_size) if not tokenizer.is_special(i)]
    draw = random.Random(1)
    for _ in range(200):
        ids = [draw.choice(ordinary) for _ in range(draw.randrange(1, 30))]
        stream, pieces, _ = run(tokenizer, ids)
        data = b"".join(map(tokenizer.token_bytes, ids))
        whole = data.decode(errors="replace")
        unfinished = whole != stream.text
        assert whole.startswith(stream.text)
        assert whole[len(stream.text) :] in ("", "\ufffd")
        assert tokenizer.decode(ids) == stream.text
        if style == "byte_level" and not unfinished:
            assert tokenizer.hf.decode(ids) == stream.text
        visible, reasons = stream.visible_ids(ids)
        assert tokenizer.decode(visible) == stream.text
        assert reasons == (("stop",) if unfinished else ())
        if "\ufffd" not in whole:  # ill-formed bytes before an unfinished character are spelled anew
            assert visible == ids
        assert all(pieces)


@pytest.mark.parametrize("style", STYLES)
@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=20), text=st.text(alphabet="ab é😀\n客", max_size=12))
def test_random_bytes_never_give_half_a_character(style: str, data: bytes, text: str) -> None:
    tokenizer = made(style)
    if style != "byte_level":  # byte fallback has no ids for printable bytes but the characters themselves
        data = bytes(b | 0x80 for b in data)
    ids = chars(tokenizer, text) + byte_ids(tokenizer, data) + chars(tokenizer, text)
    stream, _, _ = run(tokenizer, ids)
    assert stream.text == (text.encode() + data + text.encode()).decode(errors="replace")[: len(stream.text)]
    valid = chars(tokenizer, text)
    assert run(tokenizer, valid)[0].text == text
    in_context = tokenizer.hf.decode([*tokenizer.encode_run("a", at_start=False), *valid])[1:]
    assert in_context == text


@pytest.mark.parametrize("style", ["llama_legacy", "llama_first", "unigram"])
def test_a_leading_space_is_text_after_a_prompt_and_none_at_the_start(style: str) -> None:
    tokenizer = made(style)
    ids = tokenizer.encode("Hello there")
    assert tokenizer.token_bytes(ids[0]).startswith(b" ")
    prompt = tokenizer.encode("Say:")
    after = tokenizer.hf.decode(prompt + ids)[len(tokenizer.hf.decode(prompt)) :]
    assert run(tokenizer, ids)[0].text == after == " Hello there"
    stream, _, _ = run(tokenizer, ids, at_start=True)
    assert stream.text == tokenizer.hf.decode(ids) == "Hello there"
    assert stream.visible_ids(ids) == (ids, ())
    cut, _, _ = run(tokenizer, ids, at_start=True, stop=["lo there"])
    assert tokenizer.decode(cut.visible_ids(ids)[0], at_start=True) == cut.text == "Hel"


def test_special_tokens_leave_no_text_and_stay_in_the_ids() -> None:
    tokenizer = made()
    end, think = tokenizer.hf.convert_tokens_to_ids(["<|im_end|>", "<think>"])
    ids = [think, *chars(tokenizer, "a"), end, *chars(tokenizer, "b"), end]
    stream, _, _ = run(tokenizer, ids)
    assert stream.text == "<think>ab" == tokenizer.hf.decode(ids, skip_special_tokens=True)
    assert stream.visible_ids(ids) == (ids, ())
    spelled, _, _ = run(tokenizer, ids, skip_special_tokens=False)
    assert spelled.text == "<think>a<|im_end|>b<|im_end|>"


def test_a_special_token_inside_a_character_does_not_break_it() -> None:
    tokenizer = made()
    first, second = byte_ids(tokenizer, "é".encode())
    end = tokenizer.hf.convert_tokens_to_ids("<|im_end|>")
    assert run(tokenizer, [first, end, second])[0].text == "é"


def test_the_beginning_of_a_stop_is_never_given_out() -> None:
    tokenizer = made()
    stream, pieces, _ = run(tokenizer, chars(tokenizer, "DEF", "G", "HI", "J"), stop=["DEFGHIJ"])
    assert pieces == []
    assert stream.matched_stop == "DEFGHIJ"
    assert stream.visible_ids(chars(tokenizer, "DEF", "G", "HI", "J")) == ([], ())
    stream, _, _ = run(tokenizer, chars(tokenizer, "Ob", "serv", "ers"), stop=["Observation"])
    assert stream.text == "Observers"
    assert stream.matched_stop is None


def test_a_stop_across_tokens_cuts_inside_a_token() -> None:
    tokenizer = make(more=[AddedToken(t, normalized=False) for t in (",b,", "c,d", ".\n\nNext")])
    a, b, c, dot = [*chars(tokenizer, "a"), *tokenizer.hf.convert_tokens_to_ids([",b,", "c,d", ".\n\nNext"])]
    stream, _, taken = run(tokenizer, [a, b, c, a], stop=["b,c"])
    assert (stream.text, stream.matched_stop, taken) == ("a,", "b,c", 3)
    assert stream.visible_ids([a, b, c]) == ([a, *tokenizer.encode(",")], ("stop",))
    stream, _, _ = run(tokenizer, [a, dot], stop=["\n\n"])
    assert stream.text == "a."
    assert stream.visible_ids([a, dot]) == ([a, *tokenizer.encode(".")], ("stop",))


def test_a_stop_that_ends_with_a_token_leaves_the_ids_as_sampled() -> None:
    tokenizer = made()
    ids = chars(tokenizer, "Hello", "\n", "there")
    stream, _, taken = run(tokenizer, ids, stop=["\n"])
    assert stream.visible_ids(ids[:taken]) == (chars(tokenizer, "Hello"), ())
    kept, _, taken = run(tokenizer, ids, stop=["\n"], keep_stop=True)
    assert kept.text == "Hello\n"
    assert kept.matched_stop == "\n"
    assert kept.visible_ids(ids[:taken]) == (ids[:taken], ())


def test_a_stop_pattern() -> None:
    tokenizer = made()
    ids = chars(tokenizer, "age", " ", "12", ",")
    stream, _, _ = run(tokenizer, ids, stop_regex=[r"\d+,"])
    assert (stream.text, stream.matched_stop) == ("age ", "12,")
    with pytest.raises(SamplingError):
        TextStream(tokenizer, stop_regex=["("])


def test_stops_wait_for_min_tokens() -> None:
    tokenizer = made()
    ids = chars(tokenizer, "a", ".", "b", ".", "c")
    assert len(ids) == 5
    assert run(tokenizer, ids, stop=["."], min_tokens=1)[0].text == "a"
    assert run(tokenizer, ids, stop=["."], min_tokens=2)[0].text == "a.b"
    stream, _, taken = run(tokenizer, ids, stop=["."], min_tokens=3)
    assert (stream.text, taken) == ("a.b", 4)


def test_after_a_stop_nothing_changes_any_more() -> None:
    tokenizer = made()
    stream = TextStream(tokenizer, stop=["."])
    assert [stream.push(i) for i in chars(tokenizer, "a", ".", "b")] == [False, True, True]
    stream.finish()
    assert stream.push(chars(tokenizer, "b")[0]) is True
    assert stream.text == "a"


def test_what_is_held_back_comes_at_the_end() -> None:
    tokenizer = made()
    pieces: list[str] = []
    stream = TextStream(tokenizer, stop=["\n<|endoftext|>"], on_text=pieces.append)
    for token_id in chars(tokenizer, "1", "\n", "2", "\n"):
        stream.push(token_id)
    assert "".join(pieces) == "1\n2"
    stream.finish()
    stream.finish()
    assert "".join(pieces) == stream.text == "1\n2\n"


def test_the_work_of_an_id_does_not_grow() -> None:
    """Lines of our code run for an id, counted: as many for the last of 30,000 as for an early one."""
    tokenizer = made()
    stream = TextStream(tokenizer, stop=["never seen"])
    ids = chars(tokenizer, "Hello there, 客单价 ") * 400

    def lines(token_ids: list[int]) -> int:
        count = 0

        def trace(frame: Any, event: str, arg: Any) -> Any:
            nonlocal count
            count += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            for token_id in token_ids:
                stream.push(token_id)
        finally:
            sys.settrace(before)
        return count

    stream.push(ids[0])
    some = ids[: len(ids) // 20]
    early = lines(some)
    for token_id in ids * 4:
        stream.push(token_id)
    assert lines(some) <= early * 1.01


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from(STYLES), st.booleans())
def test_a_text_that_is_decoded_at_the_end_is_the_one_decoded_on_the_way(data: Any, style: str, at_start: bool) -> None:
    tokenizer = made(style)
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30))
    if data.draw(st.booleans()):
        ids += byte_ids(tokenizer, "é客😀".encode()[: data.draw(st.integers(0, 9))])
    on_the_way, _, _ = run(tokenizer, ids, at_start=at_start)
    at_the_end = TextStream(tokenizer, at_start=at_start)
    for i, token_id in enumerate(ids):
        assert not at_the_end.push(token_id)
        if i == 20:
            assert on_the_way.text.startswith(at_the_end.text)
    at_the_end.finish()
    assert at_the_end.text == on_the_way.text
    assert at_the_end.visible_ids(ids) == on_the_way.visible_ids(ids)


@given(st.data())
def test_a_run_spells_what_its_tokens_spell(data: st.DataObject) -> None:
    tokenizer = made()
    special = [i for i in range(tokenizer.vocab_size) if tokenizer.is_special(i)]
    assert special
    some = st.integers(0, tokenizer.vocab_size - 1) | st.sampled_from(special)
    ids = data.draw(st.lists(some, max_size=12))
    spelt = [tokenizer.token_bytes(i) for i in ids]
    shown = [tokenizer.token_bytes(i) for i in ids if not tokenizer.is_special(i)]
    assert tokenizer.run_bytes(ids, skip_special_tokens=False) == b"".join(spelt)
    assert tokenizer.run_bytes(ids, skip_special_tokens=True) == b"".join(shown)
