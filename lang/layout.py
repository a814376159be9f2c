"""Lays a prompt out: what stands where in the text that the model sees, and which token ids stay as they are.

In: a `Prompt` and a `Codec`. Out: a `Layout`: runs of text to be encoded, between ids that are kept.

Turns are rendered by the chat template, all of them each time: a longer conversation then extends a shorter one
wherever the template lets it, and where the template rewrites history, the rendering is simply what it says. Raw text
stands where it was written: before, between or after the turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .align import Alignment, Found, Message, Piece, Span, Turn, align, common_prefix
from .errors import ChatTemplateError, RoleError
from .prompt import Generated, Prompt, Text, TurnBegin, TurnEnd

if TYPE_CHECKING:
    from .chat import Codec

__all__ = ["Kept", "Layout", "Run", "lay_out"]

_CUT = "\U0010fffd"  # stands for the content of an open turn, where its header is wanted


@dataclass(frozen=True)
class Run:
    """Text to be encoded as one run.

    Attributes:
        text: the text.
        genuine: sorted, disjoint stretches of it in which spellings of special tokens mean the tokens.
    """

    text: str
    genuine: tuple[Span, ...] = ()


@dataclass(frozen=True)
class Kept:
    """Ids that stay as they were sampled, and the text that they spell."""

    ids: tuple[int, ...]
    text: str


@dataclass
class Layout:
    """A prompt, laid out.

    Attributes:
        atoms: runs and kept ids in order; no two runs are neighbours.
        starts_raw: whether the prompt begins with raw text, so that the tokenizer's own BOS belongs before it.
        reencoded: as in `EncodedPrompt`.
    """

    atoms: list[Run | Kept] = field(default_factory=list)
    starts_raw: bool = True
    reencoded: tuple[str, ...] = ()

    def add(self, text: str, *, genuine: bool = False) -> None:
        """Appends text; adjacent text is one run."""
        if not text:
            return
        run = Run("")
        if self.atoms and isinstance(self.atoms[-1], Run):
            run = self.atoms.pop()  # type: ignore[assignment]
        begin, end = len(run.text), len(run.text) + len(text)
        spans = run.genuine
        if genuine and spans and spans[-1][1] == begin:
            spans = (*spans[:-1], (spans[-1][0], end))
        elif genuine:
            spans = (*spans, (begin, end))
        self.atoms.append(Run(run.text + text, spans))

    def add_pieces(self, pieces: Sequence[Piece]) -> None:
        """Appends pieces as they stand."""
        for piece in pieces:
            if piece.ids is None:
                self.add(piece.text, genuine=piece.special)
            elif piece.ids:
                self.atoms.append(Kept(piece.ids, piece.text))


@dataclass
class _Script:
    """A prompt taken apart: closed turns, the open one, and raw pieces by the number of turns before them."""

    turns: list[Turn] = field(default_factory=list)
    open: Turn | None = None
    raws: dict[int, list[Piece]] = field(default_factory=dict)


def lay_out(prompt: Prompt, codec: Codec, template_kwargs: Mapping[str, Any]) -> Layout:
    """Lays the prompt out.

    Raises:
        RoleError: a turn inside a turn, or an end without a begin.
        ChatTemplateError: a role without a template, or a template that refuses the conversation.
    """
    script = _read(prompt)
    layout = Layout()
    if script.turns or script.open:
        _Rendering(script, codec, template_kwargs).lay_out(layout)
    else:
        layout.add_pieces(script.raws.get(0, []))
    return layout


def _read(prompt: Prompt) -> _Script:
    script = _Script()
    for part in prompt:
        if isinstance(part, TurnBegin):
            if script.open:
                raise RoleError(f"turn {part.role!r} begins inside turn {script.open.role!r}; end that one first")
            script.open = Turn(part.role)
        elif isinstance(part, TurnEnd):
            if script.open is None:
                raise RoleError("a turn ends and none is open; begin one first")
            script.turns.append(script.open)
            script.open = None
        else:
            into = script.open.pieces if script.open else script.raws.setdefault(len(script.turns), [])
            _append(into, part)
    return script


def _append(pieces: list[Piece], part: Text | Generated) -> None:
    if isinstance(part, Generated):
        piece = Piece(part.text, part.token_ids)
    else:
        piece = Piece(part.text, special=part.special)
    last = pieces[-1] if pieces else None
    if last and last.ids is None and piece.ids is None and last.special == piece.special:
        pieces[-1] = Piece(last.text + piece.text, special=piece.special)
    elif piece.text or piece.ids:
        pieces.append(piece)


class _Rendering:
    """One conversation and its template."""

    def __init__(self, script: _Script, codec: Codec, kwargs: Mapping[str, Any]) -> None:
        self._script = script
        self._codec = codec
        self._kwargs = kwargs
        if not codec.has_template:
            role = next(turn.role for turn in (*script.turns, script.open) if turn is not None)
            raise ChatTemplateError(
                f"role {role!r} is used and the model's tokenizer has no chat template; pass one with "
                "chat_template= (a file with a Jinja template, or the template as a string), or use raw text only"
            )

    def lay_out(self, layout: Layout) -> None:
        """Fills the layout."""
        script = self._script
        raws = {k: pieces for k, pieces in script.raws.items() if any(p.text or p.ids for p in pieces)}
        between = [k for k in raws if k < len(script.turns) or script.open]
        needed = frozenset(k - 1 for k in between if k > 0)
        alignment = align(script.turns, self._frame, self._codec.special_spellings, needed)
        kept = _Keeper(script.turns, alignment, self._codec)
        inserts = sorted((self._border(k, alignment), k) for k in between)
        layout.starts_raw = 0 in raws
        layout.reencoded = ("template",) if kept.lost else ()
        at = 0
        for place, k in inserts:
            at = kept.emit(layout, at, place)
            layout.add_pieces(raws[k])
        kept.emit(layout, at, len(alignment.text))
        if script.open:
            layout.add_pieces(script.open.pieces)
        elif len(script.turns) in raws:
            layout.add_pieces(raws[len(script.turns)])

    def _render(self, messages: Sequence[Message], generation: bool = False) -> str:
        return self._codec.render(messages, add_generation_prompt=generation, **self._kwargs)

    def _frame(self, messages: Sequence[Message]) -> str:
        """The rendering up to where the content of the open turn begins."""
        turn = self._script.open
        if turn is None:
            return self._render(messages)
        if turn.role != "assistant":
            return self._header(messages, turn.role)
        text = self._render(messages, True)
        first = turn.pieces[0].text if turn.pieces and turn.pieces[0].ids is None else ""
        return text + (self._space_after_prompt(messages, text) if first and not first[0].isspace() else "")

    def _header(self, messages: Sequence[Message], role: str) -> str:
        rendered = self._render([*messages, {"role": role, "content": _CUT}])
        text, cut, _ = rendered.rpartition(_CUT)
        if not cut:
            raise ChatTemplateError(
                f"the chat template leaves out the content of role {role!r}, so nothing can be generated in it; "
                "use a role that the template knows"
            )
        return text

    def _space_after_prompt(self, messages: Sequence[Message], text: str) -> str:
        """White space that the template puts before an assistant's text and leaves to the model in its prompt."""
        try:
            header = self._header(messages, "assistant")
        except ChatTemplateError:
            return ""
        rest = header[len(text) :] if header.startswith(text) else ""
        return rest if rest.isspace() else ""

    def _border(self, num_turns: int, alignment: Alignment) -> int:
        """Where raw text after so many turns stands in the rendering."""
        text = alignment.text
        if num_turns == 0:
            bos = self._codec.bos_text
            return len(bos) if bos and text.startswith(bos) else 0
        try:
            before = self._render([{"role": t.role, "content": t.content} for t in self._script.turns[:num_turns]])
        except ChatTemplateError:
            before = ""
        if before and text.startswith(before):
            return len(before)
        end = alignment.ends.get(num_turns - 1)
        if end is None:
            return common_prefix(before, text)
        # The history reads differently by now, but what closes a turn is still the same.
        probe = self._script.turns[num_turns - 1].content.strip()[-20:]
        return end + common_prefix(before.rpartition(probe)[2] if probe in before else "", text[end:])


