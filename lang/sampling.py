"""The one place where a sampling parameter is spelled.

In: keywords of `gen`, `run`, `@function`, `rt.generate`, under our names or SGLang's.
Out: a `SamplingParams` (every field may be `None`, "not said"), merged over its defaults by `over`, and checked.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from .errors import SamplingError

__all__ = ["ALIASES", "MAX_SAMPLES", "SamplingParams", "sampling_field_names", "split_sampling"]

# SGLang's spelling → ours.
ALIASES: dict[str, str] = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "return_logprob": "logprobs",
    "top_logprobs_num": "top_logprobs",
    "sampling_seed": "seed",
}


MAX_SAMPLES = 65_536
"""Most samples of one request: each is a sequence of its own, and is held until the last one has ended."""


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn. `None` means "not said": the program's default, then the model's, then the last column.

    Attributes:
        max_tokens: most tokens to generate, ≥ 0 (0: nothing is generated); else up to the context's end.
        min_tokens: end tokens and stops are not taken before this many tokens; else 0.
        n: how many samples, at most `MAX_SAMPLES`; the first one continues the text; else 1.
        stop: strings that end the text; they are cut off unless `keep_stop`; else none.
        stop_token_ids: token ids that end the text, beside the model's own end tokens.
        stop_regex: patterns (Python `regex` syntax) that end the text where they first match.
        keep_stop: whether the matched stop stays in the text; else False.
        temperature: ≥ 0; 0 takes the most likely token (the lowest id among equals); else the model's, else 1.0.
        top_p: nucleus mass in (0, 1]; else the model's, else 1.
        top_k: tokens kept, ≥ 1, or -1 or 0 for all; else the model's, else all.
        min_p: least probability relative to the most likely token, in [0, 1]; else 0.
        frequency_penalty: in [-2, 2], subtracted per earlier occurrence in the generated text; else 0.
        presence_penalty: in [-2, 2], subtracted once for each token id generated before; else 0.
        repetition_penalty: > 0, divides positive and multiplies negative logits of tokens seen in prompt and output
            (CTRL, Keskar et al. 2019); else 1.
        logit_bias: token id → value added to its logit.
        seed: draws depend only on (seed, sample index, position); else fresh randomness per request.
        ignore_eos: whether the model's end tokens are ordinary tokens; else False.
        logprobs: whether `meta.logprobs` is wanted; else False.
        logprob_start_len: prompt position from which `meta.prompt_logprobs` is wanted; else none of the prompt.
        top_logprobs: how many alternatives per position `meta.top_logprobs` lists, ≥ 0; else 0.
        return_text_in_logprobs: whether the logprob entries carry the token's text; else False.
        priority: a higher number is served earlier; else 0.
        timeout: seconds after which the request is cancelled with `DeadlineError`; else never.
        token_healing: whether the last tokens of a prompt that ends with a literal are chosen anew together with the
            first generated one, where a longer token could have begun there; else in raw text, not in role turns.
    """

    max_tokens: int | None = None
    min_tokens: int | None = None
    n: int | None = None
    stop: tuple[str, ...] | None = None
    stop_token_ids: tuple[int, ...] | None = None
    stop_regex: tuple[str, ...] | None = None
    keep_stop: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    ignore_eos: bool | None = None
    logprobs: bool | None = None
    logprob_start_len: int | None = None
    top_logprobs: int | None = None
    return_text_in_logprobs: bool | None = None
    priority: int | None = None
    timeout: float | None = None
    token_healing: bool | None = None

    @classmethod
    def of(cls, **kwargs: Any) -> SamplingParams:
        """From keywords under our names or the aliases; a bare string or int for `stop*` becomes a tuple.

        Raises:
            SamplingError: a value out of its range, a name given under both spellings.
            TypeError: a keyword that is no sampling parameter.
        """
        if _PLAIN.issuperset(map(type, kwargs.values())):
            return _of_plain(**kwargs)
        return cls._of(kwargs)

    @classmethod
    def _of(cls, kwargs: Mapping[str, Any]) -> SamplingParams:
        fields: dict[str, Any] = {}
        for key, value in kwargs.items():
            name = ALIASES.get(key, key)
            if name not in _FIELDS:
                raise TypeError(f"{key!r} is not a sampling parameter; known: {', '.join(sorted(_FIELDS))}")
            if fields.get(name) is not None and value is not None:
                raise SamplingError(f"{name} is given twice, as {key!r} and under its other name; give it once")
            if value is not None or name not in fields:
                fields[name] = _normalise(name, value)
        params = cls(**fields)
        params.check()
        return params

    def over(self, defaults: SamplingParams | None) -> SamplingParams:
        """These parameters, and where they say nothing, those of `defaults`."""
        if defaults is None or not defaults._said:
            return self
        return dataclasses.replace(defaults, **self._said) if self._said else defaults

    def check(self) -> None:
        """Raises SamplingError naming the field, the value and what is allowed; looks once."""
        if "_passed" in vars(self):
            return
        for name, (kind, allowed, test) in _RULES.items():
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, kind) or not test(value):
                raise SamplingError(f"{name}={value!r}: must be {allowed}")
        for name in ("keep_stop", "ignore_eos", "logprobs", "return_text_in_logprobs", "token_healing"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, bool):
                raise SamplingError(f"{name}={value!r}: must be True or False")
        for name in ("stop", "stop_regex"):
            for item in getattr(self, name) or ():
                if not isinstance(item, str) or not item:
                    raise SamplingError(f"{name} contains {item!r}: must be non-empty strings")
        for token in self.stop_token_ids or ():
            if isinstance(token, bool) or not isinstance(token, int) or token < 0:
                raise SamplingError(f"stop_token_ids contains {token!r}: must be token ids, integers ≥ 0")
        for token, bias in (self.logit_bias or {}).items():
            if isinstance(token, bool) or not isinstance(token, int) or token < 0:
                raise SamplingError(f"logit_bias has the key {token!r}: must be token ids, integers ≥ 0")
            if not isinstance(bias, (int, float)) or math.isnan(bias) or bias == math.inf:
                raise SamplingError(f"logit_bias[{token}]={bias!r}: must be a number below infinity")
        if self.min_tokens is not None and self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise SamplingError(f"min_tokens={self.min_tokens} is more than max_tokens={self.max_tokens}")
        vars(self)["_passed"] = True

    def said(self) -> dict[str, Any]:
        """The fields that are not None."""
        return dict(self._said)

    @cached_property
    def _said(self) -> dict[str, Any]:
        return {name: value for name in _FIELDS if (value := getattr(self, name)) is not None}


