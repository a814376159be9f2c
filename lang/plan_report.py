"""A request graph as a person reads it: totals, what each value costs, and the tree of shared prefixes.

In: a `RequestGraph`. Out: a rich renderable (`explain`), or the same as plain text (`summary`). The size is bounded
however many calls there are: branches of one shape are shown once, and counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text as RichText
from rich.tree import Tree

from .ir import Op
from .shown import counted, plain

if TYPE_CHECKING:
    from .graph import Request, RequestGraph

__all__ = ["explain", "outline", "summary", "totals"]

_MAX_VALUES = 12
_MAX_ALIKE = 3
_MAX_DEPTH = 24
_SNIPPET = 48


def explain(graph: RequestGraph, max_lines: int) -> RenderableType:
    """The totals, a table of the values, and the tree with at most so many lines."""
    lines = RichText("\n".join(totals(graph)))
    return Group(lines, "", _values(graph), "", outline(graph, max_lines))


def summary(graph: RequestGraph, width: int = 110) -> str:
    """`explain` as plain text, without colours."""
    return plain(explain(graph, 40), width)


def totals(graph: RequestGraph) -> Iterator[str]:
    """What all of it comes to, line by line."""
    unit, total = graph.unit, graph.total_tokens
    share = f" ({graph.shared_tokens / total:.1%})" if total else ""
    yield f"{counted(len(graph.requests), 'request')} of {counted(graph.items, 'call')}"
    yield f"prompt {unit}: {total:,} in all, {graph.unique_tokens:,} unique, {graph.shared_tokens:,} shared{share}"
    limit = f", and {counted(graph.unlimited, 'request')} without max_tokens" if graph.unlimited else ""
    yield f"generated tokens: at most {graph.max_generated_tokens:,}{limit}"
    yield f"critical path: {counted(graph.critical_path, 'model call')}"
    if unit == "tokens":
        size = "" if graph.kv_bytes is None else f" ({_bytes(graph.kv_bytes)})"
        longest = f"{graph.min_kv_tokens:,} the longest path"
        yield f"KV cache: {graph.kv_tokens:,} tokens{size} hold the whole graph, {longest}"
    else:
        yield "no tokenizer is known: bytes are counted; give plan(…, backend=…) the backend that will run it"
    if graph.open_tokens:
        yield f"not counted: about {graph.open_tokens:,} {unit} of text whose borders depend on values"
    if graph.opens:
        calls = len({number for number, _ in graph.opens})
        yield f"{counted(calls, 'call')} not planned to the end; {graph.opens[0][1]}"
    errors = graph.errors()
    if errors:
        first = errors[0]
        yield f"{counted(len(errors), 'prompt')} cannot be encoded; {first.name!r} at {first.node.site}: {first.error}"


def outline(graph: RequestGraph, max_lines: int) -> Tree:
    """The tree of shared prefixes with at most so many lines."""
    return _Outline(graph, max_lines).tree()


def _values(graph: RequestGraph) -> Table:
    """What the requests cost, by the variable that they make and the line that asks for it."""
    table = Table(box=None, pad_edge=False)
    table.add_column("value")
    for heading in ("wave", "requests", f"prompt {graph.unit}", "computed", "generated ≤"):
        table.add_column(heading, justify="right")
    rows: dict[tuple[str, str, str], list[Request]] = {}
    for request in graph.requests:
        site = request.node.site
        line = f"line {site.line}" if site is not None else ""
        rows.setdefault((request.node.op.value, request.name, line), []).append(request)
    for (op, name, line), requests in islice(rows.items(), _MAX_VALUES):
        table.add_row(f"{op} {name}  {line}".rstrip(), *_cells(requests))
    if len(rows) > _MAX_VALUES:
        rest = [request for requests in islice(rows.values(), _MAX_VALUES, None) for request in requests]
        table.add_row(f"… {counted(len(rows) - _MAX_VALUES, 'value')} more", *_cells(rest))
    return table


def _cells(requests: Sequence[Request]) -> list[str]:
    waves = {request.wave + 1 for request in requests}
    wave = f"{min(waves)}" if len(waves) == 1 else f"{min(waves)}-{max(waves)}"
    limits = [request.max_tokens for request in requests]
    generated = "no limit" if None in limits else f"{sum(limit or 0 for limit in limits):,}"
    prompt, computed = (sum(getattr(r, of) for r in requests) for of in ("prompt_tokens", "new_tokens"))
    return [wave, f"{len(requests):,}", f"{prompt:,}", f"{computed:,}", generated]


class _Outline:
    """The tree of prefixes, folded."""

    def __init__(self, graph: RequestGraph, max_lines: int) -> None:
        self._graph = graph
        self._left = max_lines
        self._ending: dict[int, list[Request]] = {}
        for request in graph.requests:
            if request.error is None:
                self._ending.setdefault(request.prompt, []).append(request)
        self._choices = {end for request in graph.requests for end in request.ends} - self._ending.keys()
        size = len(graph.tree)
        self._below = [0] * size
        self._known = list(graph.known)
        self._shape = [0] * size
        self._measure()

    def _measure(self) -> None:
        """Bottom-up: requests and tokens below each node, and its shape: what ends there, and the shapes below."""
        tree = self._graph.tree
        shapes: dict[tuple[frozenset[str], frozenset[int]], int] = {}
        for node in reversed(tree.depth_first()):
            children = [child for child in tree.children(node) if not self._is_choice(child)]
            ending = self._ending.get(node, ())
            self._below[node] = len(ending) + sum(self._below[child] for child in children)
            self._known[node] += sum(self._known[child] for child in tree.children(node))
            names = frozenset(request.name for request in ending)
            shape = (names, frozenset(self._shape[child] for child in children))
            self._shape[node] = shapes.setdefault(shape, len(shapes) + 1)

    def _is_choice(self, node: int) -> bool:
        """Whether nothing but choices of a `select` end here and below."""
        return node in self._choices and not any(not self._is_choice(c) for c in self._graph.tree.children(node))

    def tree(self) -> Tree:
        """The whole of it."""
        roots = self._groups(0)
        root = Tree(f"{self._graph.unique_tokens:,} {self._graph.unit} to compute", guide_style="dim")
        self._grow(root, roots, 1)
        return root

    def _groups(self, node: int) -> list[list[int]]:
        """The node's children, those of one shape together."""
        groups: dict[int, list[int]] = {}
        for child in self._graph.tree.children(node):
            if not self._is_choice(child):
                groups.setdefault(self._shape[child], []).append(child)
        return list(groups.values())

    def _grow(self, branch: Tree, groups: list[list[int]], depth: int) -> None:
        for group in groups:
            if self._left <= 0 or depth > _MAX_DEPTH:
                branch.add("…")
                return
            first, *others = group
            self._left -= 1
            self._grow(branch.add(self._label(first)), self._groups(first), depth + 1)
            if len(group) <= _MAX_ALIKE:
                for other in others:
                    self._left -= 1
                    branch.add(self._label(other, alike=True))
            else:
                tokens = sum(self._known[other] for other in others)
                self._left -= 1
                branch.add(f"… and {len(others):,} like it: {tokens:,} {self._graph.unit}")

    def _label(self, node: int, alike: bool = False) -> RichText:
        graph, ending = self._graph, self._ending.get(node, [])
        below = self._below[node] - len(ending)
        label = RichText(counted(graph.known[node], graph.unit[:-1]) + " ", style="bold")
        label.append(self._text(node), style="not bold")
        for name, request in {f"{r.node.op.value} {r.name}": r for r in ending}.items():
            count = sum(r.name == request.name for r in ending)
            label.append(f" → {name}" + (f" × {count:,}" if count > 1 else ""), style="not bold cyan")
            label.append(self._limit(request), style="not bold dim")
        if below and (below > 1 or not ending):
            label.append(f"  shared by {self._below[node]:,} requests", style="not bold green")
        if alike and below:
            label.append("  (below: as above)", style="not bold dim")
        return label

    def _limit(self, request: Request) -> str:
        if request.node.op is Op.SELECT:
            return f" of {len(request.node.payload.choices)}"
        return "" if request.max_tokens is None else f" ≤ {request.max_tokens:,}"

    def _text(self, node: int) -> str:
        """The edge as text: literals shortened, values by name."""
        graph, edge = self._graph, self._graph.tree.edges[node].tolist()
        shown, run = [], []
        for token in [*edge, None]:
            if token is not None and token >= 0:
                run.append(token)
                continue
            if run and graph.decode is not None:
                shown.append(_snippet(graph.decode(run)))
            run = []
            if token is not None:
                writer = graph.writer(token)
                shown.append(f"‹{'value' if writer is None else writer.name}›")
        return " ".join(shown)


def _snippet(text: str) -> str:
    half = _SNIPPET // 2
    return repr(text) if len(text) <= _SNIPPET else f"{text[:half]!r} … {text[-half:]!r}"


def _bytes(number: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:,.0f} {unit}" if unit == "B" else f"{number:,.1f} {unit}"
        number /= 1024
    return f"{number:,.1f} TiB"
