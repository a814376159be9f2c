"""Python types: closed or open, and values that come back exactly as they were written."""

# ruff: noqa: UP007, UP037, UP045 (the older spellings of types are what is tested)

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import typing
import uuid
from typing import Annotated, Any, Literal, NamedTuple, Optional, Union

import pydantic
import pytest
import typing_extensions
from radicel.constraint import Constraint
from radicel.errors import ConstraintError
from radicel.testing import accepts


class Old(typing.TypedDict, total=False):
    a: typing_extensions.Required[int]
    b: list[str]


class New(typing_extensions.TypedDict):
    old: Old


@dataclasses.dataclass
class Holder:
    item: Old
    size: int = 3


@dataclasses.dataclass
class Chain:
    value: int
    next: Optional["Chain"] = None


class Colour(enum.Enum):
    RED = "red"
    TWO = 2


class Point(NamedTuple):
    x: int
    y: str


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, pydantic.Field(ge=1, le=9)]


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    name: Annotated[str, pydantic.Field(min_length=1, max_length=5)]


class Tree(pydantic.BaseModel):
    value: int
    children: list["Tree"] = []


class Renamed(pydantic.BaseModel):
    inner: int = pydantic.Field(alias="outer")


class Loose(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    x: int


class Numbers(pydantic.RootModel[list[int]]):
    pass


Pet = Annotated[Union[Cat, Dog], pydantic.Field(discriminator="kind")]

VALUES: list[tuple[Any, Any]] = [
    (int, -5),
    (float, 2.5),
    (bool, True),
    (str, 'a "b" \\ é 😀\n'),
    (None, None),
    (Optional[int], None),
    (Union[int, str], "x"),
    (int | str, 3),
    (Literal["a", 1, None], 1),
    (Colour, Colour.TWO),
    (list[int], [1, 2]),
    (tuple[int, ...], (1, 2, 3)),
    (tuple[int, str], (1, "b")),
    (dict[str, list[int]], {"k": [1]}),
    (dict[int, str], {7: "x"}),
    (set[int], {1, 2}),
    (frozenset[str], frozenset(["a"])),
    (Point, Point(1, "y")),
    (Old, {"a": 1, "b": ["x"]}),
    (New, {"old": {"a": 1}}),
    (list[Old], [{"a": 2}]),
    (Holder, Holder({"a": 1}, 4)),
    (Chain, Chain(1, Chain(2))),
    (Cat, Cat(kind="cat", lives=9)),
    (Pet, Dog(kind="dog", name="Rex")),
    (Tree, Tree(value=1, children=[Tree(value=2)])),
    (Renamed, Renamed(outer=4)),
    (Numbers, Numbers([1, 2])),
    (decimal.Decimal, decimal.Decimal("-1.50")),
    (datetime.date, datetime.date(2024, 2, 29)),
    (datetime.time, datetime.time(10, 30, tzinfo=datetime.timezone.utc)),
    (datetime.datetime, datetime.datetime(2024, 2, 29, 1, 2, 3, tzinfo=datetime.timezone.utc)),
    (datetime.timedelta, datetime.timedelta(days=1, seconds=3)),
    (uuid.UUID, uuid.UUID("12345678-1234-5678-1234-567812345678")),
    (pydantic.HttpUrl, pydantic.HttpUrl("https://example.com/a?b=c")),
    (complex, 1 - 2j),
]


def written(type_: Any, value: Any) -> str:
    """The value as a model would write it."""
    data = pydantic.TypeAdapter(Any).dump_python(value, mode="json", by_alias=True)
    if isinstance(value, datetime.time):
        data = value.isoformat()
    return json.dumps(data, ensure_ascii=False)


@pytest.mark.parametrize(("type_", "value"), VALUES, ids=lambda v: str(v)[:40])
def test_values_round_trip_through_the_masks(type_: Any, value: Any) -> None:
    made = Constraint.of(type_)
    text = written(type_, value)
    assert accepts(made, text), text
    parsed = made.parse(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (int, "1.5"),
        (int, '"1"'),
        (bool, "True"),
        (Cat, '{"kind": "cat", "lives": 10}'),
        (Cat, '{"kind": "dog", "lives": 1}'),
        (Cat, '{"kind": "cat"}'),
        (Cat, '{"kind": "cat", "lives": 1, "more": 2}'),
        (Pet, '{"kind": "dog", "lives": 3}'),
        (Dog, '{"kind": "dog", "name": "Hector"}'),
        (Old, '{"b": []}'),
        (Old, '{"a": 1, "c": 2}'),
        (Holder, '{"item": {"a": 1, "z": 1}}'),
        (Renamed, '{"inner": 1}'),
        (tuple[int, str], "[1]"),
        (tuple[int, str], '[1, "b", 2]'),
        (Colour, '"blue"'),
        (Literal["a"], '"b"'),
        (dict[int, str], '{"x": "y"}'),
        (datetime.date, '"2023-02-29"'),
        (datetime.date, '"2024-02-30"'),
        (uuid.UUID, '"12345678"'),
        (decimal.Decimal, '"1,5"'),
        (pydantic.HttpUrl, '"ftp://example.com"'),
    ],
)
def test_texts_of_no_value_are_masked(type_: Any, text: str) -> None:
    assert not accepts(Constraint.of(type_), text)


def test_classes_are_closed_and_schemas_open_unless_asked() -> None:
    extra = '{"value": 1, "more": true}'
    schema = {"type": "object", "properties": {"value": {"type": "integer"}}}
    assert not accepts(Chain, extra)
    assert accepts(Chain, extra, strict=False)
    assert accepts(schema, extra)
    assert not accepts(schema, extra, strict=True)
    assert accepts(Loose, '{"x": 1, "more": true}')


@pytest.mark.parametrize("type_", [type, typing.Callable, pydantic.Json[list[int]]])
def test_types_that_nothing_can_be_written_for(type_: Any) -> None:
    with pytest.raises(ConstraintError):
        Constraint.of(type_)
