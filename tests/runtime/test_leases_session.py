"""A graph's session on a tiny model: handles, errors, the end of leases, and the same texts with and without."""

from __future__ import annotations

import gc
import random
from pathlib import Path
from typing import Any

import pytest
from radicel.backend import GenerateRequest, GraphBackend, Keep, PlannedRequest, PrefillRequest, ScoreRequest
from radicel.constraint import Constraint
from radicel.errors import BackendClosedError, CancelledError, ContextLengthError
from radicel.prompt import Generated, Text
from radicel.runtime import LocalRuntime
from radicel.sampling import SamplingParams

GREEDY = SamplingParams.of(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture
def rt(tiny_llama: Path) -> Any:
    with LocalRuntime(tiny_llama, device="cpu", dtype="float64", kv_tokens=2000, check_invariants=True) as runtime:
        yield runtime


def generate(text: str, **more: Any) -> GenerateRequest:
    return GenerateRequest((Text(text),), SamplingParams.of(**{"temperature": 0, "max_tokens": 6, **more}))


def num_leases(rt: LocalRuntime) -> int:
    rt.check()  # between two steps: whatever was said before has been heard
    return len(rt._engine.scheduler.leases)


def test_handles_come_in_the_order_of_the_requests_and_hold_what_submit_gives(rt):
    assert isinstance(rt, GraphBackend)
    texts = ["the cat", "the dog", "another thing"]
    session = rt.open_graph()
    planned = [PlannedRequest(generate(text), place) for text, place in zip(texts, (2, 0, 1))]
    planned.append(PlannedRequest(ScoreRequest((Text("the "),), ("cat", "dog")), 4))
    planned.append(PlannedRequest(PrefillRequest((Text("the cat and the dog"),)), 3))
    *generations, scores, prefilled = [handle.result(60) for handle in session.submit(planned)]
    session.close()
    alone = [rt.submit(generate(text)).result(60) for text in texts]
    assert [one[0].text for one in generations] == [one[0].text for one in alone]
    assert [score.text for score in scores] == ["cat", "dog"]
    assert scores[0].logprob == pytest.approx(rt.submit_score(planned[3].request).result(60)[0].logprob)
    assert prefilled == len(rt.encode((Text("the cat and the dog"),)).token_ids)


def test_what_a_request_writes_is_leased_until_the_last_that_needs_it_is_admitted(rt):
    session = rt.open_graph()
    (first,) = session.submit([PlannedRequest(generate("the cat"), 0, (Keep(None, (1, 2)), Keep(3, (3,))))])
    written = first.result(60)[0]
    assert num_leases(rt) == 5
    value = Generated(written.text, written.token_ids)
    later = [
        PlannedRequest(GenerateRequest((Text("the cat"), value, Text(f" and {i}")), GREEDY), 1 + i) for i in range(2)
    ]
    assert all(handle.result(60) for handle in session.submit(later))
    assert num_leases(rt) == 1
    session.withdraw([0, 3])
    assert num_leases(rt) == 0


def test_a_wrong_request_fails_its_own_handle_and_is_waited_for_no_more(rt):
    session = rt.open_graph()
    keep = PlannedRequest(generate("abc", max_tokens=1), 0, (Keep(2, (1, 2)),))
    good, _ = session.submit([keep, PlannedRequest(generate("abd", max_tokens=1), 3)])
    assert good.result(60)
    assert num_leases(rt) == 2
    bad, fine = session.submit([PlannedRequest(generate("ab" * 5000), 1), PlannedRequest(generate("abe"), 2)])
    assert fine.result(60)
    with pytest.raises(ContextLengthError):
        bad.result(60)
    assert num_leases(rt) == 0
    session.close()


def test_a_cancelled_request_leaves_no_lease(rt):
    session = rt.open_graph()
    digits = Constraint.regex(r"[0-9]{5}")
    handles = session.submit(
        [
            PlannedRequest(
                GenerateRequest((Text(f"n {i}: "),), GREEDY.over(SamplingParams.of(max_tokens=500)), digits), i
            )
            for i in range(8)
        ]
    )
    for handle in handles[1::2]:
        handle.cancel()
    for i, handle in enumerate(handles):
        if i % 2:
            assert isinstance(handle.future.exception(60), (CancelledError, type(None)))
        else:
            assert handle.result(60)[0].text.isdigit()
    assert num_leases(rt) == 0


def test_close_ends_every_lease_and_a_dropped_session_closes_itself(rt):
    session = rt.open_graph()
    session.submit([PlannedRequest(generate("the cat"), 0, (Keep(None, (7,)),))])[0].result(60)
    assert num_leases(rt) == 2
    session.close()
    session.close()
    assert num_leases(rt) == 0
    with pytest.raises(ValueError, match="closed"):
        session.submit([PlannedRequest(generate("the dog"), 1)])
    dropped = rt.open_graph()
    dropped.submit([PlannedRequest(generate("the cat"), 0, (Keep(3, (7,)),))])[0].result(60)
    assert num_leases(rt) == 1
    del dropped
    gc.collect()
    assert num_leases(rt) == 0


def test_a_closed_runtime_says_so(tiny_llama):
    rt = LocalRuntime(tiny_llama, device="cpu", kv_tokens=500)
    session = rt.open_graph()
    rt.close()
    with pytest.raises(BackendClosedError):
        session.submit([PlannedRequest(generate("the cat"), 0)])
    with pytest.raises(BackendClosedError):
        rt.open_graph()
    session.close()


def test_samples_of_one_request_share_its_place(rt):
    session = rt.open_graph()
    request = generate("the cat", n=3, temperature=1.0, seed=5)
    (handle,) = session.submit([PlannedRequest(request, 0, (Keep(4, (1,)), Keep(None, (2,))))])
    assert len(handle.result(60)) == 3
    assert num_leases(rt) == 1 + 3 + 3, "the prompt once, and what each of the three wrote"
    session.close()


def test_greedy_texts_are_the_same_with_and_without_leases(tiny_llama):
    """A pool that holds a fraction of the graph: prefixes are dropped and computed again, the texts stay."""
    rng = random.Random(4)
    prefix = "the other thing in the " * 12
    prompts = [f"{prefix}{rng.choice('abc') * 30} {i}" for i in range(24)]
    results = []
    for leases in (True, False):
        options: dict[str, Any] = {"kv_tokens": 500, "prefill_chunk": 64, "max_running": 4, "leases": leases}
        with LocalRuntime(tiny_llama, device="cpu", dtype="float64", check_invariants=True, **options) as rt:
            session = rt.open_graph()
            order = {prompt: place for place, prompt in enumerate(sorted(prompts))}
            handles = session.submit([PlannedRequest(generate(p, max_tokens=12), order[p]) for p in prompts])
            results.append([handle.result(60)[0].text for handle in handles])
            session.close()
    assert results[0] == results[1]
