"""From the nodes of many calls to one `RequestGraph`: literals folded, encoded, merged into a prefix tree.

In: generating nodes, recorded (by a batch that runs) or traced, and the backend that will run them.
Out: the graph. Nothing is computed by a model.

Every prompt is encoded as the backend will encode it, as a whole: its tree is exact to the token. Only where a raw
prompt goes on from a value (whose ids are kept, so that the text after it is encoded on its own) is the part before
it not encoded again.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from .backend import Backend
from .backends.messages import chatml
from .backends.mock import MockBackend
from .errors import RadicelError, UnsupportedError
from .graph import Request, RequestGraph
from .holes import Encode, Hole, HoleEncoder, Path
from .ir import Node, Op, SelectCall, chain, expand, frontier
from .order import plan_order
from .prefix_tree import PrefixTree, TokenArray, common_prefix
from .prompt import Generated, Part, Prompt, Text, TurnBegin, TurnEnd
from .template import Piece, Template, Value

__all__ = ["Written", "lower"]

_MANY_CHOICES = 4  # beyond them, not every choice is tried to see what depends on it

Written: TypeAlias = Callable[[Node], "Generated | None"]


def lower(
    nodes: Iterable[Node],
    backend: Backend | None = None,
    *,
    written: Written | None = None,
    items: Sequence[int] | None = None,
) -> RequestGraph:
    """Makes the graph of all requests that the nodes stand for.

    Args:
        nodes: those to be requested, each after the ones that it needs; nodes that generate nothing are skipped.
        backend: what will run them. Without one, and where its tokenizer is not known, UTF-8 bytes are counted.
        written: the text of a generating node that has one already, else None; such a node on the way to another is
            known text. Without it no text is known.
        items: for each node the number of the call that it belongs to; all belong to one call when None.

    A prompt that cannot be encoded (`Request.error`) touches no other.
    """
    with _no_collection():
        return _lower(nodes, backend, written, items)


def _lower(
    nodes: Iterable[Node], backend: Backend | None, written: Written | None, items: Sequence[int] | None
) -> RequestGraph:
    began = time.perf_counter()
    encode, unit = _counting(backend)
    lowering = _Lowering(encode, written or (lambda node: None))
    if items is None:
        for node in nodes:
            lowering.add(node, 0)
    else:
        for node, item in zip(nodes, items):
            lowering.add(node, item)
    graph = RequestGraph(
        lowering.requests,
        lowering.tree,
        marks=lowering.marks(),
        items=len({request.item for request in lowering.requests}) if items is None else len(set(items)),
        unit=unit,
        kv_bytes_per_token=None if unit == "bytes" else getattr(backend, "kv_bytes_per_token", None),
        decode=_utf8 if unit == "bytes" else _decoder(backend),
    )
    _limit(graph, getattr(backend, "context_length", None))
    plan_order(graph)
    graph.seconds = time.perf_counter() - began
    return graph


class _Lowering:
    """The requests so far, and their tree."""

    def __init__(self, encode: Encode, written: Written) -> None:
        self.tree = PrefixTree()
        self.requests: list[Request] = []
        self._written = written
        self._encoder = HoleEncoder(encode)
        self._holes: dict[tuple[Node, str], Hole] = {}
        self._of: dict[Node, Request] = {}
        self._by_mark: dict[int, Request] = {}
        self._raw: set[Node] = set()  # those whose prompts are raw and free of other holes than kept ones

    def add(self, node: Node, item: int) -> None:
        """Takes a node in."""
        if not node.op.generates or node in self._of:
            return
        request = Request(len(self.requests), node, item)
        self.requests.append(request)
        self._of[node] = request
        request.needs = tuple(sorted({self._of[n].index for n in frontier(node.prefix) if n in self._of}))
        try:
            if not self._follow(request):
                self._encode(request)
        except RadicelError as error:
            request.error = error

    def marks(self) -> dict[int, int]:
        """Mark → index of the request whose text it stands for."""
        return {mark: request.index for mark, request in self._by_mark.items()}

    # --- raw text after a value -------------------------------------------------------------------------------------

    def _follow(self, request: Request) -> bool:
        """Places a request whose prompt is a raw one, a value with kept ids, and raw text; False for any other."""
        if request.node.op is not Op.GEN:
            return False
        texts: list[Text] = []
        step = request.node.prefix
        while step is not None and not step.op.generates:
            if step.op is Op.TEXT and not step.data:
                texts.append(step.payload)
            elif step.op is not Op.BRANCH and step.op is not Op.JOIN:
                return False
            step = step.prefix
        if step is None or step not in self._raw or self._written(step) is not None:
            return False
        before = self._of[step]
        tail = self._encoder.tail(tuple(reversed(texts)))
        mark = np.array([self._hole(step).mark], np.int32)
        request.prompt = self.tree.insert(np.concatenate([mark, tail]), before.prompt)
        request.prompt_tokens = before.prompt_tokens + len(tail)
        request.open_tokens = before.open_tokens
        if not _silent(request.node):
            self._raw.add(request.node)
        return True

    # --- any prompt -------------------------------------------------------------------------------------------------

    def _encode(self, request: Request) -> None:
        """Places a request by encoding the whole of its prompt."""
        parts = self._parts(request.node.prefix)
        if request.node.op is Op.GEN and self._extend(request, parts):
            return
        path = self._encoder.path(parts)
        request.open_tokens = path.open_tokens
        if request.node.op is Op.SELECT:
            self._place_choices(request, parts, path)
            return
        request.prompt = self.tree.insert(path.tokens)
        request.prompt_tokens = int(np.count_nonzero(path.tokens >= 0))
        if path.raw and not _silent(request.node):
            self._raw.add(request.node)

    def _extend(self, request: Request, parts: Sequence[Part | Hole]) -> bool:
        """Places a request whose prompt begins with that of its last value, unchanged; False for any other."""
        holes = [part for part in parts if isinstance(part, Hole)]
        before = self._by_mark.get(holes[-1].mark) if holes and all(hole.kept for hole in holes) else None
        if before is None or before.error is not None:
            return False
        path = self.tree.sequence(before.prompt)
        if path[path < 0].tolist() != [hole.mark for hole in holes[:-1]]:
            return False
        tail = self._encoder.continued(path, parts)
        if tail is None:
            return False
        mark = np.array([holes[-1].mark], np.int32)
        request.prompt = self.tree.insert(np.concatenate([mark, tail]), before.prompt)
        request.prompt_tokens = before.prompt_tokens + len(tail)
        return True

    def _place_choices(self, request: Request, parts: Sequence[Part | Hole], path: Path) -> None:
        """A `select`: what its choices share with the prompt, and the rest of each, as they will be scored."""
        call: SelectCall = request.node.payload
        prompt = self._encoder.filled(parts, 0)
        alone = self._encoder.ids(prompt)
        wholes = [self._encoder.ids((*prompt, Text(choice))) for choice in call.choices]
        start = min([len(alone), *(common_prefix(alone, whole) for whole in wholes)])
        # The path may be shorter than the filled prompt, whose open stretch is one mark; what follows it corresponds.
        behind = int((path.tokens[::-1] < 0).argmax()) if (path.tokens < 0).any() else len(path.tokens)
        shared = path.tokens[: len(path.tokens) - min(len(alone) - start, behind)]
        request.prompt = self.tree.insert(shared)
        request.ends = tuple(self.tree.insert(whole[start:], request.prompt) for whole in wholes)
        request.prompt_tokens = int(np.count_nonzero(shared >= 0)) + sum(len(whole) - start for whole in wholes)

    def _parts(self, tip: Node | None) -> list[Part | Hole]:
        """The prompt up to and including `tip`, with holes for what is not known."""
        parts: list[Part | Hole] = []
        for node in chain(tip):
            for step in expand(node):
                if isinstance(step.payload, Template):
                    parts += [self._piece(piece, step.payload.special) for piece in step.payload.pieces]
                elif step.op is Op.TEXT:
                    parts.append(step.payload)
                elif step.op.generates:
                    parts.append(self._value(step))
                elif step.op is Op.TURN_BEGIN:
                    parts.append(TurnBegin(step.payload))
                elif step.op is Op.TURN_END:
                    parts.append(TurnEnd())
        return parts

    def _piece(self, piece: Piece, special: bool) -> Part | Hole:
        """A piece of a text that holds values; a value in it is text like any other."""
        if isinstance(piece, str):
            return Text(piece, special)
        values = list(piece.values())
        makers = [value.node for value in values if value.node.op.generates]
        if isinstance(piece, Value) and makers and not (piece.steps or piece.spec or piece.conversion in ("r", "a")):
            written = self._written(piece.node)
            if written is not None:
                return Text(written.text, special)
        return self._hole(makers[0] if makers else values[0].node, str(piece))

    def _value(self, node: Node) -> Part | Hole:
        written = self._written(node)
        if written is not None:
            return written
        if _silent(node):
            return Generated("")
        return self._hole(node)

    def _hole(self, node: Node, insert: str = "") -> Hole:
        """The hole for what a node writes; for a value in a text, by its spelling (`insert`)."""
        hole = self._holes.get((node, insert))
        if hole is None:
            hole = self._holes[node, insert] = self._new_hole(-1 - len(self._holes), node, insert)
            if node in self._of:
                self._by_mark[hole.mark] = self._of[node]
        return hole

    def _new_hole(self, mark: int, node: Node, insert: str) -> Hole:
        if node.op is not Op.SELECT:
            return Hole(mark, kept=not insert)
        call: SelectCall = node.payload
        few = len(call.choices) <= _MANY_CHOICES
        texts = call.choices if few else (*call.choices[: _MANY_CHOICES - 1], call.choices[-1])
        return Hole(mark, False, texts if len(texts) > 1 else texts * 2, exact=few)


def _silent(node: Node) -> bool:
    """Whether the node's text is empty by request, so that what stands around it is one run of text."""
    return node.op is Op.GEN and node.payload.sampling.max_tokens == 0


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Without the collector of cycles, of which a lowering makes none: it would go through all nodes again and again,
    which is half of the time for thousands of calls.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


