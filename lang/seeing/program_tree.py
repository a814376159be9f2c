"""What a program recorded, in the order in which a person reads it: texts, values, forks and joins.

In: ends of its streams. Out: `Step`s, branches inside their fork, and which branches each value stands in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ..ir import Node, Op
from .model import Asked, Fork, Joined, Said, Step

__all__ = ["Steps"]


class Steps:
    """The steps of one program.

    Args:
        tips: nodes; with all that they lead back to they are the program.
        numbers: of the generating nodes.

    Attributes:
        steps: the whole program.
        branches: of each generating node, the branches that it stands in.
    """

    def __init__(self, tips: Iterable[Node], numbers: Mapping[Node, int]) -> None:
        self._numbers = numbers
        self._after: dict[Node | None, dict[Node, None]] = {}
        self.branches: dict[Node, tuple[str, ...]] = {}
        self._link(tips)
        self.steps = self._strand(None, "", ())

    def _link(self, tips: Iterable[Node]) -> None:
        """Finds what follows each node, in the order of recording as far as the tips are."""
        todo, seen = list(tips)[::-1], set()
        while todo:
            path: list[Node] = []
            node: Node | None = todo.pop()
            while node is not None and node not in seen:
                seen.add(node)
                path.append(node)
                node = node.prefix
            for one in reversed(path):
                self._after.setdefault(one.prefix, {})[one] = None
                todo += [needed for needed in one.data if needed not in seen]

    def _strand(self, at: Node | None, role: str, branch: tuple[str, ...]) -> tuple[Step, ...]:
        steps: list[Step] = []
        while True:
            following = self._after.get(at, {})
            for fork in _forks(node for node in following if node.op is Op.BRANCH):
                arms = [self._strand(one, role, (*branch, _position(one))) for one in fork]
                steps.append(Fork(tuple(arms)))
            at = next((node for node in following if node.op is not Op.BRANCH), None)
            if at is None:
                return tuple(steps)
            if at.op is Op.TURN_BEGIN:
                role = str(at.payload)
            elif at.op is Op.TURN_END:
                role = ""
            elif at.op is Op.TEXT:
                _say(steps, role, at.payload.text)
            elif at.op.generates and at in self._numbers:
                self.branches[at] = branch
                steps.append(Asked(role, self._numbers[at]))
            elif at.op in (Op.JOIN, Op.APPEND):
                steps.append(Joined(str(at.payload) if at.op is Op.JOIN else "append"))


def _say(steps: list[Step], role: str, text: str) -> None:
    last = steps[-1] if steps else None
    if isinstance(last, Said) and last.role == role and role:
        steps[-1] = Said(role, last.text + text)
    elif text:
        steps.append(Said(role, text))


def _position(node: Node) -> str:
    return f"{node.payload.index + 1} of {node.payload.size}"


def _forks(branches: Iterable[Node]) -> Iterator[list[Node]]:
    """Branches of one fork together: those of one line, up to one whose index was there."""
    by_site: dict[str, list[Node]] = {}
    for node in branches:
        by_site.setdefault(str(node.site), []).append(node)
    for nodes in by_site.values():
        forks: list[dict[int, Node]] = []
        for node in nodes:
            fork = next((one for one in forks if node.payload.index not in one), None)
            if fork is None:
                fork = {}
                forks.append(fork)
            fork[node.payload.index] = node
        for fork in forks:
            yield [fork[index] for index in sorted(fork)]
