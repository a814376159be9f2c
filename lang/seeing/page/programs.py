"""The programs: what each said and asked, turn by turn; a value unfolds to its tokens, times and reasons.

In: `Costs`. Out: a section of the page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ..model import REASONS, Asked, Costs, Fork, Joined, NodeCost, Piece, ProgramCost, Said, Step
from ..text import seconds
from .markup import Html, el, joined, style

__all__ = ["programs", "tokens"]

_MOST_PROGRAMS = 200
_OPEN_PROGRAMS = 1
_LONG = 420
_JOINS = {
    "gather_variable": "joined: the branches' variables come back as lists",
    "append": "joined: the branches' text goes on here, in order",
    "first": "joined: this branch ended first and goes on",
}


def programs(costs: Costs) -> Html:
    """The section."""
    shown = costs.programs[:_MOST_PROGRAMS]
    of_program: dict[int, list[NodeCost]] = {}
    for node in costs.nodes:
        of_program.setdefault(node.program, []).append(node)
    parts = [_program(costs, at, one, of_program.get(at, [])) for at, one in enumerate(shown)]
    left = len(costs.programs) - len(shown)
    more = el("p", f"… and {left:,} more programs, whose costs are in the totals", class_="more") if left else ""
    tools = el(
        "p",
        el("button", "Unfold all", type="button", id="unfold"),
        el("button", "Fold all", type="button", id="fold"),
        _legend(costs),
        class_="tools",
    )
    return el("section", el("h2", "Programs"), tools, *parts, more, id="programs")


def _legend(costs: Costs) -> str:
    if not any(piece.logprob is not None for node in costs.nodes for piece in node.pieces):
        return ""
    steps = [
        el("i", text, class_=f"t p{at}") for at, text in enumerate(["sure", *["\N{NO-BREAK SPACE}"] * 4, "unlikely"])
    ]
    return el("span", "a token's probability: ", *steps, class_="scale")


def _program(costs: Costs, place: int, program: ProgramCost, nodes: Sequence[NodeCost]) -> Html:
    ends = [node.ended_s for node in nodes if node.ended_s is not None]
    took = max(ends) - min(node.recorded_s for node in nodes) if ends else None
    called = "" if program.caller is None else f"called by item {costs.programs[program.caller].item}"
    facts = [
        f"{len(nodes)} values" if len(nodes) != 1 else "1 value",
        seconds(took) if took is not None else "",
        called,
    ]
    summary = el(
        "summary",
        el("span", f"item {program.item}", class_="item"),
        el("b", program.name),
        el("span", " · ".join(fact for fact in facts if fact), class_="facts"),
        _origin_bar(nodes),
        el("span", "failed", class_="bad") if program.error else "",
    )
    error = el("p", program.error, class_="error") if program.error else ""
    inside = el("div", error, *_steps(costs, program.steps), class_="talk")
    return el("details", summary, inside, class_="program", open=place < _OPEN_PROGRAMS)


def _steps(costs: Costs, steps: Iterable[Step]) -> Iterator[Html]:
    """Steps of one role together; a fork beside its text."""
    role, turn = None, list[Html]()
    for step in steps:
        if isinstance(step, (Said, Asked)):
            if step.role != role and turn:
                yield _turn(role, turn)
                turn = []
            role = step.role
            turn.append(_said(step.text) if isinstance(step, Said) else _value(costs.nodes[step.node]))
            continue
        if turn:
            yield _turn(role, turn)
            turn = []
        yield _fork(costs, step) if isinstance(step, Fork) else _join(step)
    if turn:
        yield _turn(role, turn)


def _turn(role: str | None, inside: Sequence[Html]) -> Html:
    return el(
        "div",
        el("span", role or "text", class_="role"),
        el("div", *inside, class_="said"),
        class_=f"turn {_known(role)}",
    )


def _known(role: str | None) -> str:
    return role if role in ("system", "user", "assistant") else "other"


def _said(text: str) -> Html:
    if len(text) <= _LONG:
        return el("div", text, class_="text")
    summary = el(
        "summary", el("span", text[: _LONG // 2] + " … ", class_="text"), el("em", f"all {len(text):,} characters")
    )
    return el("details", summary, el("div", text, class_="text"), class_="long")


def _fork(costs: Costs, fork: Fork) -> Html:
    count = len(fork.branches)
    arms = [
        el("div", el("h3", f"branch {at} of {count}"), *_steps(costs, steps), class_="branch")
        for at, steps in enumerate(fork.branches, 1)
    ]
    return el("div", *arms, class_="fork")


def _join(step: Joined) -> Html:
    return el("p", _JOINS.get(step.mode, step.mode), class_="join")


# ---- a value


def _value(node: NodeCost) -> Html:
    took = node.state if node.ended_s is None else seconds(node.ended_s - node.recorded_s)
    bad = el("span", node.state, class_="bad") if node.state in ("failed", "cancelled") else ""
    snippet = " ".join(node.text.split())
    summary = el(
        "summary",
        el("span", node.name, class_="name"),
        el("span", snippet[:160] + ("…" if len(snippet) > 160 else ""), class_="snippet"),
        bad,
        _origin_bar([node]),
        el("span", took, class_="took"),
    )
    inside = [
        el("p", node.error, class_="error") if node.error else "",
        el("div", tokens(node.pieces, node.text), class_="text written"),
        _choices(node),
        _facts(node),
    ]
    return el(
        "details", summary, el("div", *inside, class_="inside"), class_=f"value {node.kind}", id=f"n{node.number}"
    )


def tokens(pieces: Sequence[Piece], text: str) -> Html:
    """The text, coloured by the probability of its tokens where that is known."""
    if not any(piece.logprob is not None for piece in pieces):
        return joined([text])
    return joined([_token(piece) for piece in pieces])


def _token(piece: Piece) -> Html:
    if piece.logprob is None:
        return el("span", piece.text, class_="t")
    likely = math.exp(min(0.0, piece.logprob))
    title = f"{likely:.1%} (logprob {piece.logprob:.3f})"
    if piece.others:
        others = ", ".join(f"{text!r} {math.exp(min(0.0, logprob)):.1%}" for text, logprob in piece.others)
        title += f"\nlikeliest: {others}"
    return el("span", piece.text, class_=f"t p{_step(likely)}", title=title)


def _step(likely: float) -> int:
    """0 for sure to 5 for unlikely."""
    return next((step for step, least in enumerate((0.9, 0.6, 0.3, 0.1, 0.02)) if likely >= least), 5)


def _choices(node: NodeCost) -> str:
    if not node.probabilities:
        return ""
    rows = [
        el(
            "li",
            el("span", choice, class_="choice"),
            el("span", el("i", style=style(width=100 * share)), class_="meter"),
            el("span", f"{share:.1%}", class_="share"),
            class_="chosen" if choice == node.text else None,
        )
        for choice, share in sorted(node.probabilities.items(), key=lambda entry: -entry[1])
    ]
    return el("ul", *rows, class_="choices")


def _facts(node: NodeCost) -> Html:
    file, _, line = node.site.rpartition(":")
    facts = [
        ("prompt", f"{node.prompt_tokens:,}"),
        ("cached", f"{node.cached_tokens:,}"),
        *((f"computed, {reason}", f"{count:,}") for reason, count in node.computed.items()),
        ("generated", f"{node.generated_tokens:,}" if node.kind == "gen" else ""),
        ("forced", f"{node.forced_tokens:,}" if node.forced_tokens else ""),
        ("mean logprob", "" if node.mean_logprob is None else f"{node.mean_logprob:.2f}"),
        ("waited", _time(node.waited_s)),
        ("prefill" if node.kind == "gen" else "scored", _time(node.prefill_s)),
        ("decode", _time(node.decode_s)),
        ("ended by", node.finish_reason or ""),
        ("samples", str(node.samples) if node.samples > 1 else ""),
        ("tries again", str(node.retries) if node.retries else ""),
        ("ids not kept", ", ".join(node.reencoded)),
        ("line", f"{Path(file).name}:{line}" if line else ""),
    ]
    shown = [el("div", el("dt", name), el("dd", value), title=_why(name)) for name, value in facts if value]
    return el("dl", *shown)


def _why(name: str) -> str | None:
    return REASONS.get(name.rpartition(", ")[2]) if name.startswith("computed") else None


def _time(value: float | None) -> str:
    return "" if value is None else seconds(value)


def _origin_bar(nodes: Sequence[NodeCost]) -> Html:
    """Cached and computed tokens as a little bar."""
    shares: dict[str, int] = {"cached": sum(node.cached_tokens for node in nodes)}
    for node in nodes:
        for reason, count in node.computed.items():
            shares[reason] = shares.get(reason, 0) + count
    total = sum(shares.values())
    title = ", ".join(f"{count:,} {reason}" for reason, count in shares.items() if count)
    segments = [
        el("i", class_=f"seg {reason}", style=style(width=100 * count / total))
        for reason, count in shares.items()
        if count
    ]
    return el("span", *segments, class_="bar mini", title=f"prompt: {title}" if title else None)
