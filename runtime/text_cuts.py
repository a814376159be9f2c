"""Where a long text may be cut so that its parts, encoded one by one, have the ids of the whole.

In: the JSON of a `tokenizers.Tokenizer`. Out: whether it is one of those for which this can be shown (`may_cut`), and
the pieces of a text (`pieces`), whose borders depend on what stands before them only: texts that begin alike begin
with the same pieces, so that a prefix that many prompts share is encoded once.

A cut is made before a single space between two ASCII letters. Why the ids are the same:

- Normalisers: those allowed change no ASCII letter, compose nothing across a space, and see no further than that.
- Splitting into words: every alternative of the allowed patterns stops at the letter, whatever follows, because none
  matches a letter and then a space; none looks behind. So the letter's word ends at the cut, what stands before the
  cut is split as if the text ended there, and splitting goes on as if it began there.
- BPE: words are encoded one by one. Where the tokenizer makes no words, no token of its vocabulary holds a letter
  followed by a space, so no merge reaches across the cut, and merges on its sides do not see each other.

Everything else (Unigram, whose sums of floats depend on what stands before; patterns not listed) is never cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["SEEN_AFTER", "may_cut", "pieces"]

SEEN_AFTER = 2
"""Characters after a cut that it depends on."""

_LEAST = 256  # characters; a piece has at least as many
_CUT = re.compile("[A-Za-z] (?=[A-Za-z])")
_LETTERS = [chr(c) for c in (*range(ord("A"), ord("Z") + 1), *range(ord("a"), ord("z") + 1))]

_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORDS = {
    r" ?\p{L}+",
    r"[^\r\n\p{L}\p{N}]?\p{L}+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDINGS}?",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDINGS}?",
}
_REST = {
    _ENDINGS, "'s", "'t", "'re", "'ve", "'m", "'ll", "'d", r" ?\p{N}+", r"\p{N}{1,3}", r"\p{N}",
    r" ?[^\s\p{L}\p{N}]+", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
    r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+",
}  # fmt: skip


def pieces(text: str, at: int = 0) -> Iterator[str]:
    """The text from a cut (or its start) on, cut at places that depend on nothing after them but the next two
    characters."""
    while (found := _CUT.search(text, at + _LEAST)) is not None:
        yield text[at : found.start() + 1]
        at = found.start() + 1
    yield text[at:]


def may_cut(spec: Mapping[str, Any]) -> bool:
    """Whether the pieces of every text, encoded one by one, have the ids of the text.

    Args:
        spec: a tokenizer that puts nothing before a text.
    """
    model = spec["model"]
    if model["type"] != "BPE" or model.get("dropout"):
        return False
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return False
    if any(t["single_word"] or _CUT.search(t["content"]) for t in spec["added_tokens"]):
        return False
    if not all(map(_is_local, _steps(spec["normalizer"], "normalizers"))):
        return False
    splitters = [_splits(step) for step in _steps(spec["pre_tokenizer"], "pretokenizers")]
    if None in splitters:
        return False
    return any(splitters) or _no_token_crosses(spec)


def _steps(component: Mapping[str, Any] | None, inner: str) -> list[Mapping[str, Any]]:
    if component is None:
        return []
    return list(component[inner]) if component["type"] == "Sequence" else [component]


def _is_local(normalizer: Mapping[str, Any]) -> bool:
    if normalizer["type"] == "Replace":
        return bool(normalizer["pattern"] == {"String": " "} and normalizer["content"] == "▁")
    return normalizer["type"] in ("NFC", "NFD", "NFKC", "NFKD")


def _splits(step: Mapping[str, Any]) -> bool | None:
    """Whether the step ends a word at every cut; None where it may look across one."""
    kind = step["type"]
    if kind == "Digits":
        return False
    if kind == "ByteLevel":
        return None if step["add_prefix_space"] else bool(step["use_regex"])
    if kind == "Metaspace":
        return bool(step.get("split", True)) if step["prepend_scheme"] == "never" else None
    if kind == "Split" and (step["behavior"], step["invert"]) in (("Isolated", False), ("Removed", True)):
        alternatives = set(_alternatives(step["pattern"].get("Regex", "")))
        return True if alternatives <= _WORDS | _REST and alternatives & _WORDS else None
    return None


def _alternatives(pattern: str) -> Iterator[str]:
    """The alternatives of a pattern, outside of groups and classes."""
    depth = begin = 0
    for at, char in enumerate(pattern):
        if char in "([" or char in ")]":
            depth += 1 if char in "([" else -1
        elif char == "|" and not depth:
            yield pattern[begin:at]
            begin = at + 1
    yield pattern[begin:]


def _no_token_crosses(spec: Mapping[str, Any]) -> bool:
    """Whether no token holds a letter followed by a space, and none of these two is ever unknown."""
    kinds = {step["type"] for step in _steps(spec["pre_tokenizer"], "pretokenizers")}
    space = "Ġ" if "ByteLevel" in kinds else "▁"
    model, vocab = spec["model"], spec["model"]["vocab"]
    if model.get("ignore_merges") or not all(char in vocab for char in (*_LETTERS, space)):
        return False
    crossing = re.compile(f"[A-Za-z]{space}")
    return not any(crossing.search(token) for token in vocab)
