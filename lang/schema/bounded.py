"""An independent validator whose work is bounded.

In: a validator class of the `jsonschema` package. Out: the same that counts the keywords it looks at, and gives up: a
schema of few lines may say the same thing 2^40 times over. A search for a pattern is bounded in time as well.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from typing import Any

import regex

__all__ = ["TooMuchWork", "bounded", "start"]

_MOST_KEYWORDS = 200_000
_MOST_SECONDS = 0.5


class TooMuchWork(Exception):
    """The validator looked at too many keywords, or at a pattern for too long."""


class _Work(threading.local):
    left = _MOST_KEYWORDS


_work = _Work()


@functools.cache
def bounded(validator: Any) -> Any:
    """The validator's class, bounded. Its `is_valid` may raise TooMuchWork; `start` begins to count anew."""
    import jsonschema

    library: Any = jsonschema.validators
    rules = {name: _counted(rule) for name, rule in validator.VALIDATORS.items()}
    rules["pattern"] = _counted(_pattern)
    return library.extend(validator, rules)


def start(keywords: int = _MOST_KEYWORDS) -> None:
    """Begins to count anew, in this thread."""
    _work.left = keywords


def _counted(rule: Any) -> Any:
    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        _work.left -= 1
        if _work.left < 0:
            raise TooMuchWork
        yield from rule(validator, value, instance, schema) or ()

    return check


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    import jsonschema

    if not validator.is_type(instance, "string"):
        return
    try:
        found = regex.search(pattern, instance, flags=regex.VERSION0, timeout=_MOST_SECONDS)
    except TimeoutError as error:
        raise TooMuchWork from error
    if found is None:
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")
