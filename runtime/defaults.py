"""From what a request says to what the sampler needs: the last defaults, filled in in one place.

In: `SamplingParams` merged by the language, the model's `generation_config.json`, the room left in the context.
Out: one `ResolvedSampling` per sample.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Mapping
from typing import Any

from ..errors import ContextLengthError, SamplingError
from ..sampling import SamplingParams
from .request import ResolvedSampling

__all__ = ["model_defaults", "resolve_sampling"]

# What the sampler multiplies, divides or adds stays finite in its float32, however large the number that was given.
_HUGE = 1e30


def model_defaults(generation_config: Mapping[str, Any] | None) -> SamplingParams:
    """What the model's own `generation_config.json` says about sampling; `do_sample: false` there means temperature 0.

    An absent `do_sample` is not taken for an answer: such a file says nothing about the temperature.
    """
    config = generation_config or {}
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    said = {name: config[name] for name in names if config.get(name) is not None}
    if config.get("do_sample") is False:
        said["temperature"] = 0.0
    return SamplingParams.of(**said)


def resolve_sampling(
    params: SamplingParams,
    *,
    defaults: SamplingParams,
    prompt_len: int,
    context_length: int,
    vocab_size: int,
    end_ids: frozenset[int],
    seed: int,
) -> list[ResolvedSampling]:
    """One `ResolvedSampling` per sample of the request.

    Args:
        params: what the request says.
        defaults: what the model says (`model_defaults`).
        prompt_len: tokens of the prompt.
        context_length: most tokens of prompt and output together.
        vocab_size: ids at or above it cannot be biased.
        end_ids: the model's end tokens.
        seed: used where the request names none.

    Raises:
        ContextLengthError: the prompt leaves no room in the context.
        SamplingError: a logit bias or stop id outside the vocabulary.
    """
    if prompt_len > context_length:
        raise ContextLengthError(
            f"the prompt has {prompt_len} tokens and the model's context is {context_length}; shorten the prompt"
        )
    merged = _merged(params, defaults)
    room = context_length - prompt_len
    if room == 0 and merged.max_tokens != 0:
        raise ContextLengthError(
            f"the prompt has {prompt_len} tokens, the model's whole context: no room to generate; shorten the prompt"
        )
    for what, ids in (("logit_bias", merged.logit_bias or {}), ("stop_token_ids", merged.stop_token_ids or ())):
        for token in ids:
            if token >= vocab_size:
                raise SamplingError(f"{what} names token {token}; this model's ids are 0 … {vocab_size - 1}")
    one = ResolvedSampling(
        max_tokens=room if merged.max_tokens is None else min(merged.max_tokens, room),
        min_tokens=merged.min_tokens or 0,
        temperature=1.0 if merged.temperature is None else _bounded(merged.temperature, 0.0),
        top_p=1.0 if merged.top_p is None else float(merged.top_p),
        top_k=min(max(0, merged.top_k or 0), vocab_size),
        min_p=float(merged.min_p or 0.0),
        frequency_penalty=float(merged.frequency_penalty or 0.0),
        presence_penalty=float(merged.presence_penalty or 0.0),
        repetition_penalty=1.0 if merged.repetition_penalty is None else _bounded(merged.repetition_penalty, 1 / _HUGE),
        logit_bias={token: _bounded(bias, -math.inf) for token, bias in (merged.logit_bias or {}).items()},
        seed=seed if merged.seed is None else merged.seed,
        end_ids=frozenset() if merged.ignore_eos else end_ids,
        stop_token_ids=frozenset(merged.stop_token_ids or ()),
        logprobs=bool(merged.logprobs),
        top_logprobs=min(merged.top_logprobs or 0, vocab_size),
    )
    return [one, *(dataclasses.replace(one, sample_index=i) for i in range(1, merged.n or 1))]


class _Last(threading.local):
    """The parameters that were merged last on a thread: those of one call are the same for all its prompts."""

    given: tuple[SamplingParams, SamplingParams] | None = None
    merged: SamplingParams


_last = _Last()


def _merged(params: SamplingParams, defaults: SamplingParams) -> SamplingParams:
    """`params.over(defaults)`, which takes longer than all else here."""
    given = _last.given
    if given is None or given[0] is not params or given[1] is not defaults:
        _last.merged = params.over(defaults)
        _last.given = (params, defaults)
    return _last.merged


def _bounded(value: float, least: float) -> float:
    """The number within what the sampler can calculate with; -inf stays where it may be given."""
    if value == -math.inf:
        return -math.inf
    return float(min(max(value, least, -_HUGE), _HUGE))
