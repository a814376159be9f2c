"""A model's tokenizer and sizes without its weights: what a plan counts with.

In: what a user calls a model. Out: a `Backend` that encodes prompts, says how long they may be and what a token takes
in the cache, and runs nothing.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from ..backend import GenerateRequest, ScoreRequest
from ..encode import PromptEncoder
from ..errors import UnsupportedError
from ..prompt import EncodedPrompt, Prompt
from . import hub
from .tokenizer import Tokenizer

__all__ = ["TokenCounter"]


class TokenCounter:
    """Counts as `LocalRuntime(model)` would.

    Args:
        model: as for `LocalRuntime`.

    Raises:
        ModelNotFoundError: it is not here.
    """

    def __init__(self, model: str | Path | None = None) -> None:
        self._folder = hub.resolve(model)
        self._tokenizer = Tokenizer.load(self._folder)
        self._encoder = PromptEncoder(self._tokenizer)

    def encode(self, prompt: Prompt) -> EncodedPrompt:
        """The token ids that a request with this prompt would start from."""
        return self._encoder.encode(prompt)

    def render(self, prompt: Prompt) -> str:
        """The prompt's text, through the chat template."""
        return self._encoder.render(prompt)

    @property
    def tokenizer(self) -> Any:
        """The transformers tokenizer."""
        return self._tokenizer.hf

    @cached_property
    def vocabulary(self) -> frozenset[bytes]:
        """What the tokens spell."""
        return frozenset(self._tokenizer.all_token_bytes())

    @cached_property
    def context_length(self) -> int | None:
        """Most tokens of prompt and output together."""
        return self._sizes[0]

    @cached_property
    def kv_bytes_per_token(self) -> int | None:
        """Bytes of one token's keys and values in all layers, on the device that would be chosen."""
        return self._sizes[1]

    @cached_property
    def _sizes(self) -> tuple[int | None, int | None]:
        from ..errors import ModelError
        from .device import resolve_device
        from .kv_cache import bytes_per_slot
        from .models import model_config, resolve_dtype

        try:
            config = model_config(self._folder)
        except ModelError:  # a tokenizer alone, or an architecture that we do not have: tokens can be counted
            return None, None
        return config.context_length, bytes_per_slot(config, resolve_dtype(config, resolve_device("auto"), "auto"))

    def submit(self, request: GenerateRequest, on_text: Any = None) -> NoReturn:
        """Raises UnsupportedError, as `submit_score` and `submit_prefill` do."""
        raise UnsupportedError("a TokenCounter counts tokens and runs nothing; use LocalRuntime to run a program")

    def submit_score(self, request: ScoreRequest) -> NoReturn:
        """Raises UnsupportedError."""
        self.submit(GenerateRequest(request.prompt))

    def submit_prefill(self, prompt: Prompt) -> NoReturn:
        """Raises UnsupportedError."""
        self.submit(GenerateRequest(prompt))

    def flush_cache(self) -> None:
        """Does nothing: it has no cache."""

    def close(self) -> None:
        """Does nothing: it holds no device."""