# --- what is counted ------------------------------------------------------------------------------------------------


def _counting(backend: Backend | None) -> tuple[Encode, str]:
    """How a prompt becomes ids, and what one of them is."""
    if backend is None or isinstance(backend, MockBackend):
        return _bytes, "bytes"
    try:
        backend.encode((Text("x"),))
    except UnsupportedError:
        return _bytes, "bytes"
    return partial(_tokens, backend), "tokens"


def _tokens(backend: Backend, prompt: Prompt) -> TokenArray:
    return np.frombuffer(backend.encode(prompt).packed, np.int32)


def _bytes(prompt: Prompt) -> Sequence[int]:
    """The prompt in UTF-8, its roles in ChatML; kept ids stand as they are."""
    return b"".join(
        bytes(part.token_ids)
        if isinstance(part, Generated) and part.token_ids is not None
        else chatml((part,)).encode("utf-8", "surrogatepass")
        for part in prompt
    )


def _utf8(ids: Sequence[int]) -> str:
    return bytes(ids).decode("utf-8", "replace")


def _decoder(backend: Any) -> Callable[[Sequence[int]], str] | None:
    """The text of ids, where the backend shows its tokenizer."""
    decode = getattr(getattr(backend, "tokenizer", None), "decode", None)
    return None if decode is None else lambda ids: str(decode(list(ids)))


def _limit(graph: RequestGraph, context_length: int | None) -> None:
    """How much each request may generate: what it says, else up to the end of the context."""
    for request in graph.requests:
        if request.node.op is Op.SELECT:
            request.max_tokens = 0
            continue
        sampling = request.node.payload.sampling
        most = sampling.max_tokens
        if most is None and context_length is not None:
            most = max(0, context_length - request.prompt_tokens)
        request.max_tokens = None if most is None else most * (sampling.n or 1)
