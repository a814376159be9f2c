"""A request and its answer as JSON, and what two requests differ in.

In: requests, generations, scores, errors. Out: JSON for a line of a recording, the answers again, a sentence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from ..backend import GenerateRequest, Generation, Meta, Score, ScoreRequest
from ..backends.messages import chatml
from ..saved.values import decode, decode_prompt, encode, encode_prompt

__all__ = ["Asked", "as_answer", "asked_of", "difference", "generations_of", "key_of", "label_of", "scores_of"]

Asked = Mapping[str, Any]
"""What a request asks for, as JSON."""

_NOT_ASKED = ("priority", "timeout")  # they change when an answer comes, not which
_AROUND = 30


def asked_of(request: GenerateRequest | ScoreRequest) -> dict[str, Any]:
    """What a request asks for; equal requests give equal JSON in every process."""
    said = {name: value for name, value in request.sampling.said().items() if name not in _NOT_ASKED}
    asked: dict[str, Any] = {
        "kind": "gen" if isinstance(request, GenerateRequest) else "select",
        "name": request.name,
        "prompt": _joined(encode_prompt(request.prompt)),
        "sampling": json.loads(json.dumps(said)),
    }
    if isinstance(request, GenerateRequest):
        if (constraint := request.constraint) is not None:
            text = constraint.source or constraint.text
            asked["constraint"] = {"kind": constraint.kind, "text": text, "options": list(constraint.options)}
    else:
        asked |= {"choices": list(request.continuations), "ends": list(request.score_end)}
        asked["unconditional"] = request.unconditional
    return asked


def _joined(parts: Sequence[list[str]]) -> list[list[str]]:
    """The parts with adjacent literals as one: how a program cuts its text is no part of what it asks."""
    joined: list[list[str]] = []
    for part in parts:
        if joined and part[0] == joined[-1][0] == "text":
            joined[-1] = ["text", joined[-1][1] + part[1]]
        else:
            joined.append(list(part))
    return joined


def key_of(asked: Asked) -> str:
    """The same for equal requests."""
    return json.dumps(asked, sort_keys=True)


def label_of(asked: Asked) -> str:
    """What people call it."""
    return f"{asked['kind']} {asked['name']!r}"


def difference(recorded: Asked, asked: Asked) -> tuple[str, str, str]:
    """What two requests of one name differ in: the sentence, what was recorded, what is asked."""
    before, now = (chatml(decode_prompt(of["prompt"])) for of in (recorded, asked))
    if before != now:
        at = next((i for i, (x, y) in enumerate(zip(before, now)) if x != y), min(len(before), len(now)))
        return f"the prompt differs from character {at} on", _around(before, at), _around(now, at)
    for field, words in (("choices", "the choices differ"), ("constraint", "the constraint differs")):
        if recorded.get(field) != asked.get(field):
            return words, json.dumps(recorded.get(field)), json.dumps(asked.get(field))
    said, says = recorded["sampling"], asked["sampling"]
    for name in dict.fromkeys([*said, *says]):
        if said.get(name) != says.get(name):
            return f"{name} differs", f"{name}={said.get(name)!r}", f"{name}={says.get(name)!r}"
    return "where its values stand differs", json.dumps(recorded["prompt"]), json.dumps(asked["prompt"])


def _around(text: str, at: int) -> str:
    begin, end = max(0, at - _AROUND), at + _AROUND
    return ("…" if begin else "") + text[begin:end] + ("…" if end < len(text) else "")


# ---- answers


def as_answer(result: Sequence[Generation] | Sequence[Score]) -> list[dict[str, Any]]:
    """What a request was answered with."""
    return [_generation(one) if isinstance(one, Generation) else _plain(one) for one in result]


def _generation(one: Generation) -> dict[str, Any]:
    return {
        "text": one.text,
        "token_ids": list(one.token_ids),
        "replaced": list(one.replaced),
        "meta": encode(one.meta),
    }


def _plain(score: Score) -> dict[str, Any]:
    return {field.name: encode(getattr(score, field.name)) for field in fields(Score)}


def generations_of(answer: Sequence[Mapping[str, Any]]) -> list[Generation]:
    """The samples of a `gen`."""
    return [
        Generation(
            str(one["text"]),
            tuple(one.get("token_ids", ())),
            meta=decode(one["meta"], _no_type) if "meta" in one else Meta("stop"),
            replaced=tuple(one.get("replaced", ())),
        )
        for one in answer
    ]


def scores_of(answer: Sequence[Mapping[str, Any]]) -> list[Score]:
    """The scores of a `select`."""
    return [Score(**{name: decode(value, _no_type) for name, value in one.items()}) for one in answer]


def _no_type(name: str) -> None:
    return None