class _Keeper:
    """Puts a rendering into a layout, with kept ids where they spell what stands there.

    Attributes:
        lost: whether ids of a generated text could not be kept, at least in part.
    """

    def __init__(self, turns: Sequence[Turn], alignment: Alignment, codec: Codec) -> None:
        self._alignment = alignment
        self._kept: list[tuple[int, int, Kept]] = []
        whole: set[tuple[int, int]] = set()
        for found in alignment.found:
            piece = turns[found.turn].pieces[found.piece]
            if piece.ids is None:
                continue
            kept = _kept_part(piece, found, codec)
            if kept is not None and (not self._kept or self._kept[-1][1] <= kept[0]):
                self._kept.append(kept)
                if kept[2].ids == piece.ids:
                    whole.add((found.turn, found.piece))
        owners = {(t, p) for t, turn in enumerate(turns) for p, piece in enumerate(turn.pieces) if piece.ids}
        self.lost = bool(owners - whole)

    def emit(self, layout: Layout, begin: int, end: int) -> int:
        """Appends text[begin:end], or up to the end of kept ids that it goes through; returns where it ended."""
        for start, stop, kept in self._kept:
            if begin <= start < end:
                self._add(layout, begin, start)
                layout.atoms.append(kept)
                begin = stop
        self._add(layout, begin, end)
        return max(begin, end)

    def _add(self, layout: Layout, begin: int, end: int) -> None:
        text = self._alignment.text
        for start, stop in _inside(self._alignment.foreign, begin, end):
            layout.add(text[begin:start], genuine=True)
            layout.add(text[start:stop])
            begin = stop
        layout.add(text[begin:end], genuine=True)


def _inside(spans: Sequence[Span], begin: int, end: int) -> Iterator[Span]:
    """The sorted spans, cut to begin..end and made disjoint."""
    for start, stop in spans:
        start, stop = max(start, begin), min(stop, end)
        if start < stop:
            yield start, stop
            begin = stop


def _kept_part(piece: Piece, found: Found, codec: Codec) -> tuple[int, int, Kept] | None:
    """The ids that lie wholly in the found part of a piece, with where they begin and end in the rendering."""
    ids = piece.ids or ()
    if found.hi - found.lo == len(piece.text):
        return found.start, found.stop, Kept(ids, piece.text)
    data = [codec.token_bytes(i) for i in ids]
    if b"".join(data) != piece.text.encode():
        return None  # special tokens without a text, ill-formed bytes: which id spells what is not known
    low, high = (len(piece.text[:at].encode()) for at in (found.lo, found.hi))
    inside: list[int] = []
    at, begin, end = 0, None, 0
    for token_id, token in zip(ids, data):
        if low <= at and at + len(token) <= high and token:
            inside.append(token_id)
            begin = at if begin is None else begin
            end = at + len(token)
        at += len(token)
    if begin is None:
        return None
    raw = piece.text.encode()
    try:
        before, text = raw[low:begin].decode(), raw[begin:end].decode()
    except UnicodeDecodeError:
        return None
    start = found.start + len(before)
    return start, start + len(text), Kept(tuple(inside), text)
