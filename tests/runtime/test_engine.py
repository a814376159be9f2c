"""The engine on the pseudo-model: right tokens whatever the batch, the cache and the chunks; everybody is told once."""

from __future__ import annotations

import pytest
from radicel.runtime.engine import Engine, EngineConfig

from .fake_runner import FakeRunner, reference, sequence


def run_all(engine: Engine, sequences, limit: int = 10_000) -> None:
    engine.submit(sequences)
    drain(engine, limit)


def drain(engine: Engine, limit: int = 10_000) -> None:
    for _ in range(limit):
        if not engine.step():
            break
    else:
        raise AssertionError("the engine does not come to an end")


def make(runner: FakeRunner | None = None, **config) -> Engine:
    return Engine(runner or FakeRunner(), EngineConfig(check_invariants=True, **config))


def outputs(seq) -> list[int]:
    assert seq.listener.error is None, seq.listener.error
    return seq.listener.result.output_ids


PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


@pytest.mark.parametrize("chunk", [1, 3, 7, 8192])
def test_the_output_is_that_of_an_evaluation_without_cache(chunk):
    engine = make(prefill_chunk=chunk)
    seqs = [sequence(PROMPT[:n], 12) for n in range(1, 11)]
    run_all(engine, seqs)
    for seq in seqs:
        want = reference(seq.prompt_ids, seq.sampling)
        assert outputs(seq) == want.output_ids
        assert seq.listener.result.finish_reason == want.reason
        assert seq.listener.result.end_id == want.end_id
