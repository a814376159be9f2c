"""`radicel bench`: how fast a model is on this machine, measured in a few seconds.

In: a model and sizes. Out: tokens per second of reading a prompt, of writing alone and in a batch; what a shared prefix
saves; and what it was measured on.

Prompts are random tokens (nothing is in the cache by chance), texts do not end by themselves, temperature is 0. Each
number is of one run after a short one that warms up. Times are the requests' own: from submission to first token, from
the first token on.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .output import print_columns, print_json, say

if TYPE_CHECKING:
    from ..runtime.local import LocalRuntime

__all__ = ["bench"]


def bench(args: argparse.Namespace) -> None:
    """Measures and prints; an interrupt ends the model before the command."""
    from ..runtime.local import LocalRuntime

    say(f"loading {args.model or 'the embedded model'} …")
    began = time.perf_counter()
    load_format = "dummy" if args.dummy else "auto"
    with LocalRuntime(args.model, device=args.device, dtype=args.dtype, load_format=load_format) as runtime:
        loaded = time.perf_counter() - began
        result = {
            **_measured_on(runtime, args.model),
            "load_s": round(loaded, 2),
            "prompt_tokens": args.prompt_tokens,
            "tokens": args.tokens,
            "batch": args.batch,
            **_measure(runtime, args),
        }
    if args.json:
        print_json(result)
    else:
        print_columns([(name.replace("_", " "), _shown(value)) for name, value in result.items()])


def _measure(runtime: LocalRuntime, args: argparse.Namespace) -> dict[str, Any]:
    draw = _Prompts(runtime)
    say("warming up …")
    _write(runtime, [draw(32) for _ in range(args.batch)], 4)
    say("reading a prompt …")
    prefill = _write(runtime, [draw(args.prompt_tokens)], 1)
    say("writing alone …")
    alone = _write(runtime, [draw(16)], args.tokens)
    say(f"writing in a batch of {args.batch} …")
    batch = _write(runtime, [draw(16) for _ in range(args.batch)], args.tokens)
    say("with a shared prefix, and without …")
    prefix = draw(args.prompt_tokens)
    shared = _write(runtime, [[*prefix, *draw(8)] for _ in range(args.batch)], 1)
    apart = _write(runtime, [draw(args.prompt_tokens + 8) for _ in range(args.batch)], 1)
    return {
        "prefill_tokens_per_s": _rate(args.prompt_tokens, prefill.first_s),
        "decode_tokens_per_s": _rate(alone.written - 1, alone.writing_s),
        "batch_decode_tokens_per_s": _rate(batch.written - args.batch, batch.writing_s),
        "shared_prefix_computed_ratio": round(shared.computed / shared.prompt, 3),
        "shared_prefix_speedup": round(apart.last_first_s / shared.last_first_s, 2),
        "shared_prefix_s": round(shared.last_first_s, 4),
        "unshared_prefix_s": round(apart.last_first_s, 4),
    }


class _Prompts:
    """Draws prompts of random ordinary tokens, the same ones in each run."""

    def __init__(self, runtime: LocalRuntime) -> None:
        special = set(runtime.tokenizer.all_special_ids)
        self._ids = [i for i in range(len(runtime.tokenizer)) if i not in special]
        self._random = random.Random(0)

    def __call__(self, tokens: int) -> list[int]:
        return self._random.choices(self._ids, k=tokens)


class _Run:
    """What a list of requests took.

    Attributes:
        prompt, computed: prompt tokens, and those of them that the model ran.
        written: tokens written by all.
        first_s: from submission to the first token of any.
        last_first_s: to the first token of the last one.
        writing_s: from when all had their first token to the end of the last one, or of the only one.
    """

    def __init__(self, metas: Sequence[Any], computed: int) -> None:
        firsts = [meta.first_token_s or meta.total_s for meta in metas]
        self.prompt = sum(meta.prompt_tokens for meta in metas)
        self.computed = computed
        self.written = sum(meta.completion_tokens for meta in metas)
        self.first_s, self.last_first_s = min(firsts), max(firsts)
        self.writing_s = max(meta.total_s for meta in metas) - self.first_s


def _write(runtime: LocalRuntime, prompts: Sequence[Sequence[int]], tokens: int) -> _Run:
    """Runs the prompts together on an empty cache."""
    runtime.flush_cache()
    before = runtime.stats().computed_tokens
    made = runtime.generate(list(map(list, prompts)), max_tokens=tokens, temperature=0, ignore_eos=True)
    return _Run([one.meta for one in made], runtime.stats().computed_tokens - before)


def _rate(tokens: int, seconds: float) -> float | None:
    return round(tokens / seconds, 1) if seconds > 0 and tokens > 0 else None


def _measured_on(runtime: LocalRuntime, model: str | None) -> dict[str, Any]:
    from ..runtime.hub import DEFAULT_MODEL
    from ..runtime.machine import machine_of

    return {"model": model or DEFAULT_MODEL, **machine_of(runtime)}


def _shown(value: object) -> str:
    return "not measured" if value is None else f"{value:,}" if isinstance(value, (int, float)) else str(value)
