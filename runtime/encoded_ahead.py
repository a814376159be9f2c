"""The ids of prompts, of which many come twice: when their graph is made, and when their requests are.

In: prompts in parts, or ids as they are. Out: ids, checked. What was encoded for a graph is kept until the request
comes, which then is not encoded again.
"""

from __future__ import annotations

import threading

from ..encode import PromptEncoder
from ..errors import InvalidValueError
from ..prompt import EncodedPrompt, Prompt
from .id_reader import IdReader
from .inputs import PromptInput
from .token_buffer import IdList

__all__ = ["EncodedAhead", "PromptIds"]


class PromptIds:
    """Prompts as ids, for one model. Usable from many threads.

    Args:
        encoder: of its tokenizer.
        vocab_size: ids are below it.
    """

    def __init__(self, encoder: PromptEncoder, vocab_size: int) -> None:
        self._encoder = encoder
        self._vocab_size = vocab_size
        self._ahead = EncodedAhead()

    def ahead(self, prompt: Prompt) -> EncodedPrompt:
        """The ids of a prompt whose request may come."""
        encoded = self._encoder.encode(prompt)
        self._ahead.put(prompt, encoded)
        return encoded

    def of(self, prompt: PromptInput) -> tuple[IdList, tuple[str, ...]]:
        """The ids of a request's prompt, and why some are not those that were sampled (`EncodedPrompt.reencoded`).

        Raises:
            InvalidValueError: there are none, or one that the model does not have.
        """
        reencoded: tuple[str, ...] = ()
        if isinstance(prompt, (IdList, list)):
            ids = prompt if isinstance(prompt, IdList) else IdReader().read(prompt)
            if ids.most >= self._vocab_size:
                raise InvalidValueError(
                    f"token id {max(ids)} in the prompt; this model's ids are below {self._vocab_size}"
                )
        else:
            encoded = self._ahead.pop(prompt) or self._encoder.encode(prompt)
            ids, reencoded = IdList.packed(encoded.packed), encoded.reencoded
        if not len(ids):
            raise InvalidValueError(
                "the prompt is empty, and this tokenizer has no BOS token to start from; give it some text"
            )
        return ids, reencoded


class EncodedAhead:
    """The prompts encoded last that were not asked for yet. Usable from many threads.

    Args:
        most: ids that are kept.
    """

    def __init__(self, most: int = 4_000_000) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._entries: dict[Prompt, EncodedPrompt] = {}
        self.num_ids = 0

    def put(self, prompt: Prompt, encoded: EncodedPrompt) -> None:
        """Keeps a prompt, and drops the oldest ones that no longer fit."""
        with self._lock:
            if prompt in self._entries:
                return
            self._entries[prompt] = encoded
            self.num_ids += len(encoded.token_ids)
            while self.num_ids > self._most:
                self.num_ids -= len(self._entries.pop(next(iter(self._entries))).token_ids)

    def pop(self, prompt: Prompt) -> EncodedPrompt | None:
        """What was kept of a prompt; it is kept no longer."""
        if not self._entries:
            return None
        with self._lock:
            encoded = self._entries.pop(prompt, None)
            if encoded is not None:
                self.num_ids -= len(encoded.token_ids)
        return encoded
