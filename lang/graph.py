"""What many calls will ask of a model, as one graph: every shared prefix once, and who needs it when.

In: `lower.py` makes it of recorded or traced nodes. Out: `RequestGraph`, plain data: an executor submits `requests` in
`order`, a runtime reads `leases`, a person reads `print(graph)` and `graph.explain()` (`report.py`).

Tokens are counted as far as they are known ahead. What a model writes is counted apart (`max_generated_tokens`), and
so is known text whose borders depend on a value (`open_tokens`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from .holes import BORDER
from .ir import Node
from .prefix_tree import PrefixTree, TokenArray

if TYPE_CHECKING:
    from rich.console import RenderableType

    from .trace import OpenEnd

__all__ = ["Lease", "Request", "RequestGraph"]


@dataclass(slots=True, eq=False)
class Request:
    """One call of a model.

    Attributes:
        index: its place in `RequestGraph.requests`; in the order in which nodes were given.
        node: the generating node.
        item: which call of the batch it belongs to.
        prompt: the tree's node at which its prompt ends.
        ends: of a `select`, the tree's nodes at which prompt and choice end.
        prompt_tokens: tokens of its prompt (and choices) that are known ahead.
        open_tokens: about how many further tokens of known text its prompt has, their borders unknown.
        max_tokens: most tokens that it generates, all samples together; None: no limit is known.
        needs: indices of the requests whose text must be there first.
        wave: model calls on the longest chain before it; 0 for one that can start at once.
        later: how many requests go on from what it writes.
        next_wave: waves until the first of them; None where there is none.
        new_tokens: known tokens that no request before it in `order` has.
        error: why its prompt cannot be encoded; it then has no tokens.
    """

    index: int
    node: Node
    item: int
    prompt: int = 0
    ends: tuple[int, ...] = ()
    prompt_tokens: int = 0
    open_tokens: int = 0
    max_tokens: int | None = None
    needs: tuple[int, ...] = ()
    wave: int = 0
    later: int = 0
    next_wave: int | None = None
    new_tokens: int = 0
    error: Exception | None = None

    @property
    def name(self) -> str:
        """The variable that it makes."""
        return str(self.node.payload.name)


@dataclass(frozen=True, slots=True)
class Lease:
    """A prefix that several requests need.

    Attributes:
        node: the tree's node at which it ends; `graph.tree.sequence(node)` are its tokens, below 0 where a value is.
        parent: the lease of the longest shared prefix of it; None where there is none.
        known: its tokens that are known ahead.
        after: the requests whose text is part of it, by index; empty where it is wholly known.
        uses: places in `order`, ascending, of the requests that need it. The first one makes it; when those up to
            place p are admitted, the next use is the first one above p, and the last one ends the lease.
    """

    node: int
    parent: int | None
    known: int
    after: tuple[int, ...]
    uses: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many requests need it after the one that makes it."""
        return len(self.uses) - 1


