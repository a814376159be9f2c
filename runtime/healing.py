"""Token healing: where a literal ends inside what the tokenizer would make one token, the model spells its end anew.

In: a prompt and its ids. Out: the ids without the last few, and what must hold of the tokens that come next: they
spell the bytes taken back before anything else. The value begins after these bytes.

    "Answer: "   ids        … "Answer"  ":"  " "
                 kept       … "Answer"  ":"          taken back  " ", since " yes" could begin there
                 then                        " yes"  the value is "yes", and the state keeps the token

Taken back is the longest end of the literal, on a border of its tokens, with which a longer token begins; the first id
of a prompt stays, since a model needs one to start from. Under a grammar, the grammar gets the text taken back in front
(`Constraint.after`), so that one engine decides about every byte; without one, `PrefixMatcher` masks the first tokens
and is then taken off. No torch here.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from functools import cached_property, lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from ..prompt import Generated, Prompt, Text, TurnBegin, TurnEnd
from .detokenizer import TextStream
from .grammar.matcher import Mask, mask_words
from .request import Sequence

if TYPE_CHECKING:
    from ..constraint import Constraint
    from ..sampling import SamplingParams
    from .tokenizer import Tokenizer

__all__ = ["Healed", "HealedStream", "Healer", "PrefixMatcher", "Prefixes", "open_literal"]


@dataclasses.dataclass(frozen=True)
class Healed:
    """A prompt whose end is to be spelled anew.

    Attributes:
        ids: those that stay.
        tail: those that were taken back.
        text: what `tail` spells.
    """

    ids: tuple[int, ...]
    tail: tuple[int, ...]
    text: str

    @property
    def prefix(self) -> bytes:
        """The bytes that the first generated tokens spell."""
        return self.text.encode()

    def constrained(self, constraint: Constraint) -> Constraint:
        """The constraint of what is generated, the text taken back included."""
        return dataclasses.replace(constraint, after=self.text)


class Healer:
    """Decides what is taken back, for one tokenizer. Used from many threads.

    Args:
        tokenizer: the model's.
        vocab_size: columns of the logits.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size

    @cached_property
    def prefixes(self) -> Prefixes:
        """The tokens by their bytes; those that are markup are never the spelling of a text."""
        plain = [b"" if self._tokenizer.is_markup(i) else t for i, t in enumerate(self._tokenizer.all_token_bytes())]
        return Prefixes(plain, self._vocab_size)

    def heal(self, prompt: Prompt | list[int], ids: Seq[int], sampling: SamplingParams) -> Healed | None:
        """What is to be spelled anew; None where nothing is.

        Args:
            prompt: the prompt; ids that a caller gave are taken as they are.
            ids: its ids.
            sampling: `token_healing` None heals raw text, True also text inside a role turn. A request for the
                prompt's log probabilities is about the prompt as it stands: there None heals nothing.
        """
        wanted = sampling.token_healing
        if isinstance(prompt, list) or wanted is False or (wanted is None and sampling.logprob_start_len is not None):
            return None
        literal = open_literal(prompt, inside_turns=bool(wanted))
        count = self._tail(ids, literal.encode("utf-8", "replace"), frozenset(sampling.stop_token_ids or ()))
        if not count:
            return None
        tail = tuple(ids[-count:])
        return Healed(tuple(ids[:-count]), tail, b"".join(map(self._tokenizer.token_bytes, tail)).decode())

    def begin(self, seq: Sequence, healed: Healed) -> None:
        """Prepares a sequence whose sink is a `HealedStream` and whose grammar, if any, expects `healed.text` first.

        Its limits and stop ids count from where the prompt's end is spelled on; until then nothing ends the text.
        """
        stream, sampling = seq.sink, seq.sampling
        assert isinstance(stream, HealedStream)
        masked = seq.matcher is None
        if masked:
            seq.matcher = PrefixMatcher(healed.prefix, self.prefixes, sampling.end_ids)
        room = sampling.max_tokens + len(healed.prefix)
        seq.sampling = dataclasses.replace(sampling, max_tokens=room, min_tokens=0, stop_token_ids=frozenset())

        def on_token(token_id: int) -> None:
            if stream.num_left:
                return
            seq.on_token = None
            if masked:
                seq.matcher = None
            more = stream.num_healed
            least = sampling.min_tokens + more if sampling.min_tokens else 0
            seq.sampling = dataclasses.replace(sampling, min_tokens=least)
            seq.max_len = min(seq.max_len, len(seq.prompt_ids) + more + sampling.max_tokens)

        seq.on_token = on_token

    def _tail(self, ids: Seq[int], literal: bytes, stop_ids: frozenset[int]) -> int:
        """How many of the last ids are taken back."""
        best, spelled = 0, b""
        if literal:
            for count in range(1, len(ids)):
                token = self.prefixes.token_bytes(ids[-count])
                spelled = token + spelled
                if not token or ids[-count] in stop_ids or len(spelled) >= self.prefixes.longest:
                    break
                if not self._stands_in(spelled, literal, ids[:-count]):
                    break
                if spelled[0] & 0xC0 != 0x80 and self.prefixes.goes_on(spelled):
                    best = count
        return best

    def _stands_in(self, spelled: bytes, literal: bytes, before: Seq[int]) -> bool:
        """Whether the literal ends with these bytes, a space of the tokenizer's own at the text's start aside."""
        if literal.endswith(spelled):
            return True
        own_space = self._tokenizer.drops_first_space and all(i in self._tokenizer.bos_ids for i in before)
        return own_space and spelled == b" " + literal


