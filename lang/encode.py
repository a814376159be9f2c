"""From a `Prompt` to token ids, exactly: chat templates, special tokens, kept ids, BOS.

In: a `Prompt`, and a `Codec` (a tokenizer with its chat template, `chat.py`). Out: an `EncodedPrompt`.

Each run of text between kept ids is encoded as one. In it, the spelling of a special token means the token where the
chat template or `Text(special=True)` wrote it; in all other text it is text. With no such spelling in the contents
and no kept ids, the result is `apply_chat_template(tokenize=True)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .atoms import Kept, Run
from .errors import InvalidValueError
from .layout import Layout, lay_out
from .prompt import EncodedPrompt, Generated, Prompt, Text, TurnBegin

if TYPE_CHECKING:
    from .chat import Codec

__all__ = ["PromptEncoder"]


class PromptEncoder:
    """Encodes prompts for one tokenizer. Usable from many threads; keeps no state but the codec's cache.

    Args:
        codec: the tokenizer.
        template_kwargs: further variables of the chat template (`enable_thinking=False`).
    """

    def __init__(self, codec: Codec, *, template_kwargs: Mapping[str, Any] | None = None) -> None:
        self._codec = codec
        self._template_kwargs = dict(template_kwargs or {})

    def encode(self, prompt: Prompt) -> EncodedPrompt:
        """The ids that the model sees.

        Raises:
            ChatTemplateError: a role without a chat template, or a conversation that the template refuses.
            RoleError: a turn inside a turn, or an end without a begin.
            InvalidValueError: an empty prompt, and the tokenizer has no BOS to start from.
        """
        layout = self._lay_out(prompt)
        ids, lost = self._encode(layout.atoms)
        reencoded = (*layout.reencoded, "healing") if lost else layout.reencoded
        return EncodedPrompt(tuple(self._with_bos(layout, ids)), reencoded)

    def render(self, prompt: Prompt) -> str:
        """The text that the model sees, special tokens of the template spelled out; without a BOS of the tokenizer."""
        return "".join(atom.text for atom in self._lay_out(prompt).atoms)

    def encode_continuations(self, prompt: Prompt, continuations: Sequence[str]) -> list[tuple[list[int], int]]:
        """The prompt with each continuation, for scoring.

        A continuation is encoded in one run with the literal before it, so that a token at the border may be another
        than at the end of the prompt alone.

        Returns:
            per continuation the ids of prompt and continuation, and `start`, from which ids on they are to be scored:
            the length of the longest common prefix of the prompt and all of these, at least 1, the same for all.
        """
        if _opens_answer(prompt):  # the template may have a space to put before it
            prompt_ids, *wholes = [list(self.encode((*prompt, Text(text))).token_ids) for text in ("", *continuations)]
        else:
            prompt_ids, *wholes = self._continued(prompt, ["", *continuations])
        start = min([len(prompt_ids), *(_common(prompt_ids, ids) for ids in wholes)])
        return [(ids, max(1, start)) for ids in wholes]

    def _continued(self, prompt: Prompt, continuations: Sequence[str]) -> list[list[int]]:
        layout = self._lay_out(prompt)
        atoms = list(layout.atoms)
        final = atoms[-1] if atoms else None
        last = final if isinstance(final, Run) else Run("")
        if final is last:
            atoms.pop()
        before, _ = self._encode(atoms)
        at_start = not atoms
        starts_empty = at_start and not last.text

        def whole(text: str) -> list[int]:
            ids = before + self._codec.encode_run(last.text + text, last.genuine, at_start=at_start)
            return self._with_bos(layout, ids, needs_bos=starts_empty)

        return [whole(text) for text in continuations]

    def _lay_out(self, prompt: Prompt) -> Layout:
        return lay_out(prompt, self._codec, self._template_kwargs)

    def _encode(self, atoms: Sequence[Run | Kept]) -> tuple[list[int], bool]:
        """The ids, and whether some that spell the end of a literal anew could not be kept."""
        ids: list[int] = []
        lost = False
        for i, atom in enumerate(atoms):
            if isinstance(atom, Run):
                ids += self._codec.encode_run(atom.text, atom.genuine, at_start=i == 0)
            elif not atom.replaced:
                ids += atom.ids
            elif i > 0 and isinstance(atoms[i - 1], Run) and tuple(ids[-len(atom.replaced) :]) == atom.replaced:
                ids[-len(atom.replaced) :] = atom.ids
            else:  # it stands behind something else by now, such as another branch's text
                ids += self._codec.encode_run(atom.text, at_start=i == 0)
                lost = True
        return ids, lost

    def _with_bos(self, layout: Layout, ids: list[int], *, needs_bos: bool = False) -> list[int]:
        """BOS exactly once: a template writes its own, raw text gets what the tokenizer would put before it."""
        bos = self._codec.bos_ids if layout.starts_raw else ()
        if not bos and (needs_bos or not ids):
            if self._codec.bos_id is None:
                raise InvalidValueError(
                    "the prompt is empty and the tokenizer has no BOS token to start from; give at least one character"
                )
            bos = (self._codec.bos_id,)
        return ids if tuple(ids[: len(bos)]) == bos else [*bos, *ids]


def _opens_answer(prompt: Prompt) -> bool:
    written = [part for part in prompt if not (isinstance(part, (Text, Generated)) and not part.text)]
    return bool(written) and isinstance(written[-1], TurnBegin)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
