"""Whether a sequence can run at all, asked before the engine takes it.

In: a sequence and the model's limits. Out: nothing, or the error that says what does not fit.
"""

from __future__ import annotations

from ..errors import ContextLengthError, InvalidValueError
from .batch import Runner
from .request import Sequence
from .token_buffer import IdList

__all__ = ["check_fits", "longest"]


def longest(runner: Runner) -> int:
    """Most tokens of a sequence, prompt and output: what the model can see, and what the pool holds without the
    trash slot."""
    return min(runner.context_length, runner.num_slots - 1)


def check_fits(seq: Sequence, runner: Runner) -> None:
    """Raises where a sequence could not run even alone; looks once.

    Raises:
        InvalidValueError: the prompt is empty, or has an id that the model does not have.
        ContextLengthError: the prompt, and one generated token if any is wanted, do not fit.
    """
    if seq.checked:
        return
    length = len(seq.prompt_ids)
    if length == 0:
        raise InvalidValueError("the prompt has no tokens; give it at least one, such as BOS")
    ids = seq.prompt_ids if isinstance(seq.prompt_ids, IdList) else IdList(seq.tokens.view(0, length).copy())
    low, high = ids.least, ids.most
    if low < 0 or high >= runner.vocab_size:
        wrong = low if low < 0 else high
        raise InvalidValueError(f"the prompt has the token id {wrong}; ids are 0 to {runner.vocab_size - 1}")
    if length + (1 if seq.sampling.max_tokens else 0) > longest(runner):
        context, pool = runner.context_length, runner.num_slots - 1
        limit = f"the model's context of {context}" if context <= pool else f"the KV pool of {pool}"
        raise ContextLengthError(f"the prompt has {length} tokens and does not fit into {limit} tokens; shorten it")
    seq.checked = True
