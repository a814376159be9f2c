"""Programs whose calls share prefixes: raw text, turns, branches of branches, choices."""

from __future__ import annotations

from typing import Any

from radicel import assistant, gen, select, system, user

TEXT = "the inner one on the other: then the end of it. " * 6


def raw(s: Any, i: int) -> None:
    s += TEXT + f"number {i}:" + gen("a", max_tokens=4, token_healing=False)
    s += " and then " + gen("b", max_tokens=4, token_healing=False)


def chat(s: Any, i: int) -> None:
    s += system(TEXT) + user(f"number {i}")
    s += assistant(gen("a", max_tokens=4)) + user("and then") + assistant(gen("b", max_tokens=4))


def forks(s: Any, i: int) -> None:
    s += system(TEXT) + user(f"number {i}")
    with s.fork(3) as branches:
        for j, branch in enumerate(branches):
            branch += user(f"way {j}") + assistant(gen("a", max_tokens=4))
            with branch.fork(2) as twigs:
                for k, twig in enumerate(twigs):
                    twig += user(f"twig {k}") + assistant(gen("b", max_tokens=4))


def choose(s: Any, i: int) -> None:
    s += system(TEXT) + user(f"number {i}") + assistant(select("x", ["the one", "the other", "then"]))
