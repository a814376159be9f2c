"""Token healing: where a literal ends inside what the tokenizer would make one token, the model spells its end anew.

In: a prompt and its ids. Out: the ids without the last few, and what must hold of the tokens that come next: they
spell the bytes taken back before anything else. The value begins after these bytes.

    "Answer: "   ids        … "Answer"  ":"  " "
                 kept       … "Answer"  ":"          taken back  " ", since " yes" could begin there
                 then                        " yes"  the value is "yes", and the state keeps the token

Taken back is the longest end of the literal, on a border of its tokens, with which a longer token begins; the first id
of a prompt stays, since a model needs one to start from. `PrefixMatcher` (`spellings.py`) masks the first tokens and is
then taken off. A grammar gets the text taken back in front (`Constraint.after`), so that its engine decides about every
byte; the prefix's mask only chooses among what it allows. No torch here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence as Seq
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from ..prompt import Generated, Prompt, Text, TurnBegin, TurnEnd
from .detokenizer import TextStream
from .request import Sequence
from .spellings import PrefixMatcher, Spellings
from .token_buffer import IdList

if TYPE_CHECKING:
    from ..constraint import Constraint
    from ..sampling import SamplingParams
    from .tokenizer import Tokenizer

__all__ = ["Healed", "HealedStream", "Healer", "open_literal"]


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
    def spellings(self) -> Spellings:
        """The model's tokens by their bytes."""
        return Spellings.of(self._tokenizer, self._vocab_size)

    def heal(self, prompt: Prompt | IdList | list[int], ids: Seq[int], sampling: SamplingParams) -> Healed | None:
        """What is to be spelled anew; None where nothing is.

        Args:
            prompt: the prompt; ids that a caller gave are taken as they are.
            ids: its ids.
            sampling: `token_healing` None heals raw text, True also text inside a role turn. A request for the
                prompt's log probabilities is about the prompt as it stands: there None heals nothing. Where nothing
                is generated, nothing is healed.
        """
        wanted = sampling.token_healing
        if isinstance(prompt, (IdList, list)) or wanted is False or sampling.max_tokens == 0:
            return None
        if wanted is None and sampling.logprob_start_len is not None:
            return None
        literal = open_literal(prompt, inside_turns=bool(wanted))
        count = self._tail(ids, literal.encode("utf-8", "replace"), frozenset(sampling.stop_token_ids or ()))
        if not count:
            return None
        tail = tuple(ids[-count:])
        spelled = b"".join(map(self._tokenizer.token_bytes, tail))
        self.spellings.mask(spelled)  # made here, not on the engine's thread
        return Healed(tuple(ids[:-count]), tail, spelled.decode())

    def begin(self, seq: Sequence, healed: Healed) -> None:
        """Prepares a sequence whose sink is a `HealedStream` and whose grammar, if any, expects `healed.text` first.

        Its limits and stop ids count from where the prompt's end is spelled on; until then nothing ends the text.
        """
        stream, sampling = seq.sink, seq.sampling
        assert isinstance(stream, HealedStream)
        grammar = seq.matcher
        seq.matcher = PrefixMatcher(healed.tail, self.spellings, sampling.end_ids, grammar)
        room = sampling.max_tokens + len(healed.prefix)
        seq.sampling = dataclasses.replace(sampling, max_tokens=room, min_tokens=0, stop_token_ids=frozenset())

        def on_token(token_id: int) -> None:
            if stream.num_left:
                return
            seq.on_token = None
            seq.matcher = grammar
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
                token = self.spellings.token_bytes(ids[-count])
                spelled = token + spelled
                if not token or ids[-count] in stop_ids or len(spelled) >= self.spellings.longest:
                    break
                if not self._stands_in(spelled, literal, ids[:-count]):
                    break
                if spelled[0] & 0xC0 != 0x80 and self.spellings.goes_on(spelled):
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


class HealedStream(TextStream):
    """The text of a sequence whose first ids spell the end of its prompt anew: what follows that end.

    Args:
        tokenizer: whose ids come.
        healed: the prompt.
        options: those of `TextStream`.
    """

    def __init__(self, tokenizer: Tokenizer, healed: Healed, **options: Any) -> None:
        super().__init__(tokenizer, **{**options, "at_start": False})
        self._waits = False  # `num_left` decides about what is sampled next
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
