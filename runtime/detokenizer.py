"""Text out of ids as they come: never half a character, stops cut exactly, constant cost per id.

In: ids, one at a time, on the engine's thread. Out: pieces of text to `on_text`, and where a stop ended it.

The pieces concatenate to `text`, and that is what decoding all the ids at once gives: the tokens' bytes, read as
UTF-8, ill-formed ones as U+FFFD. A character that is unfinished when the ids end is dropped, streamed or not. The
ids continue a prompt, so a leading space that sentencepiece puts into a first token is part of the text; only where
the ids are the whole text (`at_start`) it is not.
"""

from __future__ import annotations

import codecs
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..stops import StopMatcher

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

__all__ = ["TextStream"]

_new_decoder = codecs.getincrementaldecoder("utf-8")


class TextStream:
    """The text of one sequence (a `TextSink`). Where nobody looks at it on the way, it is decoded at the end, at once.

    Args:
        tokenizer: whose ids come.
        stop: strings that end the text.
        stop_regex: patterns that end the text.
        keep_stop: whether the stop stays in the text.
        min_tokens: no stop begins within this many ids, so that a text has at least as many.
        on_text: is called with each piece of text that no stop can take back.
        skip_special_tokens: whether special tokens leave no text.
        at_start: whether nothing stands before the ids, so that sentencepiece's own first space is no text.

    Attributes:
        num_healed: how many of the ids spell nothing but the end of the prompt (`healing.py`); they count for nothing.
        replaced: ids of the prompt that `visible_ids` spell anew.
        num_hidden: how many of `visible_ids`, at their beginning, spell nothing of `text`.

    Raises:
        SamplingError: a stop that cannot be used.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        stop_regex: Sequence[str] = (),
        keep_stop: bool = False,
        min_tokens: int = 0,
        on_text: Callable[[str], None] | None = None,
        skip_special_tokens: bool = True,
        at_start: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._stops = StopMatcher(stop, stop_regex, keep_stop)
        self._min_tokens = min_tokens
        self._on_text = on_text
        self.can_stop = bool(stop or stop_regex)
        self._waits = on_text is None and not self.can_stop
        self._waiting: list[int] = []
        self._skip_special = skip_special_tokens
        self._at_start = at_start
        self._drop_space = at_start and tokenizer.drops_first_space
        self._decoder = _new_decoder(errors="replace")
        self._pieces: list[str] = []
        self._num_chars = 0  # decoded, those held back for a stop included
        # Number of ids and of characters at each border between ids that no character crosses; both ascend.
        self._border_ids = [0]
        self._border_chars = [0]
        self._num_ids = 0
        self._finished = False
        self.num_healed = 0
        self.replaced: tuple[int, ...] = ()
        self.num_hidden = 0

    @property
    def text(self) -> str:
        """The text so far, as far as it was given out."""
        self._catch_up()
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    @property
    def matched_stop(self) -> str | None:
        """The stop that ended the text, as it stood there."""
        return self._stops.matched

    def push(self, token_id: int) -> bool:
        """Takes the next id; True where a stop now ends the text (later ids change nothing)."""
        if self._finished or self._stops.matched is not None:
            return self._stops.matched is not None
        if self._waits:
            self._waiting.append(token_id)
            return False
        return self._push(token_id)

    def _push(self, token_id: int) -> bool:
        text = self._decode(token_id)
        self._num_ids += 1
        self._num_chars += len(text)
        if not self._decoder.getstate()[0]:
            self._border_ids.append(self._num_ids)
            self._border_chars.append(self._num_chars)
        if text:
            early = self._num_ids - self.num_healed <= self._min_tokens
            self._give(self._stops.skip(text) if early else self._stops.feed(text))
        return self._stops.matched is not None

    def finish(self) -> None:
        """No more ids come: what was held back for a stop is given out, an unfinished character is dropped."""
        if not self._finished:
            self._catch_up()
            self._finished = True
            self._give(self._stops.finish())

    def visible_ids(self, output_ids: Sequence[int]) -> tuple[list[int], tuple[str, ...]]:
        """The ids that spell exactly `text`, after `finish`.

        They are kept as sampled, without those of a stop that was cut off. A token that the cut goes through is
        encoded again, an unfinished character's tokens are dropped; then the reasons are `("stop",)`.

        Args:
            output_ids: the ids that were pushed (end tokens may follow them).
        """
        num_ids, at = self._cut()
        length = len(self.text)
        kept = list(output_ids[:num_ids])
        if at == length:
            unfinished = self._stops.matched is None and num_ids < self._num_ids
            return kept, ("stop",) if unfinished else ()
        rest = self.text[at:]
        return kept + self._tokenizer.encode_run(rest, at_start=self._at_start and not kept), ("stop",)

    def _catch_up(self) -> None:
        """Decodes the ids that wait: all in one piece, where that shows every border that matters; else one by one."""
        ids, self._waiting = self._waiting, []
        if not ids:
            return
        if self._num_ids == 0:
            data = self._tokenizer.run_bytes(ids, skip_special_tokens=self._skip_special)
            if self._drop_space:
                data = data.removeprefix(b" ")
            # One character that is not finished hides where it begins, and 0xED may begin what is ill-formed sooner
            # than Python says (see `_decode`).
            text = self._decoder.decode(data) if b"\xed" not in data else ""
            if (text or not data) and not self._decoder.getstate()[0]:
                self._num_ids, self._num_chars = len(ids), len(text)
                self._drop_space = self._drop_space and not data
                self._border_ids.append(self._num_ids)
                self._border_chars.append(self._num_chars)
                self._give(self._stops.feed(text))
                return
            self._decoder.reset()
        for token_id in ids:
            self._push(token_id)

    def _cut(self) -> tuple[int, int]:
        """How many ids lie wholly in `text`, and how many characters they spell."""
        border = bisect_right(self._border_chars, len(self.text)) - 1
        return self._border_ids[border], self._border_chars[border]

    def _bytes(self, token_id: int) -> bytes:
        """What the next id adds to the text."""
        return self._tokenizer.token_bytes(token_id)

    def _decode(self, token_id: int) -> str:
        if self._skip_special and self._tokenizer.is_special(token_id):
            return ""
        data = self._bytes(token_id)
        if self._drop_space and data:
            data = data.removeprefix(b" ")
            self._drop_space = False
        text = self._decoder.decode(data)
        held = self._decoder.getstate()[0]
        if held[:1] == b"\xed" and held[1:] >= b"\xa0":
            # Python waits for the third byte of a surrogate, though no text has one: this is ill-formed already.
            text += self._decoder.decode(b"", True)
        return text

    def _give(self, piece: str) -> None:
        if piece:
            self._pieces.append(piece)
            if self._on_text is not None:
                self._on_text(piece)
