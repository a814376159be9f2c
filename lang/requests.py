"""What a generating node asks of a backend, and what it makes of the answer: one row of a table per op.

In: a node, the prompt before it, and later the backend's result.
Out: a request in flight; then an `Outcome`: samples, the text for the prompts that follow, and a fault where the
text is not the value that was asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from .backend import Backend, GenerateRequest, Generation, Handle, Meta, OnText, Score, ScoreRequest
from .choices import score_end_flags
from .constraint import Constraint
from .errors import BackendError, CancelledError, IncompleteOutputError, ResultError
from .ir import GenCall, Node, Op, SelectCall
from .prompt import Generated, Prompt

__all__ = ["Outcome", "outcome", "request_of", "submit"]


@dataclass(frozen=True)
class Outcome:
    """What became of a node.

    Attributes:
        generations: its samples.
        written: the first one, as a part of later prompts.
        fault: why a sample is not the value that was asked for.
    """

    generations: tuple[Generation, ...]
    written: Generated
    fault: ResultError | None = None


def request_of(node: Node, prompt: Prompt) -> GenerateRequest | ScoreRequest:
    """What the node asks of a backend after this prompt."""
    return _TABLE[node.op].request(node.payload, prompt)


def submit(backend: Backend, request: GenerateRequest | ScoreRequest, on_text: OnText | None) -> Handle[Any]:
    """Starts the request; raises what the backend raises."""
    if isinstance(request, GenerateRequest):
        return backend.submit(request, on_text)
    return backend.submit_score(request)


def outcome(node: Node, result: Any) -> Outcome:
    """What the node makes of its request's result.

    Raises:
        CancelledError: the backend ended the request with `finish_reason="cancelled"`.
        BackendError: the backend's result is not what the contract says.
    """
    return _TABLE[node.op].outcome(node.payload, result)


def _gen_request(call: GenCall, prompt: Prompt) -> GenerateRequest:
    return GenerateRequest(prompt, call.sampling, call.constraint, call.name)


def _gen_outcome(call: GenCall, result: list[Generation]) -> Outcome:
    wanted = call.sampling.n or 1
    if len(result) != wanted:
        raise BackendError(f"gen {call.name!r}: n={wanted} samples wanted, the backend gave {len(result)}")
    for generation in result:
        if generation.meta.finish_reason == "cancelled":
            raise CancelledError(f"gen {call.name!r} was cancelled")
    checked = [_checked(call, generation) for generation in result]
    first = result[0]
    written = Generated(first.text, first.token_ids or None, first.meta.finish_reason, first.replaced)
    fault = next((fault for _, fault in checked if fault is not None), None)
    return Outcome(tuple(generation for generation, _ in checked), written, fault)


def _checked(call: GenCall, generation: Generation) -> tuple[Generation, ResultError | None]:
    """The generation with its value, or with the reason why it has none."""
    if call.constraint is None:
        return replace(generation, value=generation.text), None
    if generation.meta.finish_reason == "length":
        return generation, IncompleteOutputError(
            f"gen {call.name!r} was cut short after {generation.meta.completion_tokens} tokens, so its text is no "
            f"whole {call.constraint.kind} value: {_end_of(generation.text)}; give it more max_tokens",
            text=generation.text,
            name=call.name,
        )
    if generation.value is not None:
        return generation, None
    return _parsed(call, call.constraint, generation)


def _parsed(call: GenCall, constraint: Constraint, generation: Generation) -> tuple[Generation, ResultError | None]:
    try:
        return replace(generation, value=constraint.parse(generation.text)), None
    except ResultError as error:
        if getattr(error, "name", call.name) is None:
            vars(error)["name"] = call.name
        return generation, error


def _select_request(call: SelectCall, prompt: Prompt) -> ScoreRequest:
    return ScoreRequest(
        prompt,
        call.choices,
        score_end=score_end_flags(call.choices),
        unconditional=call.method.needs_unconditional,
        sampling=call.sampling,
        name=call.name,
    )


def _select_outcome(call: SelectCall, result: Sequence[Score]) -> Outcome:
    decision = call.method.decide(call.choices, list(result), temperature=call.temperature, seed=call.sampling.seed)
    choice, score = call.choices[decision.index], result[decision.index]
    computed: Counter[str] = Counter()
    for one in result:
        computed.update(one.computed)
    meta = Meta(
        finish_reason="stop",
        prompt_tokens=score.prompt_tokens,
        cached_tokens=min(one.cached_tokens for one in result),  # the others find what the first one computed
        computed=dict(computed),
        submitted_at=score.submitted_at,
        queue_s=min(one.queue_s for one in result),
        total_s=max(one.total_s for one in result),
        completion_tokens=len(score.token_ids),
        token_ids=score.token_ids,
        logprobs=score.token_logprobs,
        probabilities=decision.probabilities,
        choice_logprobs=decision.scores,
    )
    # No ids: those that were scored may begin with a token of the literal before, and the choice was not sampled.
    return Outcome((Generation(choice, score.token_ids, choice, meta),), Generated(choice))


class _Row(NamedTuple):
    request: Callable[[Any, Prompt], GenerateRequest | ScoreRequest]
    outcome: Callable[[Any, Any], Outcome]


_TABLE: dict[Op, _Row] = {
    Op.GEN: _Row(_gen_request, _gen_outcome),
    Op.SELECT: _Row(_select_request, _select_outcome),
}


def _end_of(text: str) -> str:
    return repr(text) if len(text) <= 60 else "…" + repr(text[-60:])
