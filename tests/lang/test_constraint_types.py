"""Python types: closed or open, and values that come back exactly as they were written."""

# ruff: noqa: UP007, UP037, UP045 (the older spellings of types are what is tested)

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import ipaddress
import json
import pathlib
import random
import typing
import uuid
from typing import Annotated, Any, Literal, NamedTuple, Optional, Union

import pydantic
import pydantic.alias_generators
import pytest
import typing_extensions
from radicel.accepts import _byte_compiler
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


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Money(pydantic.BaseModel):
    amount: Annotated[decimal.Decimal, pydantic.Field(ge=0, le=1000, decimal_places=2, max_digits=6)]
    currency: Annotated[str, pydantic.Field(pattern=r"^[A-Z]{3}$")]


class Left(pydantic.BaseModel):
    right: "Optional[Right]" = None


class Right(pydantic.BaseModel):
    lefts: list[Left] = []


class Ticket(typing_extensions.TypedDict):
    number: int
    note: typing_extensions.NotRequired[str]


class Either(pydantic.BaseModel):
    a: int = pydantic.Field(validation_alias=pydantic.AliasChoices("first", "second"))


class Camel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(alias_generator=pydantic.alias_generators.to_camel)
    first_name: str


class Owner(pydantic.BaseModel):
    pets: "list[Pet]"
    best: "Optional[Pet]" = None


Item = typing.TypeVar("Item")


class Box(pydantic.BaseModel, typing.Generic[Item]):
    item: Item


Nested = typing_extensions.TypeAliasType("Nested", "Union[int, list[Nested]]")
Pet = Annotated[Union[Cat, Dog], pydantic.Field(discriminator="kind")]

TWO_HOURS = datetime.timezone(datetime.timedelta(hours=2))
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
    (Level, Level.HIGH),
    (dict[Level, str], {Level.LOW: "x"}),
    (Left, Left(right=Right(lefts=[Left(), Left(right=Right())]))),
    (Ticket, {"number": 1}),
    (Ticket, {"number": 1, "note": "x"}),
    (Camel, Camel(firstName="x")),
    (Owner, Owner(pets=[Cat(kind="cat", lives=1), Dog(kind="dog", name="Rex")], best=Cat(kind="cat", lives=2))),
    (Box[int], Box[int](item=3)),
    (Nested, [1, [2, []]]),
    (Annotated[int, pydantic.Field(gt=3, lt=9, multiple_of=2)], 4),
    (Annotated[list[int], pydantic.Field(min_length=1, max_length=2)], [1]),
    (Annotated[str, pydantic.StringConstraints(min_length=2, max_length=3, pattern="^[a-z]+$")], "abc"),
    (pydantic.PositiveInt, 3),
    (float, 1.5e-7),
    (decimal.Decimal, decimal.Decimal("12345678901234567890.123")),
    (ipaddress.IPv4Address, ipaddress.IPv4Address("1.2.3.4")),
    (pathlib.Path, pathlib.Path("/a/b")),
    (bytes, b"ab"),
    (pydantic.UUID4, uuid.UUID("12345678-1234-4678-9234-567812345678")),
    (datetime.datetime, datetime.datetime(2024, 1, 2, 3, 4, 5, 123000)),
    (pydantic.NaiveDatetime, datetime.datetime(2024, 1, 2, 3, 4, 5)),
    (
        pydantic.AwareDatetime,
        datetime.datetime(2024, 1, 2, 3, 4, tzinfo=datetime.timezone(datetime.timedelta(hours=2))),
    ),
    (datetime.time, datetime.time(1, 2, 3)),
    (Union[datetime.date, str], datetime.date(2024, 1, 1)),
    (Any, {"a": [1, None]}),
    (tuple[()], ()),
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


def test_spellings_beside_the_one_that_is_dumped() -> None:
    """A bounded decimal is a number in JSON; an alias for reading is another one than for writing."""
    assert accepts(Money, '{"amount": 12.5, "currency": "EUR"}')
    made = Constraint.of(Money)
    assert made.parse('{"amount": 12.5, "currency": "EUR"}').amount == decimal.Decimal("12.50")
    assert accepts(Either, '{"first": 2}')
    assert Constraint.of(Either).parse('{"first": 2}').a == 2


@pytest.mark.parametrize("type_", list({str(type_): type_ for type_, _ in VALUES}.values()), ids=str)
def test_random_texts_of_a_type_are_read(type_: Any) -> None:
    made = Constraint.of(type_)
    draw = random.Random(7)
    compiler = _byte_compiler()
    row = compiler.vocabulary.empty_mask()
    for _ in range(8):
        matcher = compiler.compile(made).matcher()
        text = bytearray()
        while len(text) < 300:
            matcher.fill_mask(row)
            able = [i for i in range(257) if row[i >> 5] >> (i & 31) & 1]
            if 256 in able and (len(able) == 1 or draw.random() < 0.5):
                made.parse(text.decode())
                break
            closing = [byte for byte in able if byte in (0x22, 0x5D, 0x7D)]
            lean = closing if closing and draw.random() < 0.2 + len(text) / 400 else [i for i in able if i < 256]
            text.append(draw.choice(lean))
            assert matcher.accept(text[-1])


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
        (pydantic.UUID4, '"12345678-1234-1678-9234-567812345678"'),
        (pydantic.NaiveDatetime, '"2024-01-02T03:04:05Z"'),
        (pydantic.AwareDatetime, '"2024-01-02T03:04:05"'),
        (datetime.datetime, '"2024-01-02T23:59:60Z"'),
        (dict[Level, str], '{"3": "x"}'),
        (Ticket, '{"note": "x"}'),
        (Camel, '{"first_name": "x"}'),
        (Money, '{"amount": 12.345, "currency": "EUR"}'),
        (Money, '{"amount": 12.5, "currency": "euro"}'),
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


class ByPath(pydantic.BaseModel):
    x: int = pydantic.Field(validation_alias=pydantic.AliasPath("data", "x"))


class ByPathOrDefault(pydantic.BaseModel):
    x: int = pydantic.Field(default=3, validation_alias=pydantic.AliasPath("data"))


class ByPaths(pydantic.BaseModel):
    x: int = pydantic.Field(
        validation_alias=pydantic.AliasChoices(pydantic.AliasPath("d", 0), pydantic.AliasPath("e", "f"))
    )


class HoldsByPath(pydantic.BaseModel):
    inner: list[ByPath]


@pydantic.dataclasses.dataclass
class DataByPath:
    x: int = pydantic.Field(validation_alias=pydantic.AliasPath("data", "x"))


@pytest.mark.parametrize("type_", [ByPath, ByPathOrDefault, ByPaths, HoldsByPath, DataByPath])
def test_a_field_that_no_key_gives_is_refused(type_: type) -> None:
    with pytest.raises(ConstraintError, match=r"read from AliasPath\('d") as caught:
        Constraint.of(type_)
    assert caught.value.keyword == "AliasPath"


class ByChoice(pydantic.BaseModel):
    x: int = pydantic.Field(validation_alias=pydantic.AliasChoices(pydantic.AliasPath("d", 0), "ex", "eks"))


class ByName(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(populate_by_name=True)

    x: int = pydantic.Field(validation_alias=pydantic.AliasPath("data", "x"))


@pytest.mark.parametrize(("type_", "text"), [(ByChoice, '{"ex": 7}'), (ByName, '{"x": 7}')])
def test_a_field_that_a_key_gives_among_others_is_written_by_it(type_: type, text: str) -> None:
    made = Constraint.of(type_)
    assert accepts(made, text)
    assert made.parse(text).x == 7
