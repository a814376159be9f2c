"""The OpenAI protocol as data: our requests as bodies of calls, the parts of its answers as pieces of samples.

In: a `GenerateRequest` or `ScoreRequest`; JSON of a response or of a chunk of a stream. Out: a `Call`; `Piece`s.
What the protocol cannot say is refused here, by name and with the reason, before anything is sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..backend import GenerateRequest, ScoreRequest
from ..errors import ChatTemplateError, SamplingError, UnsupportedError
from ..prompt import Prompt
from ..sampling import SamplingParams
from .conform import plain_schema
from .messages import chatml, split_turns
from .openai_guided import guided

if TYPE_CHECKING:
    from ..constraint import Constraint

__all__ = ["Call", "Dialect", "Piece", "generate_call", "pieces", "score_call", "unwrap"]

MAX_SERVER_STOPS = 4  # the protocol's limit

# Sampling parameters that vLLM, SGLang and others take beside the protocol's own, and the values that ask for nothing.
_EXTENDED: dict[str, tuple[Any, ...]] = {
    "min_tokens": (0,),
    "stop_token_ids": ((),),
    "top_k": (0, -1),
    "min_p": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "ignore_eos": (False,),
}
_COMMON = ("temperature", "top_p", "frequency_penalty", "presence_penalty", "seed", "n")
_DTYPES = {int: {"type": "integer"}, float: {"type": "number"}, bool: {"type": "boolean"}}


@dataclass(frozen=True)
class Dialect:
    """What a server is and takes.

    Attributes:
        model: its name for the model.
        chat: whether the chat endpoint is used, else the completions endpoint.
        extended: whether the server takes what vLLM and SGLang add to the protocol.
        server: whose words for constraints it knows (`openai_guided.py`), or None.
    """

    model: str
    chat: bool
    extended: bool
    server: str | None = None


@dataclass(frozen=True)
class Call:
    """A call to make.

    Attributes:
        body: the arguments of the client's `create`.
        own_stops: whether stops are found here, in the stream, for the server cannot be told of them.
        wrapped: whether the text comes inside `{"value": …}`.
    """

    body: dict[str, Any]
    own_stops: bool = False
    wrapped: bool = False


@dataclass(frozen=True)
class Piece:
    """What a response or a chunk says about one sample."""

    index: int
    text: str
    finish_reason: str | None = None
    refusal: str = ""
    matched_stop: str | int | None = None
    logprobs: tuple[float, ...] = ()
    token_texts: tuple[str, ...] = ()


def generate_call(request: GenerateRequest, dialect: Dialect, *, stream: bool) -> Call:
    """The call for a generation.

    Args:
        request: what is asked for.
        dialect: of the server.
        stream: whether pieces are wanted as they come; stops that the server cannot be told of need it anyway.

    Raises:
        UnsupportedError: something that the protocol, this endpoint or this server has no words for.
        SamplingError: the completions endpoint without `max_tokens`.
        ChatTemplateError: a role on the completions endpoint.
    """
    s = request.sampling
    stops = s.stop or ()
    own_stops = bool(s.stop_regex) or len(stops) > MAX_SERVER_STOPS or (bool(s.keep_stop) and bool(stops))
    body = {"model": dialect.model, **_prompt(request.prompt, dialect), **_sampling(s, dialect)}
    bound = guided(request.constraint, dialect.server, chat=dialect.chat)
    if extra := {**_continuing(request.prompt, dialect), **_extended(s, dialect), **bound}:
        body["extra_body"] = extra
    if stops and not own_stops:
        body["stop"] = list(stops)
    response_format, wrapped = _response_format(None if bound else request.constraint, dialect)
    if response_format:
        body["response_format"] = response_format
    if stream or own_stops:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return Call(body, own_stops, wrapped)


def score_call(request: ScoreRequest, dialect: Dialect) -> Call:
    """The call for a `select`.

    On the completions endpoint the choices are echoed with their logprobs. The chat endpoint tells no logprobs of
    text it did not write: there the model writes one of the choices, bound by a JSON schema.

    Raises:
        UnsupportedError: the end of the turn, or likelihood without a prompt, is to be scored on the completions
            endpoint, which tells neither.
    """
    if dialect.chat:
        schema = _wrap({"type": "string", "enum": list(request.continuations)})
        body = {"model": dialect.model, **_prompt(request.prompt, dialect), "response_format": schema, "temperature": 0}
        if extra := _continuing(request.prompt, dialect):
            body["extra_body"] = extra
        return Call(body, wrapped=True)
    if any(request.score_end):
        ends = [c for c, end in zip(request.continuations, request.score_end) if end]
        raise UnsupportedError(
            f"one of the choices {ends} is a prefix of another, and the completions endpoint tells no logprob of the "
            "end of the text, so they cannot be compared; reword the choices, or use a chat model or a local one"
        )
    if request.unconditional:
        raise UnsupportedError(
            "unconditional_likelihood_normalized: the completions endpoint tells no logprob of a first token; "
            "use another choices_method"
        )
    prompt = _prompt(request.prompt, dialect)["prompt"]
    prompts = [prompt + continuation for continuation in request.continuations]
    return Call(
        {"model": dialect.model, "prompt": prompts, "max_tokens": 0, "echo": True, "logprobs": 1, "temperature": 0}
    )


def pieces(data: Mapping[str, Any]) -> Iterator[Piece]:
    """What a response, or one chunk of a stream, of either endpoint says."""
    for choice in data.get("choices") or ():
        message = choice.get("message") or choice.get("delta") or {}
        logprobs = choice.get("logprobs") or {}
        content = logprobs.get("content")
        if content is not None:
            values, texts = [t["logprob"] for t in content], [t["token"] for t in content]
        else:
            values, texts = logprobs.get("token_logprobs") or [], logprobs.get("tokens") or []
        yield Piece(
            index=choice.get("index") or 0,
            text=choice.get("text") or message.get("content") or "",
            finish_reason=choice.get("finish_reason"),
            refusal=message.get("refusal") or "",
            matched_stop=_first(choice.get("matched_stop"), choice.get("stop_reason")),
            logprobs=tuple(values),
            token_texts=tuple(texts),
        )


def unwrap(text: str, constraint: Constraint | None) -> str:
    """The text of the value that came as `{"value": …}`; text that is no such object stays as it is.

    Args:
        text: what the server wrote.
        constraint: of the `gen`; None for a `select`, whose value is a string.
    """
    try:
        value = json.loads(text)["value"]
    except (ValueError, TypeError, KeyError):
        return text
    if constraint is not None and constraint.form == "json":
        return json.dumps(value, ensure_ascii=False)
    if constraint is not None and constraint.type is float and isinstance(value, int):
        value = float(value)
    return value if isinstance(value, str) else str(value)


def _first(*values: Any) -> Any:
    return next((v for v in values if v is not None), None)


def _prompt(prompt: Prompt, dialect: Dialect) -> dict[str, Any]:
    chat = split_turns(prompt)
    if not dialect.chat:
        if chat.messages or chat.open is not None:
            raise ChatTemplateError(
                f"a role was used, and the completions endpoint of {dialect.model!r} has no chat template; "
                "make the backend with chat=True, or write the prompt as plain text"
            )
        return {"prompt": chatml(prompt)}
    if chat.raw.strip():
        raise UnsupportedError(
            f"the text {chat.raw.strip()[:60]!r} stands outside of every role, which a chat endpoint cannot be told; "
            "put it into a role, or make the backend with chat=False"
        )
    if chat.open is None or chat.open["role"] != "assistant":
        where = "outside of every role" if chat.open is None else f"in a {chat.open['role']!r} turn"
        raise UnsupportedError(f"a model call stands {where}; a chat endpoint only writes assistant turns")
    if not chat.open["content"]:
        return {"messages": chat.messages}
    if not dialect.extended:
        raise UnsupportedError(
            f"the assistant turn begins with {chat.open['content'][:60]!r}, and the OpenAI protocol cannot continue a "
            "turn; leave the text out, or (where the server can, as vLLM and SGLang) make the backend with "
            "extended=True"
        )
    return {"messages": chat.all_messages()}


def _continuing(prompt: Prompt, dialect: Dialect) -> dict[str, Any]:
    """How a server that can is told to go on with a turn that has begun."""
    begun = split_turns(prompt).open
    if not dialect.chat or begun is None or not begun["content"]:
        return {}
    return {"continue_final_message": True, "add_generation_prompt": False}


def _sampling(s: SamplingParams, dialect: Dialect) -> dict[str, Any]:
    for name in ("logprob_start_len", "top_logprobs", "token_healing"):
        if getattr(s, name):
            raise UnsupportedError(f"{name}={getattr(s, name)!r}: the OpenAI protocol knows no token ids of the prompt")
    body = {name: getattr(s, name) for name in _COMMON if getattr(s, name) is not None}
    if s.max_tokens is not None:
        # OpenAI's own chat endpoint renamed it; the other servers know the first name.
        body["max_completion_tokens" if dialect.chat and not dialect.extended else "max_tokens"] = s.max_tokens
    elif not dialect.chat:
        raise SamplingError("max_tokens is not given: the completions endpoint would cut the text after 16 tokens")
    if s.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in s.logit_bias.items()}
    if s.logprobs:
        body["logprobs"] = True if dialect.chat else 1
    return body


def _extended(s: SamplingParams, dialect: Dialect) -> dict[str, Any]:
    extra: dict[str, Any] = {}
    for name, neutral in _EXTENDED.items():
        value = getattr(s, name)
        if value is None or value in neutral:
            continue
        if not dialect.extended:
            raise UnsupportedError(
                f"{name}={value!r}: the OpenAI protocol has no such parameter; leave it out, or (where the server "
                "takes it, as vLLM and SGLang) make the backend with extended=True"
            )
        extra[name] = list(value) if isinstance(value, tuple) else value
    return extra


def _response_format(constraint: Constraint | None, dialect: Dialect) -> tuple[dict[str, Any] | None, bool]:
    if constraint is None:
        return None, False
    schema: Any
    form = "wrapped" if constraint.wraps else constraint.form
    if form == "choices":
        schema = {"type": "string", "enum": list(constraint.options)}
    elif form == "json":
        schema = plain_schema(constraint)
    elif constraint.kind == "dtype" and form != "wrapped":
        schema = _DTYPES[constraint.type]
    else:
        raise UnsupportedError(
            f"a {constraint.kind} constraint: the OpenAI protocol can bind a text to a JSON schema only; use schema=, "
            "a local model, or (where the server is one of these) make the backend with server='vllm' or 'sglang'"
        )
    if not dialect.chat:
        raise UnsupportedError(
            f"a {constraint.kind} constraint: the completions endpoint cannot bind a text; make the backend with "
            "chat=True (or server='vllm' or 'sglang', where it is one of these), or use a local model"
        )
    if isinstance(schema, dict) and (schema.get("type") == "object" or _names_its_root(schema)):
        return _named(schema), False
    return _wrap(schema), True


def _names_its_root(schema: Any) -> bool:
    """Whether a `$ref` would point elsewhere if the schema stood inside another one."""
    if isinstance(schema, dict):
        ref = schema.get("$ref")
        if isinstance(ref, str) and ref.startswith("#") and not ref.startswith("#/$defs/"):
            return True
        return any(map(_names_its_root, schema.values()))
    return isinstance(schema, list) and any(map(_names_its_root, schema))


def _wrap(schema: Any) -> dict[str, Any]:
    """A value that is no object, inside one: the protocol's schemas must be objects."""
    inner = {k: v for k, v in schema.items() if k != "$defs"} if isinstance(schema, dict) else schema
    outer = {"type": "object", "properties": {"value": inner}, "required": ["value"], "additionalProperties": False}
    if isinstance(schema, dict) and "$defs" in schema:
        outer["$defs"] = schema["$defs"]
    return _named(outer)


def _named(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "value", "schema": schema, "strict": _is_strict(schema)}}


def _is_strict(schema: Any) -> bool:
    """Whether OpenAI's strict mode takes it: closed objects, no optional properties. Else the server does its best."""
    if isinstance(schema, list):
        return all(map(_is_strict, schema))
    if not isinstance(schema, dict):
        return True
    if schema.get("type") == "object":
        open_end = schema.get("additionalProperties") is not False or "patternProperties" in schema
        if open_end or set(schema.get("required", ())) != set(schema.get("properties", {})):
            return False
    return all(_is_strict(value) for keyword, value in schema.items() if keyword not in ("enum", "const"))
