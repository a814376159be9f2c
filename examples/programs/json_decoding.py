"""Facts about a city as JSON, by a regular expression and by a schema.

A regular expression fixes the text to the character: keys, order and white space, and the value is a text. A schema
(here a pydantic model) says what the value is; the text is JSON and the value an object of that type. Both are masks
on what the model may write, so neither can come out wrong; text that has no alternative is not even asked for.

    python examples/programs/json_decoding.py [--data documents.jsonl] [--rows N]
"""

from __future__ import annotations

import json
from typing import Any, Literal

from common import options, run, show
from pydantic import BaseModel, Field
from radicel import assistant, function, gen, system, user

Climate = Literal["maritime", "continental", "mediterranean", "tropical", "arid", "polar"]


class City(BaseModel):
    """What a text says about a city."""

    name: str = Field(max_length=40)
    country: str = Field(max_length=40)
    population: int = Field(ge=0, le=99_999_999)
    climate: Climate
    landmarks: list[str] = Field(max_length=3)


TEXT = r'"[^"\\\x00-\x1f]{1,40}"'
CITY = (
    r'\{"name": ' + TEXT + r', "country": ' + TEXT + r', "population": (0|[1-9]\d{0,7}), '
    r'"climate": "(maritime|continental|mediterranean|tropical|arid|polar)", '
    r'"landmarks": \[(' + TEXT + "(, " + TEXT + r"){0,2})?\]\}"
)


@function
def describe(s: Any, document: str) -> None:
    """Makes `by_regex`, a JSON text, and `by_schema`, a `City`, side by side from the same prompt."""
    s += system("You read a text about a city and write down the facts as JSON.") + user(document)
    regex, schema = s.fork(2)
    regex += assistant(gen("by_regex", regex=CITY, max_tokens=160))
    schema += assistant(gen("by_schema", schema=City, max_tokens=160))
    s["by_regex"], s["by_schema"] = regex["by_regex"], schema["by_schema"]


def main(argv: list[str] | None = None) -> None:
    """The command."""
    said = options(__doc__, "documents.jsonl", argv)
    with said.runtime() as runtime:
        states = run(describe, [{"document": row["document"]} for row in said.rows], runtime)
        table = []
        for state in states:
            if state.error() is None:
                table += [("regex", *facts(json.loads(state["by_regex"])))]
                table += [("schema", *facts(state["by_schema"].model_dump()))]
        show(("by", *City.model_fields), table)


def facts(city: dict[str, Any]) -> list[object]:
    """The values in the order of the columns."""
    return [", ".join(value) if isinstance(value := city[name], list) else value for name in City.model_fields]


if __name__ == "__main__":
    main()