_FIELDS = frozenset(f.name for f in dataclasses.fields(SamplingParams))
_NAMES = _FIELDS | ALIASES.keys()

_REAL = (int, float)
_RULES: dict[str, tuple[Any, str, Any]] = {
    "max_tokens": (int, "an integer ≥ 0", lambda v: v >= 0),
    "min_tokens": (int, "an integer ≥ 0", lambda v: v >= 0),
    "n": (int, f"an integer ≥ 1 and ≤ {MAX_SAMPLES}", lambda v: 1 <= v <= MAX_SAMPLES),
    "temperature": (_REAL, "a finite number ≥ 0", lambda v: math.isfinite(v) and v >= 0),
    "top_p": (_REAL, "a number in (0, 1]", lambda v: 0 < v <= 1),
    "top_k": (int, "an integer ≥ 1, or -1 or 0 for all", lambda v: v >= -1),
    "min_p": (_REAL, "a number in [0, 1]", lambda v: 0 <= v <= 1),
    "frequency_penalty": (_REAL, "a number in [-2, 2]", lambda v: -2 <= v <= 2),
    "presence_penalty": (_REAL, "a number in [-2, 2]", lambda v: -2 <= v <= 2),
    "repetition_penalty": (_REAL, "a finite number > 0", lambda v: math.isfinite(v) and v > 0),
    "seed": (int, "an integer", lambda v: True),
    "logprob_start_len": (int, "an integer ≥ 0", lambda v: v >= 0),
    "top_logprobs": (int, "an integer ≥ 0", lambda v: v >= 0),
    "priority": (int, "an integer", lambda v: True),
    "timeout": (_REAL, "a number of seconds > 0", lambda v: v > 0),
}


# A batch says the same of thousands of `gen`s. `True` is not `1` here, so values are told apart by their types, too;
# those inside of a list or a dict are not, so these are left out.
_PLAIN = frozenset({type(None), bool, int, float, str})


@lru_cache(maxsize=256, typed=True)
def _of_plain(**kwargs: Any) -> SamplingParams:
    return SamplingParams._of(kwargs)


def sampling_field_names() -> frozenset[str]:
    """Every keyword that names a sampling parameter, aliases included."""
    return _NAMES


def split_sampling(kwargs: Mapping[str, Any], reserved: Iterable[str] = ()) -> tuple[SamplingParams, dict[str, Any]]:
    """Sorts `kwargs` into sampling parameters and the rest; a name in `reserved` is never a sampling parameter."""
    names = _NAMES - set(reserved) if reserved else _NAMES
    mine = {k: v for k, v in kwargs.items() if k in names}
    return SamplingParams.of(**mine), {k: v for k, v in kwargs.items() if k not in names}


def _normalise(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in ("stop", "stop_regex"):
        return (value,) if isinstance(value, str) else _many(name, value, "a string or a list of strings")
    if name == "stop_token_ids":
        return (value,) if isinstance(value, int) else _many(name, value, "a token id or a list of them")
    if name == "logit_bias":
        if not isinstance(value, Mapping):
            raise SamplingError(f"logit_bias={value!r}: must map token ids to numbers")
        return {int(k) if isinstance(k, str) and k.isdigit() else k: v for k, v in value.items()}
    if name == "timeout" and isinstance(value, int):
        return float(value)
    return value


def _many(name: str, value: Any, wanted: str) -> tuple[Any, ...]:
    if not isinstance(value, Iterable) or isinstance(value, (bytes, bytearray, Mapping)):
        raise SamplingError(f"{name}={value!r}: must be {wanted}")
    return tuple(value)
