"""What the inhabitants of a simulated town ask a model all day: generative agents.

A row is one call, an object of one key: which question it is, and its arguments. The questions are programs of their
own, and `ask` inlines the one that a row names, so a file of mixed questions is one batch. Where an answer must be one
of several it is a `select`: an agent never walks to a place that is not there.

    python examples/programs/generative_agents.py [--data agent_calls.jsonl] [--rows N]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from common import Row, options, run, show
from radicel import assistant, function, gen, select, system, user

POINTS = [str(points) for points in range(1, 11)]
STAY = "Stay where you are if it can be done there; go elsewhere only if it must be."


@function
def poignancy_event(s: Any, persona_name: str, persona_iss: str, event: str) -> None:
    """How much an event means to a person."""
    s += system(f"You are {persona_name}.\n{persona_iss}")
    s += user(f"How much does this mean to you, from 1 (brushing teeth) to 10 (a wedding)?\n{event}")
    s += assistant("I rate it " + select("answer", POINTS))


@function
def generate_event_triple(s: Any, persona_name: str, action: str) -> None:
    """A sentence as subject, predicate and object."""
    s += system("You write a sentence as (subject, predicate, object).")
    s += user("Olga Berg is feeding the hens.") + assistant("(Olga Berg, feed, hens)")
    s += user("Luis Prado is asleep.") + assistant("(Luis Prado, be, asleep)")
    s += user(f"{persona_name} is {action}.")
    s += assistant(f"({persona_name}," + gen("answer", regex=r" [^,()\n]{1,30}, [^,()\n]{1,40}", max_tokens=24) + ")")


@function
def generate_pronunciatio(s: Any, action: str) -> None:
    """An action as one or two emojis."""
    s += system("You show what somebody does by one or two emojis, nothing else.")
    s += user("reading in bed") + assistant("📖🛏️") + user("watering the garden") + assistant("🌱💧")
    s += user(action) + assistant(gen("answer", max_tokens=12, stop="\n"))


@function
def action_location_sector(
    s: Any,
    persona_name: str,
    living_sector: str,
    living_sector_areas: str,
    current_sector: str,
    current_sector_areas: str,
    daily_plan: str,
    sector_options: str,
    current_action: str,
    next_action: str,
) -> None:
    """Which part of the town to go to."""
    s += system(f"You say where in the town somebody goes. {STAY}")
    s += user(
        f"{persona_name} lives in {living_sector}, which has {living_sector_areas}.\n"
        f"{persona_name} is in {current_sector}, which has {current_sector_areas}.\n{daily_plan}\n"
        f"Places: {sector_options}\nNow: {current_action}. Next: {next_action}. Where to?"
    )
    s += assistant(f"For {next_action}, {persona_name} goes to: " + select("answer", listed(sector_options)))


@function
def action_location_object(
    s: Any,
    persona_name: str,
    target_sector: str,
    target_sector_areas: str,
    current_action: str,
    next_action: str,
) -> None:
    """Which room to go to."""
    s += system(f"You say which room of a building somebody goes to. {STAY} Other people's rooms are private.")
    s += user(
        f"{persona_name} is going to {target_sector}. Rooms: {target_sector_areas}\n"
        f"Now: {current_action}. Next: {next_action}. Which room?"
    )
    s += assistant(f"For {next_action}, {persona_name} goes to: " + select("answer", listed(target_sector_areas)))


QUESTIONS = {
    program.name: program
    for program in (
        poignancy_event,
        generate_event_triple,
        generate_pronunciatio,
        action_location_sector,
        action_location_object,
    )
}


@function
def ask(s: Any, question: str, arguments: Mapping[str, str]) -> None:
    """Makes `answer`, to the question of that name."""
    s += QUESTIONS[question](**arguments)


def listed(places: str) -> list[str]:
    """The places of a text such as `{kitchen, bedroom}`, each once."""
    return list(dict.fromkeys(place.strip() for place in places.strip(" {}.").split(",") if place.strip()))


def call_of(row: Row) -> dict[str, Any]:
    """A row as the arguments of `ask`."""
    ((question, arguments),) = row.items()
    return {"question": question, "arguments": arguments}


def main(argv: list[str] | None = None) -> None:
    """The command."""
    said = options(__doc__, "agent_calls.jsonl", argv)
    with said.runtime() as runtime:
        batch = [call_of(row) for row in said.rows]
        states = run(ask, batch, runtime)
        show(
            ("question", "about", "answer"),
            [
                (call["question"], next(reversed(call["arguments"].values())), state["answer"].strip())
                for call, state in zip(batch, states)
                if state.error() is None
            ],
        )


if __name__ == "__main__":
    main()
