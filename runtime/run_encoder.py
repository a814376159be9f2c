"""Encodes a run of text in which it is known where a spelling of a special token means the token.

In: the JSON of a `tokenizers.Tokenizer`, a text, its genuine stretches. Out: ids. Where every spelling in the text is
genuine, they are exactly those of the tokenizer itself.

The text is cut at genuine special tokens only. Each piece between is encoded by a copy of the tokenizer that knows no
added token, so that nothing in it can become one. A second copy adds no leading space: it encodes what continues a
text whose ids are fixed. Long pieces are cut further where that changes no id (`text_cuts.py`), so that what long
texts begin with alike is encoded once, and looked up at once where it was there a moment ago (`shared_starts.py`).
"""

from __future__ import annotations

import copy
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

from ..errors import InvalidValueError
from .shared_starts import Encoded, SharedStarts
from .special_tokens import Span, SpecialTokens, is_markup
from .text_cuts import may_cut, pieces

__all__ = ["RunCache", "RunEncoder"]

_CACHE_CHARS = 2_000_000  # about half a million tokens


class RunCache:
    """The least recently used encodings, bounded by the length of their texts. Usable from many threads."""

    def __init__(self, max_chars: int = _CACHE_CHARS) -> None:
        self._max_chars = max_chars
        self._lock = threading.Lock()
        self._entries: OrderedDict[tuple[str, str], tuple[int, ...]] = OrderedDict()
        self.num_chars = 0

    def get(self, key: tuple[str, str]) -> tuple[int, ...] | None:
        """The ids of a run that was put, else None."""
        with self._lock:
            ids = self._entries.get(key)
            if ids is not None:
                self._entries.move_to_end(key)
            return ids

    def put(self, key: tuple[str, str], ids: tuple[int, ...]) -> None:
        """Keeps a run and drops the oldest ones that no longer fit."""
        with self._lock:
            if key in self._entries or len(key[0]) > self._max_chars:
                return
            self._entries[key] = ids
            self.num_chars += len(key[0])
            while self.num_chars > self._max_chars:
                (text, _), _ = self._entries.popitem(last=False)
                self.num_chars -= len(text)


class RunEncoder:
    """Encodes runs for one tokenizer. Immutable but for its cache; usable from many threads.

    Args:
        spec: the tokenizer's JSON (`Tokenizer.to_str()`, parsed).
        specials: its added tokens.
    """

    def __init__(self, spec: dict[str, Any], specials: SpecialTokens) -> None:
        self._specials = specials
        plain = _without_markup(spec)
        bare, self._prefix = _without_prefix(plain)
        self._plain = _Piecewise(plain, spec)
        self._bare = self._plain if self._prefix == "none" else _Piecewise(bare, spec)
        self._cuts = may_cut(bare)
        self._whole: Any = None if _splits_like_us(spec) else _load(_without_limits(spec))
        self._cache = RunCache()
        self._starts = {kind: SharedStarts() for kind in ("prefixed", "bare")}

    def encode(self, text: str, genuine: Sequence[Span], *, at_start: bool) -> list[int]:
        """The ids of a run.

        Args:
            text: the run.
            genuine: sorted, disjoint stretches of it in which special spellings mean their tokens.
            at_start: whether nothing stands before it; else it continues a text whose ids are fixed.
        """
        matches = self._specials.find(text, genuine)
        if self._whole is not None and at_start and matches == self._specials.find(text, [(0, len(text))]):
            return list(self._cached(text, "whole"))
        ids: list[int] = []
        at = 0
        for match in matches:
            ids += self._piece(text[at : match.start], at == 0, at_start)
            ids.append(match.token_id)
            at = match.stop
        ids += self._piece(text[at:], at == 0, at_start)
        return ids

    def _piece(self, text: str, is_first: bool, at_start: bool) -> Sequence[int]:
        if not text:
            return ()
        if self._prefix == "each":
            prefixed = at_start or not is_first
        else:
            prefixed = self._prefix == "first" and at_start and is_first
        kind = "prefixed" if prefixed else "bare"
        if not self._cuts:
            return self._cached(text, kind)
        starts = self._starts[kind]
        found = starts.find(text)
        known, shared = found or (None, 0)
        at = 0 if known is None else known.borders[shared - 1]
        ids = [] if known is None else known.ids[: known.counts[shared - 1]]
        borders = [] if known is None else known.borders[:shared]
        counts = [] if known is None else known.counts[:shared]
        for piece in pieces(text, at):
            ids += self._cached(piece, "bare" if at else kind)
            at += len(piece)
            borders.append(at)
            counts.append(len(ids))
        starts.keep(Encoded(text, ids, borders[:-1], counts[:-1]), known, shared)  # the last one is no cut
        return ids

    def _cached(self, text: str, kind: str) -> tuple[int, ...]:
        ids = self._cache.get((text, kind))
        if ids is None:
            if kind == "whole":
                ids = tuple(_encode(self._whole, text))
            else:
                ids = tuple(self._encode_piece(text, self._plain if kind == "prefixed" else self._bare))
            self._cache.put((text, kind), ids)
        return ids

    def _encode_piece(self, text: str, first: _Piecewise) -> list[int]:
        ids = first.encode(text)
        if not first.makes_special(text, ids):
            return ids
        # The vocabulary itself has the spelling (Unigram): no piece may then contain it whole.
        pieces = list(_cut_inside(text, self._specials.spellings(text)))
        return first.encode(pieces[0]) + [i for piece in pieces[1:] for i in self._bare.encode(piece)]