def open_literal(prompt: Prompt, *, inside_turns: bool) -> str:
    """The text of the program with which the prompt ends; "" where it ends with something else."""
    texts: list[str] = []
    for part in reversed(prompt):
        if isinstance(part, Text) and not part.special:
            texts.append(part.text)
        elif not (isinstance(part, (Text, Generated)) and not part.text):
            break
    if not inside_turns:
        turn = next((part for part in reversed(prompt) if isinstance(part, (TurnBegin, TurnEnd))), None)
        if isinstance(turn, TurnBegin):
            return ""
    return "".join(reversed(texts))


class Prefixes:
    """The tokens of a vocabulary, by their bytes.

    Args:
        token_bytes: what each id spells, b"" where it may not stand for text.
        vocab_size: columns of the logits.
    """

    def __init__(self, token_bytes: Seq[bytes], vocab_size: int) -> None:
        self._bytes = list(token_bytes)
        self._size = vocab_size
        order = sorted((i for i, token in enumerate(self._bytes) if token), key=self._bytes.__getitem__)
        self._keys = [self._bytes[i] for i in order]
        self._ids: NDArray[np.int64] = np.array(order, np.int64)
        self.longest = max(map(len, self._keys), default=0)
        self.mask: Callable[[bytes], Mask] = lru_cache(maxsize=256)(self._mask)

    def token_bytes(self, token_id: int) -> bytes:
        """What an id spells."""
        return self._bytes[token_id] if token_id < len(self._bytes) else b""

    def goes_on(self, start: bytes) -> bool:
        """Whether a token begins with these bytes and is longer."""
        after = bisect_right(self._keys, start)
        return after < len(self._keys) and self._keys[after].startswith(start)

    def _mask(self, rest: bytes) -> Mask:
        """The ids that begin with `rest`, and those that spell a beginning of it from which it can be completed."""
        allowed = np.zeros(mask_words(self._size) * 32, np.bool_)
        allowed[self._beginning_with(rest)] = True
        for length in self._steps(rest)[0]:
            allowed[self._spelling(rest[:length])] = True
        mask: Mask = np.packbits(allowed, bitorder="little").view(np.int32)
        return mask

    def _steps(self, rest: bytes) -> list[list[int]]:
        """For each position in `rest`, how long the tokens there may be that end inside it and lead on."""
        steps: list[list[int]] = [[] for _ in rest]
        open_at = [False] * len(rest) + [True]
        for at in range(len(rest) - 1, -1, -1):
            steps[at] = [
                end - at
                for end in range(at + 1, min(len(rest), at + self.longest) + 1)
                if open_at[end] and len(self._spelling(rest[at:end]))
            ]
            open_at[at] = bool(steps[at]) or self.goes_on(rest[at:])
        return steps

    def _beginning_with(self, start: bytes) -> NDArray[np.int64]:
        low = bisect_left(self._keys, start)
        stem = start.rstrip(b"\xff")
        high = bisect_left(self._keys, stem[:-1] + bytes([stem[-1] + 1]), low) if stem else len(self._keys)
        return self._ids[low:high]

    def _spelling(self, data: bytes) -> NDArray[np.int64]:
        return self._ids[bisect_left(self._keys, data) : bisect_right(self._keys, data)]


