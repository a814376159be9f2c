"""What the tracer notes for the checks while a body runs: what was read, what was lost.

In: variables as they are made and read, branches as they begin and end. Out: `Problem`s.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .bindings import Binding, Cell, Gathered
from .frames import user_site
from .ir import Node, Site
from .problems import Problem, problem_at

if TYPE_CHECKING:
    from .stream import Stream

__all__ = ["Notes"]

ANONYMOUS = "_gen_"


class Notes:
    """The notes of one trace.

    Attributes:
        unknown: reads of variables that were not made: name, where, the names there were.
        made_later: names among them that were made after all → where.
    """

    def __init__(self) -> None:
        self.unknown: list[tuple[str, Site, tuple[str, ...]]] = []
        self.made_later: dict[str, Site | None] = {}
        self._read: dict[int, Binding] = {}
        self._overwritten: dict[tuple[str, Site | None], Site | None] = {}
        self._sites: dict[int, Site | None] = {}
        self._forks: list[list[Stream]] = []
        self._closed: set[int] = set()

    # --- variables --------------------------------------------------------------------------------------------------

    def bound(self, stream: Stream, name: str, binding: Binding) -> None:
        """`name` becomes a variable of the stream."""
        site = _site_of(binding)
        self._sites[id(binding)] = site
        if any(name == unknown for unknown, _, _ in self.unknown):
            self.made_later.setdefault(name, site)
        before = stream.made.get(name)
        if before is not None and before is not binding and not self.was_read(before):
            self._overwritten.setdefault((name, self._sites.get(id(before))), site)

    def read(self, binding: Binding) -> None:
        """Something read the variable."""
        self._read[id(binding)] = binding
        if isinstance(binding, Gathered):
            for item in binding.items:
                self.read(item)

    def was_read(self, binding: Binding) -> bool:
        """Whether something read it."""
        return id(binding) in self._read

    def forgiven(self, name: str, site: Site, known: Sequence[str]) -> None:
        """A variable was read that was not made."""
        self.unknown.append((name, site, tuple(known)))

    # --- forks ------------------------------------------------------------------------------------------------------

    def branch(self, stream: Stream) -> None:
        """A branch begins; the first one begins a fork."""
        assert stream.start is not None
        if stream.start.payload.index == 0:
            self._forks.append([])
        self._forks[-1].append(stream)

    def closed(self, stream: Stream) -> None:
        """A branch was joined or its copy ended."""
        self._closed.add(id(stream))

    def siblings(self, stream: Stream) -> list[Stream]:
        """The branches of the fork that the stream is a branch of."""
        return next(fork for fork in self._forks if any(branch is stream for branch in fork))

    # --- what it comes to -------------------------------------------------------------------------------------------

    def problems(self) -> list[Problem]:
        """What is wrong, in the order of the program."""
        found = [self._unknown(name, site, known) for name, site, known in self.unknown]
        found += [
            problem_at(
                "warning",
                after,
                f"the variable {name!r}{_made_at(before)} is overwritten before anything read it",
                "give one of the two another name",
            )
            for (name, before), after in self._overwritten.items()
        ]
        return found + [problem for fork in self._forks if (problem := self._unread(fork)) is not None]

    def _unknown(self, name: str, site: Site, known: tuple[str, ...]) -> Problem:
        if name in self.made_later:
            later = self.made_later[name]
            message = f"the variable {name!r} is read before it is made" + (f" (line {later.line})" if later else "")
            return problem_at("error", site, message, "read it after the gen or select that makes it")
        near = difflib.get_close_matches(name, known, 1)
        made = ", ".join(map(repr, known)) or "none"
        fix = f"did you mean {near[0]!r}?" if near else f"the variables made so far are: {made}"
        return problem_at("error", site, f"the variable {name!r} is read and never made", fix)

    def _unread(self, fork: Sequence[Stream]) -> Problem | None:
        """A fork in which a model writes and nothing comes of it."""
        if not any(stream.cells for stream in fork) or any(self._is_used(stream) for stream in fork):
            return None
        start = fork[0].start
        joined = all(id(stream) in self._closed for stream in fork)
        fix = "give its gens names" if joined else "join the branches, or read their variables"
        return problem_at("warning", start.site if start else None, "nothing reads what the fork's branches write", fix)

    def _is_used(self, stream: Stream) -> bool:
        named = [binding for name, binding in stream.made.items() if not name.startswith(ANONYMOUS)]
        if any(self.was_read(binding) for binding in stream.made.values()):
            return True
        # The variables of a joined branch are those of the state that the caller gets.
        return id(stream) in self._closed and (
            bool(named) or "append" in str(stream.closed) or "first" in str(stream.closed)
        )


def _site_of(binding: Binding) -> Site | None:
    node: Node | None = binding.node if isinstance(binding, Cell) else None
    return node.site if node is not None else user_site()


def _made_at(site: Site | None) -> str:
    return f", made at line {site.line}," if site is not None else ""