class _Piecewise:
    """A tokenizer without markup, whose ids are those of the whole tokenizer."""

    def __init__(self, spec: dict[str, Any], whole_spec: dict[str, Any]) -> None:
        self._tokenizer = _load(spec)
        # Added tokens are numbered anew when others are left out.
        new_ids = {t["id"]: self._tokenizer.token_to_id(t["content"]) for t in spec["added_tokens"]}
        self._renamed = {new: old for old, new in new_ids.items() if new != old}
        self._markup = {t["id"]: t["content"] for t in whole_spec["added_tokens"] if is_markup(t["content"])}

    def encode(self, text: str) -> list[int]:
        ids: list[int] = _encode(self._tokenizer, text)
        return [self._renamed.get(i, i) for i in ids] if self._renamed else ids

    def makes_special(self, text: str, ids: list[int]) -> bool:
        """Whether an id is markup that the text spells (the unknown token may stand there for what has none)."""
        if self._markup.keys().isdisjoint(ids):
            return False
        return any(i in self._markup and self._markup[i] in text for i in set(ids))


def _cut_inside(text: str, spellings: Sequence[Span]) -> Iterator[str]:
    at = 0
    for begin, _ in spellings:
        yield text[at : begin + 1]
        at = begin + 1
    yield text[at:]


def _encode(tokenizer: Any, text: str) -> list[int]:
    try:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    except TypeError as error:
        found = re.search("[\ud800-\udfff]", text)
        at = "" if found is None else f" (the lone surrogate {found[0]!r} at {found.start()})"
        raise InvalidValueError(f"a text is not Unicode{at}; decode it with errors='replace', or clean it") from error
    return ids


def _load(spec: dict[str, Any]) -> Any:
    import tokenizers  # here, so that importing the runtime stays quick

    return tokenizers.Tokenizer.from_str(json.dumps(spec))


def _without_limits(spec: dict[str, Any]) -> dict[str, Any]:
    return {**spec, "truncation": None, "padding": None, "post_processor": None}


def _without_markup(spec: dict[str, Any]) -> dict[str, Any]:
    white = [t for t in spec["added_tokens"] if not is_markup(t["content"])]
    return {**_without_limits(spec), "added_tokens": white}


def _steps(component: dict[str, Any] | None, inner: str) -> list[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, which may be a sequence."""
    if component is None:
        return []
    return list(component[inner]) if component["type"] == "Sequence" else [component]


def _without_prefix(spec: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The same tokenizer without a leading space of its own, and where the original adds one.

    Returns:
        the changed JSON, and `"none"`, `"first"` (at the start of the whole text) or `"each"` (of every piece).
    """
    schemes = {"none"}
    normalizer = _steps(spec["normalizer"], "normalizers")
    kept = [step for step in normalizer if step["type"] != "Prepend"]
    if len(kept) < len(normalizer):
        schemes.add("each")
    splitter = copy.deepcopy(spec["pre_tokenizer"])
    for step in _steps(splitter, "pretokenizers"):
        if step["type"] == "Metaspace":
            schemes.add({"always": "each", "first": "first"}.get(step["prepend_scheme"], "none"))
            step["prepend_scheme"] = "never"
        elif step["type"] == "ByteLevel" and step["add_prefix_space"]:
            schemes.add("each")
            step["add_prefix_space"] = False
    scheme = next(s for s in ("each", "first", "none") if s in schemes)
    return {**spec, "normalizer": {"type": "Sequence", "normalizers": kept}, "pre_tokenizer": splitter}, scheme


def _splits_like_us(spec: dict[str, Any]) -> bool:
    """Whether cutting the text itself at spellings is what the tokenizer does.

    It is not where added tokens are searched in the normalised text and the normaliser changes their spelling.
    """
    normalized = [t["content"] for t in spec["added_tokens"] if t["normalized"]]
    normalizer = _load(spec).normalizer if normalized and spec["normalizer"] is not None else None
    return normalizer is None or all(normalizer.normalize_str(content) == content for content in normalized)
