"""Checking a constraint from outside, through the runtime's own masks.

In: a constraint (or the arguments of `gen` that make one) and a text. Out: whether a model could have generated exactly
this text and then ended. For users' tests, and for suites that no one here wrote.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .constraint import Constraint
from .errors import ConstraintError

if TYPE_CHECKING:
    from .runtime.grammar import GrammarCompiler

__all__ = ["accepts"]

_MOST_TOKENIZERS = 4
_compilers: OrderedDict[int, tuple[Any, GrammarCompiler]] = OrderedDict()


def accepts(
    constraint: Any = None,
    text: str = "",
    *,
    tokenizer: Any = None,
    token_ids: Sequence[int] | None = None,
    schema: Any = None,
    regex: Any = None,
    grammar: str | None = None,
    choices: Iterable[str] | None = None,
    json_schema: Any = None,
    strict: bool | None = None,
    whitespace: str | None = None,
) -> bool:
    """Whether the masks let exactly this text be generated and then ended.

    Args:
        constraint: a `Constraint`, a type or a JSON schema; or one of the keywords of `gen` below.
        text: the text.
        tokenizer: a transformers tokenizer, whose canonical tokens of `text` are tried; None: one byte a token.
        token_ids: the tokens to try instead, ids of `tokenizer` (or bytes, without one).
        schema: as in `gen`, like `regex`, `grammar`, `choices`, `json_schema`, `strict` and `whitespace`.

    Raises:
        ConstraintError: what `gen` would raise for this constraint; no constraint at all.
    """
    made = Constraint.from_gen(
        schema=constraint if schema is None else schema,
        regex=regex,
        grammar=grammar,
        choices=choices,
        json_schema=json_schema,
        strict=strict,
        whitespace=whitespace,
    )
    if made is None:
        raise ConstraintError("accepts() needs a constraint: a Constraint, or schema=, regex=, grammar=, choices=")
    compiler = _compiler(tokenizer)
    matcher = compiler.compile(made).matcher()
    ids = _ids(text, tokenizer, compiler) if token_ids is None else token_ids
    row = compiler.vocabulary.empty_mask()
    for token_id in ids:
        if not 0 <= token_id < compiler.vocabulary.size or matcher.is_terminated():
            return False
        matcher.fill_mask(row)
        if not row[token_id >> 5] >> (token_id & 31) & 1 or not matcher.accept(token_id):
            return False
    matcher.fill_mask(row)
    may_end = any(row[end >> 5] >> (end & 31) & 1 for end in compiler.vocabulary.end_ids)
    return may_end and matcher.is_complete()


def _ids(text: str, tokenizer: Any, compiler: GrammarCompiler) -> Sequence[int]:
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return [-1]  # a lone surrogate is in no token
    if tokenizer is None:
        return data
    return compiler.vocabulary.encode(text) or list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _compiler(tokenizer: Any) -> GrammarCompiler:
    if tokenizer is None:
        return _byte_compiler()
    if id(tokenizer) not in _compilers:
        while len(_compilers) >= _MOST_TOKENIZERS:
            _compilers.popitem(last=False)[1][1].close()
        _compilers[id(tokenizer)] = (tokenizer, _tokenizer_compiler(tokenizer))
    _compilers.move_to_end(id(tokenizer))
    return _compilers[id(tokenizer)][1]


@functools.cache
def _byte_compiler() -> GrammarCompiler:
    from .runtime.grammar import GrammarCompiler

    return GrammarCompiler([bytes([byte]) for byte in range(256)], vocab_size=257, end_ids={256})


def _tokenizer_compiler(hf: Any) -> GrammarCompiler:
    from .runtime.grammar import GrammarCompiler
    from .runtime.tokenizer import Tokenizer

    tokenizer = Tokenizer(hf)
    size = tokenizer.vocab_size
    special = frozenset(i for i in range(size) if tokenizer.is_special(i))
    # A tokenizer without an end token gets one of its own, beyond its vocabulary.
    end = size if hf.eos_token_id is None else hf.eos_token_id
    return GrammarCompiler(
        tokenizer.all_token_bytes(),
        vocab_size=size + (end == size),
        end_ids={end},
        hf_tokenizer=hf,
        special_ids=special,
    )