@dataclass(eq=False)
class RequestGraph:
    """The requests of many calls, and what they share.

    Attributes:
        requests: in the order in which their nodes were given.
        decode: the text of ids, for people; None where the backend shows no tokenizer.
        order: indices of requests, depth first: one comes after all that it needs, and a subtree is finished before
            the next one begins as far as that allows.
        leases: the shared prefixes, each after its parent.
        tree: prompts merged at the exact token; marks (below 0) stand for values: `requests` by `marks`.
        marks: mark → index of the request whose text it stands for; absent where that request is not in the graph.
        items: how many calls.
        unit: what is counted: "tokens", or "bytes" where no tokenizer is known.
        kv_bytes_per_token: of the backend's cache, where it says so.
        known: per node of the tree, the tokens of its edge that are known ahead.
        opens: of a plan, the number of a call and where its trace ended before the call does; what follows there is
            not in the graph.
        seconds: how long the lowering took.
    """

    requests: list[Request]
    tree: PrefixTree
    marks: dict[int, int] = field(default_factory=dict)
    items: int = 1
    unit: str = "tokens"
    kv_bytes_per_token: int | None = None
    decode: Callable[[Sequence[int]], str] | None = None
    order: list[int] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)
    known: list[int] = field(default_factory=list)
    opens: Sequence[tuple[int, OpenEnd]] = ()
    seconds: float = 0.0

    @cached_property
    def total_tokens(self) -> int:
        """Known prompt tokens of all requests: what is computed where nothing is shared."""
        return sum(request.prompt_tokens for request in self.requests)

    @cached_property
    def unique_tokens(self) -> int:
        """Known prompt tokens in the tree: what is computed where each shared prefix is computed once."""
        return sum(self.known)

    @property
    def shared_tokens(self) -> int:
        """`total_tokens` less `unique_tokens`: what sharing saves."""
        return self.total_tokens - self.unique_tokens

    @cached_property
    def max_generated_tokens(self) -> int:
        """Most tokens that the requests generate; those without a known limit (`unlimited`) are not in it."""
        return sum(request.max_tokens or 0 for request in self.requests)

    @cached_property
    def unlimited(self) -> int:
        """How many requests generate without a known limit."""
        return sum(request.max_tokens is None for request in self.requests)

    @cached_property
    def open_tokens(self) -> int:
        """About how many tokens of known text are not counted, because their borders depend on values."""
        return sum(request.open_tokens for request in self.requests)

    @cached_property
    def critical_path(self) -> int:
        """Model calls on the longest chain of requests of which each needs the one before."""
        return max((request.wave + 1 for request in self.requests), default=0)

    @property
    def kv_tokens(self) -> int:
        """Tokens that the cache holds if nothing is dropped: the working set of the whole graph."""
        return self.unique_tokens + self.max_generated_tokens

    @property
    def kv_bytes(self) -> int | None:
        """`kv_tokens` in bytes; None where the backend does not say what a token takes."""
        return None if self.kv_bytes_per_token is None else self.kv_tokens * self.kv_bytes_per_token

    @cached_property
    def min_kv_tokens(self) -> int:
        """Tokens that the longest path takes with all that is generated on it: no smaller cache can run the graph."""
        return max((self._path_tokens(request) for request in self.requests), default=0)

    def prompt_ids(self, request: Request) -> TokenArray | None:
        """The token ids of a request's prompt; None where a value in it is not known yet."""
        tokens = self.tree.sequence(request.prompt)
        return None if request.error is not None or (tokens < 0).any() else tokens

    def writer(self, mark: int) -> Request | None:
        """The request on whose text the tokens at a mark depend; None where it is not in the graph."""
        index = self.marks.get(mark, self.marks.get(mark + BORDER))
        return None if index is None else self.requests[index]

    def errors(self) -> list[Request]:
        """The requests whose prompts cannot be encoded."""
        return [request for request in self.requests if request.error is not None]

    def explain(self, max_lines: int = 60) -> RenderableType:
        """What is shared, by whom and what it costs, as a tree to print with rich; similar branches are folded.

        Args:
            max_lines: most lines of the tree, however many calls there are.
        """
        from .plan_report import explain

        return explain(self, max_lines)

    def __str__(self) -> str:
        from .plan_report import summary

        return summary(self)

    def __repr__(self) -> str:
        return (
            f"<RequestGraph: {len(self.requests):,} requests of {self.items:,} calls, {self.unique_tokens:,} of "
            f"{self.total_tokens:,} {self.unit} unique>"
        )

    def _path_tokens(self, request: Request) -> int:
        ends = request.ends or (request.prompt,)
        longest = max(self.tree.ends[end] for end in ends)
        tokens = self.tree.sequence(max(ends, key=self.tree.ends.__getitem__))
        within = [self.marks[mark] for mark in tokens[tokens < 0].tolist() if mark in self.marks]
        written = sum(self.requests[index].max_tokens or 0 for index in within)
        return longest - int(np.count_nonzero(tokens < 0)) + written + (request.max_tokens or 0)
