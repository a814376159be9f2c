"""The scores of a `select` out of an OpenAI-protocol answer.

In: the response of a `score_call`. Out: one `Score` per choice.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..backend import Score, ScoreRequest
from ..errors import OutputValidationError, RemoteError
from .messages import chatml

__all__ = ["chosen_scores", "echoed_scores"]


@dataclass
class _Echo:
    """One echoed text: its tokens, where each begins in the text, and their logprobs (None for the first)."""

    tokens: list[str]
    offsets: list[int]
    logprobs: list[float | None]


def echoed_scores(request: ScoreRequest, data: Mapping[str, Any], where: str) -> list[Score]:
    """Scores from prompts that were echoed with their logprobs.

    The protocol names tokens by their text, so each distinct text is an id here. A token that straddles the end of
    the prompt counts into its choice; then it does into every choice, so that all of them score the same event.

    Raises:
        RemoteError: the server did not echo, or told no logprobs.
    """
    prompt = chatml(request.prompt)
    texts = [prompt + continuation for continuation in request.continuations]
    choices = sorted(data.get("choices") or (), key=lambda choice: choice.get("index") or 0)
    if len(choices) != len(texts):
        raise RemoteError(f"{where} answered {len(choices)} of {len(texts)} prompts; a select needs all of them")
    echoes = [_echo(choice, text, where) for choice, text in zip(choices, texts)]
    begin = _first_scored(echoes, len(prompt))
    ids: dict[str, int] = {}
    scores = []
    for continuation, echo in zip(request.continuations, echoes):
        known = [logprob for logprob in echo.logprobs[begin:] if logprob is not None]
        if len(known) != len(echo.logprobs) - begin:
            raise RemoteError(
                f"{where} told no logprob for the first token of {continuation!r}: the prompt is empty, and the "
                "completions endpoint scores no text without one"
            )
        tokens = tuple(ids.setdefault(token, len(ids)) for token in echo.tokens[begin:])
        scores.append(Score(continuation, tokens, tuple(known), math.fsum(known), prompt_tokens=begin))
    return scores


def chosen_scores(request: ScoreRequest, chosen: str, where: str, usage: Mapping[str, Any]) -> list[Score]:
    """Scores that say which choice the model wrote; every rule takes that one. `usage` is the server's count.

    Raises:
        OutputValidationError: it wrote none of them.
    """
    if chosen not in request.continuations:
        raise OutputValidationError(
            f"{where} answered select({request.name!r}) with {chosen!r}, which is not one of {request.continuations}",
            text=chosen,
            name=request.name,
        )
    base = (0.0,) if request.unconditional else None
    logprobs = [0.0 if choice == chosen else -math.inf for choice in request.continuations]
    details = usage.get("prompt_tokens_details") or {}
    read, cached = usage.get("prompt_tokens") or 0, details.get("cached_tokens") or 0
    return [
        Score(choice, (i,), (logprob,), logprob, None, base, prompt_tokens=read, cached_tokens=cached)
        for i, (choice, logprob) in enumerate(zip(request.continuations, logprobs))
    ]


def _echo(choice: Mapping[str, Any], text: str, where: str) -> _Echo:
    logprobs = choice.get("logprobs") or {}
    tokens, offsets, values = (logprobs.get(k) for k in ("tokens", "text_offset", "token_logprobs"))
    if not tokens or values is None:
        raise RemoteError(f"{where} echoed no logprobs of the prompt; a select needs a server that does (or chat=True)")
    joined = "".join(tokens)
    if text in joined:  # what a server puts before the text (BOS) must not move the offsets
        starts = list(itertools.accumulate(map(len, tokens), initial=-joined.index(text)))[:-1]
    elif offsets:  # a token that is no whole text, such as half a character
        starts = list(offsets)
    else:
        raise RemoteError(f"{where} echoed {joined[:60]!r}, which is not the prompt, and told no text offsets")
    inside = sum(start < len(text) for start in starts)  # what the server wrote beyond is not ours
    return _Echo(list(tokens[:inside]), starts[:inside], list(values[:inside]))


def _first_scored(echoes: Sequence[_Echo], prompt_chars: int) -> int:
    """The position after the tokens that all the texts share within the prompt."""
    shortest = min(len(echo.tokens) for echo in echoes)
    for at in range(shortest):
        ends_inside = all(at + 1 < len(e.offsets) and e.offsets[at + 1] <= prompt_chars for e in echoes)
        if not ends_inside or len({echo.tokens[at] for echo in echoes}) > 1:
            return at
    return shortest
