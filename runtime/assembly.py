"""The parts of a `LocalRuntime`, made from its config, and the sequences of its requests.

In: a model's folder and a `RuntimeConfig`; a request's ids, samples and grammar. Out: runner, settings, sequences.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence as Seq
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..backend import OnText
from ..errors import InvalidValueError
from ..sampling import SamplingParams
from .config import RuntimeConfig
from .detokenizer import TextStream
from .device import resolve_device
from .engine import Engine, EngineConfig
from .engine_config import spare_tokens
from .grammar import CompiledGrammar, GrammarCompiler
from .healing import Healed, HealedStream, Healer
from .model_runner import ModelRunner, kv_slots_that_fit
from .models import load_model, model_config, pack, resolve_dtype
from .request import ResolvedSampling, Sequence
from .results import Collector

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

__all__ = [
    "SequenceMaker",
    "deadline_of",
    "engine_config",
    "make_runner",
    "make_sinks",
    "read_json",
    "shut_down",
]


class SequenceMaker:
    """Makes the sequences of a request once its grammar, if any, is there."""

    def __init__(
        self,
        ids: Seq[int],
        samples: Seq[ResolvedSampling],
        collector: Collector[Any],
        sinks: Seq[TextStream],
        sampling: SamplingParams,
        logprob_start: int | None,
        healing: tuple[Healed, Healer] | None = None,
    ) -> None:
        self._ids, self._samples, self._collector, self._sinks = ids, samples, collector, sinks
        self._priority = sampling.priority or 0
        self._deadline = deadline_of(sampling)
        self._logprob_start = logprob_start
        self._healing = healing

    def __call__(self, grammar: CompiledGrammar | None) -> list[Sequence]:
        """One sequence per sample, each with a matcher of its own."""
        return [self._one(sample, sink, grammar) for sample, sink in zip(self._samples, self._sinks)]

    def _one(self, sample: ResolvedSampling, sink: TextStream, grammar: CompiledGrammar | None) -> Sequence:
        seq = Sequence(
            self._ids,
            sample,
            self._collector,
            sink=sink,
            matcher=None if grammar is None else grammar.matcher(),
            logprob_start=self._logprob_start,
            priority=self._priority,
            deadline=self._deadline,
        )
        if self._healing is not None:
            healed, healer = self._healing
            healer.begin(seq, healed)
        return seq


def make_sinks(
    tokenizer: Tokenizer,
    sampling: SamplingParams,
    count: int,
    on_text: OnText | None,
    ids: Seq[int],
    healed: Healed | None,
) -> list[TextStream]:
    """What turns the ids of each of `count` samples into text, after a prompt of `ids` (those that `healed` kept)."""
    options: dict[str, Any] = {
        "stop": sampling.stop or (),
        "stop_regex": sampling.stop_regex or (),
        "keep_stop": bool(sampling.keep_stop),
        "min_tokens": sampling.min_tokens or 0,
        "at_start": all(i in tokenizer.bos_ids for i in ids),
    }
    listeners = [None if on_text is None else partial(on_text, index) for index in range(count)]
    if healed is None:
        return [TextStream(tokenizer, on_text=listener, **options) for listener in listeners]
    return [HealedStream(tokenizer, healed, on_text=listener, **options) for listener in listeners]


def deadline_of(sampling: SamplingParams) -> float | None:
    """The `time.monotonic()` second at which the request's `timeout` is over, if it has one."""
    return None if sampling.timeout is None else time.monotonic() + sampling.timeout


def make_runner(folder: Path, config: RuntimeConfig, sample_vocab: int) -> ModelRunner:
    """The model of a folder, loaded, with as large a KV pool as was asked for or fits beside it."""
    device = resolve_device(config.device)
    described = model_config(folder)
    rounded = config.weights != "auto"
    dtype = resolve_dtype(described, device, "bfloat16" if rounded and config.dtype == "auto" else config.dtype)
    context = min(config.context_length or described.context_length, described.context_length)
    model = load_model(
        folder,
        device=device,
        dtype=dtype,
        load_format=config.load_format,
        context_length=context,
    )
    pack(model, config.weights)
    fits = config.kv_tokens or kv_slots_that_fit(
        described,
        device,
        dtype,
        config.memory_fraction,
        step_tokens=config.prefill_chunk + spare_tokens(config.prefill_chunk),
        step_rows=config.max_running,
    )
    return ModelRunner(
        model,
        kv_slots=fits + 1 if config.kv_tokens else fits,
        num_rows=config.max_running,
        context_length=context,
        attention=config.attention,
        sample_vocab=sample_vocab,
        cuda_graphs=config.cuda_graphs,
        deterministic=config.deterministic,
    )


def engine_config(config: RuntimeConfig) -> EngineConfig:
    """What of the config concerns the step loop."""
    return EngineConfig(
        max_running=config.max_running,
        prefill_chunk=config.prefill_chunk,
        policy=config.policy,
        prefix_cache=config.prefix_cache,
        leases=config.leases,
        forced_runs=config.forced_runs,
        overlap=config.overlap,
        check_invariants=config.check_invariants,
    )


def shut_down(pid: int, engine: Engine, grammars: GrammarCompiler, runner: ModelRunner) -> None:
    """Ends what a runtime owns; in a forked child nothing, since its threads are the parent's."""
    if pid == os.getpid():
        engine.close()
        grammars.close()
        runner.close()


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None where there is no such file."""
    if not path.exists():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidValueError(f"{path} is not JSON ({error}); fetch the model again") from error
    return data if isinstance(data, dict) else None