class PrefixMatcher:
    """A `Matcher` (see `matcher.py`) for any text that begins with some bytes.

    Args:
        prefix: the bytes, which tokens of the vocabulary can spell.
        prefixes: the vocabulary.
        end_ids: ids that end a text.
    """

    def __init__(self, prefix: bytes, prefixes: Prefixes, end_ids: Iterable[int] = ()) -> None:
        self._prefix = prefix
        self._prefixes = prefixes
        self._end_ids = frozenset(end_ids)
        self._spelled = [0]  # bytes of the prefix that stand after each accepted token
        self._ended = False

    def accept(self, token_id: int) -> bool:
        """Advances over a token; False, and no change, where the prefix does not allow it."""
        if self._ended:
            return False
        at = self._spelled[-1]
        if at == len(self._prefix):
            self._ended = token_id in self._end_ids
            if not self._ended:
                self._spelled.append(at)
            return True
        if not self._prefixes.mask(self._prefix[at:])[token_id >> 5] >> (token_id & 31) & 1:
            return False
        self._spelled.append(min(len(self._prefix), at + len(self._prefixes.token_bytes(token_id))))
        return True

    def fill_mask(self, row: Mask) -> None:
        """Writes the mask of the ids that may come next: after the prefix, any."""
        row[:] = 0 if self._ended else -1
        if self._spelled[-1] < len(self._prefix):
            row[:] = self._prefixes.mask(self._prefix[self._spelled[-1] :])

    def rollback(self, num_tokens: int) -> None:
        """Takes back the last accepted tokens, an end token included."""
        have = len(self._spelled) - 1 + self._ended
        if not 0 <= num_tokens <= have:
            raise ValueError(f"rollback({num_tokens}): only {have} tokens were accepted")
        if num_tokens and self._ended:
            self._ended = False
            num_tokens -= 1
        del self._spelled[len(self._spelled) - num_tokens :]

    def fork(self) -> PrefixMatcher:
        """An independent matcher in the same state."""
        other = PrefixMatcher(self._prefix, self._prefixes, self._end_ids)
        other._spelled, other._ended = list(self._spelled), self._ended
        return other

    def is_complete(self) -> bool:
        """Whether the text may end here."""
        return self._spelled[-1] == len(self._prefix)

    def is_terminated(self) -> bool:
        """Whether an end token was accepted."""
        return self._ended

    def forced_tokens(self) -> list[int]:
        """None: the model says how the prefix is spelled."""
        return []


class HealedStream(TextStream):
    """The text of a sequence whose first ids spell the end of its prompt anew: what follows that end.

    Args:
        tokenizer: whose ids come.
        healed: the prompt.
        options: those of `TextStream`.
    """

    def __init__(self, tokenizer: Tokenizer, healed: Healed, **options: Any) -> None:
        super().__init__(tokenizer, **{**options, "at_start": False})
        self._tail = healed.tail
        self._left = len(healed.prefix)
        self._num_border = 0  # ids up to the one with which the prefix is complete

    @property
    def num_left(self) -> int:
        """Bytes of the prompt's end that are not spelled yet."""
        return self._left

    @override
    def _bytes(self, token_id: int) -> bytes:
        data = super()._bytes(token_id)
        if self._left == 0:
            return data
        skipped = min(self._left, len(data))
        self._left -= skipped
        self._num_border += 1
        if skipped == len(data):
            self.num_healed += 1
        return data[skipped:]

    @override
    def visible_ids(self, output_ids: Seq[int]) -> tuple[list[int], tuple[str, ...]]:
        """As of `TextStream`: ids that spell, after those of the prompt that are not `replaced`, its end and `text`.

        What is spelled as it was in the prompt is left out. Where a stop or limit cut the text inside the token that
        goes over the prompt's end, or nothing was written, the prompt's own ids stay.
        """
        num_ids, _ = self._cut()
        if self._left or num_ids < self._num_border or (num_ids == self.num_healed and not self.text):
            ids = self._tokenizer.encode_run(self.text, at_start=False) if self.text else []
            return ids, ("stop",) if num_ids < self._num_border else ()
        ids, reasons = super().visible_ids(output_ids)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(self._tail, ids[: self.num_healed])))
        self.replaced = self._tail[same:]
        self.num_hidden = self.num_healed - same
        return ids[same:], (*(("healing",) if self.replaced else ()), *reasons)
