"""Tips about a topic: short ones first, one after the other, then each is expanded in a branch of its own.

python examples/programs/tip_suggestion.py [--data topic.jsonl] [--rows N]
"""

from __future__ import annotations

from typing import Any

from common import options, run, show
from radicel import assistant, assistant_begin, assistant_end, function, gen, system, user


@function
def suggest(s: Any, topic: str, number: int) -> None:
    """Makes `tip_1` to `tip_<number>`, then `expanded`, a list in their order, and `summary`."""
    s += system("You give short, practical tips.")
    s += user(f"Give {number} tips about {topic}, a few words each.") + assistant_begin()
    for i in range(1, number + 1):
        s += f"{i}." + gen(f"tip_{i}", max_tokens=16, stop=["\n", "."]) + "\n"
    s += assistant_end()
    with s.fork(number) as branches:  # all tips are above, so no two branches tell the same
        for i, branch in enumerate(branches, 1):
            branch += user(f"Expand this tip into two sentences:{s[f'tip_{i}']}")
            branch += assistant(gen("expanded", max_tokens=64, stop="\n"))
    s += user("Write one sentence to introduce these texts:\n" + "\n".join(s["expanded"]))
    s += assistant(gen("summary", max_tokens=40, stop="\n"))


def main(argv: list[str] | None = None) -> None:
    """The command."""
    said = options(__doc__, "topic.jsonl", argv)
    with said.runtime() as runtime:
        states = run(suggest, [{"topic": row["topic"], "number": row["number"]} for row in said.rows], runtime)
        show(
            ("topic", "tip", "expanded"),
            [
                (row["topic"] if i == 0 else "", state[f"tip_{i + 1}"], text)
                for row, state in zip(said.rows, states)
                if state.error() is None
                for i, text in enumerate(state["expanded"])
            ],
        )


if __name__ == "__main__":
    main()
