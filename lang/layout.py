"""Lays a prompt out: what stands where in the text that the model sees, and which token ids stay as they are.

In: a `Prompt` and a `Codec`. Out: a `Layout`: runs of text to be encoded, between ids that are kept.

Turns are rendered by the chat template, all of them each time: a longer conversation then extends a shorter one
wherever the template lets it, and where the template rewrites history, the rendering is simply what it says. Raw text
stands where it was written: before, between or after the turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .align import Alignment, Message, Piece, Span, Turn, align, common_prefix
from .atoms import Atoms, Kept, KeptParts, Run
from .errors import ChatTemplateError, RoleError
from .prompt import Generated, Prompt, Text, TurnBegin, TurnEnd

if TYPE_CHECKING:
    from .chat import Codec

__all__ = ["Layout", "lay_out"]

_CUT = "\U0010fffd"  # stands for the content of an open turn, where its header is wanted


@dataclass(frozen=True)
class Layout:
    """A prompt, laid out.

    Attributes:
        atoms: runs and kept ids in order; no two runs are neighbours.
        starts_raw: whether the prompt begins with raw text, so that the tokenizer's own BOS belongs before it.
        reencoded: as in `EncodedPrompt`.
    """

    atoms: list[Run | Kept]
    starts_raw: bool = True
    reencoded: tuple[str, ...] = ()


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
    if script.turns or script.open:
        return _Rendering(script, codec, template_kwargs).lay_out()
    atoms = Atoms()
    atoms.add_pieces(script.raws.get(0, []))
    return Layout(atoms.finish())


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
        piece = Piece(part.text, part.token_ids, replaced=part.replaced)
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

    def lay_out(self) -> Layout:
        """The conversation, with raw text where it was written."""
        script = self._script
        raws = {k: pieces for k, pieces in script.raws.items() if any(p.text or p.ids for p in pieces)}
        between = [k for k in raws if k < len(script.turns) or script.open]
        needed = frozenset(k - 1 for k in between if k > 0)
        alignment = align(script.turns, self._frame, self._codec.special_spellings, self._unmeant, needed)
        kept = KeptParts(script.turns, alignment, self._codec)
        inserts = sorted((self._border(k, alignment), k) for k in between)
        atoms = Atoms()
        at = 0
        for place, k in inserts:
            at = kept.emit(atoms, at, place)
            atoms.add_pieces(raws[k])
        kept.emit(atoms, at, len(alignment.text))
        if script.open:
            atoms.add_pieces(script.open.pieces)
        elif len(script.turns) in raws:
            atoms.add_pieces(raws[len(script.turns)])
        return Layout(atoms.finish(), 0 in raws, ("template",) if kept.lost else ())

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

    def _unmeant(self, piece: Piece) -> Sequence[Span]:
        """Where a piece spells a special token as text: all of it that is no literal for that, and was not sampled."""
        spans = [] if piece.special else self._codec.special_spellings(piece.text)
        if not spans or piece.ids is None:
            return spans
        sampled = set(piece.ids)
        return [(a, b) for a, b in spans if sampled.isdisjoint(self._codec.encode_run(piece.text[a:b], [(0, b - a)]))]

    def _border(self, num_turns: int, alignment: Alignment) -> int:
        """Where raw text after so many turns stands in the rendering."""
        text = alignment.text
        if num_turns == 0:
            # Raw text follows BOS, where that is one: some models name the mark that begins each turn so.
            bos = self._codec.bos_text if self._codec.bos_ids else ""
            return len(bos) if text.startswith(bos) else 0
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
        closing = before.rpartition(probe)[2] if probe and probe in before else ""
        return end + common_prefix(closing, text[end:])
