"""A run as one HTML page that needs nothing else: no network, no other file.

In: `Costs`. Out: the page's text.

    head          totals, where the prompt's tokens came from
    programs.py   what each program said and asked, its values unfold
    prefixes.py   the tree of prefixes, to scale
    timeline.py   when each value waited and ran
    markup.py     elements, escaped by construction; page.css and page.js beside it
"""

from __future__ import annotations

from collections.abc import Sized
from importlib.resources import files

from ..model import REASONS, Costs
from ..text import seconds
from .markup import Html, el, joined, style
from .prefixes import prefixes
from .programs import programs
from .timeline import timeline

__all__ = ["page"]

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def page(costs: Costs) -> str:
    """The whole page."""
    names = dict.fromkeys(program.name for program in costs.programs if program.caller is None)
    name = ", ".join(names) or "no program"
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        el("title", f"{name} · Radicel run"),
        el("style", _asset("page.css")),
    )
    body = el(
        "body",
        el("a", "Skip to the programs", class_="skip", href="#programs"),
        _header(name),
        el("main", _totals(costs), programs(costs), prefixes(costs), timeline(costs)),
        el("script", _asset("page.js")),
    )
    return "<!doctype html>\n" + el("html", head, body, lang="en")


def _asset(name: str) -> Html:
    return Html((files(__package__) / name).read_text(encoding="utf-8"))


def _header(name: str) -> Html:
    links = [("Programs", "#programs"), ("Shared prefixes", "#prefixes"), ("Timeline", "#timeline")]
    return el(
        "header",
        el("h1", name, el("small", "Radicel run")),
        el("nav", *(el("a", text, href=href) for text, href in links), aria_label="Sections"),
        el("button", "Theme", type="button", id="theme", title="Light, dark, or as the system says"),
    )


def _totals(costs: Costs) -> Html:
    prompt, cached, generated, forced = (
        sum(getattr(node, of) for node in costs.nodes)
        for of in ("prompt_tokens", "cached_tokens", "generated_tokens", "forced_tokens")
    )
    failed = sum(program.error is not None for program in costs.programs)
    unit = costs.unit or "tokens"
    computed = sum(costs.computed().values())
    rate = f"{generated / costs.wall_s:,.0f} per second" if costs.wall_s > 0 else ""
    cards = [
        (f"{len(costs.programs):,}", _plural(costs.programs, "program"), f"{failed:,} failed" if failed else ""),
        (f"{len(costs.nodes):,}", _plural(costs.nodes, "value"), f"in {seconds(costs.wall_s)}"),
        (f"{cached / prompt:.1%}" if prompt else "–", f"of {prompt:,} prompt {unit} cached", f"{computed:,} computed"),
        (f"{generated:,}", "tokens generated", rate + (f", {forced:,} forced" if forced else "")),
    ]
    shown = [
        el("div", el("b", number), el("span", what), el("small", more), class_="card") for number, what, more in cards
    ]
    return el("section", el("div", *shown, class_="cards"), _origin(costs, cached), aria_label="Totals")


def _plural(things: Sized, word: str) -> str:
    return word if len(things) == 1 else f"{word}s"


def _origin(costs: Costs, cached: int) -> Html:
    """Where the prompts' tokens came from, as one bar with its legend."""
    shares = {"cached": cached, **costs.computed()}
    total = sum(shares.values())
    if not total:
        return Html()
    bar = [
        el("i", class_=f"seg {reason}", style=style(width=100 * count / total), title=f"{reason}: {count:,}")
        for reason, count in shares.items()
        if count
    ]
    why = {"cached": "cached: read from the cache, not computed", **REASONS}
    legend = [
        el("li", el("i", class_=f"key {reason}"), f"{count:,} ", el("span", why.get(reason, reason)))
        for reason, count in shares.items()
        if count
    ]
    return joined([el("div", *bar, class_="bar origin", aria_hidden="true"), el("ul", *legend, class_="legend")])
