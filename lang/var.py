"""Values that are not known yet, as a body holds them while it is traced.

In: what a traced body reads (`s["x"]`, an argument that was not given). Out: text with marks in it (`marks.py`) where
the body formats, adds or joins them; an open end (`Opener`) where it looks inside one.

    Var    a str: text with values in it. Adding, formatting, repeating and joining make text; all else opens.
    Arg    an argument that nobody gave: as Var, and of any type.
    Typed  a value of another type (`schema=`, `dtype=`). It formats; attributes and keys that its type is sure to have
           are values as well; all else opens.

`re`, `in` over a plain text, `%` in a tuple and others read a str without asking it. `watch.py` sees those.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any, Literal, NoReturn, Protocol

import typing_extensions

from .errors import InvalidValueError
from .marks import DamagedMark, Marks
from .template import Attribute, Insert, Item, Piece, Shaped, Step, Value

__all__ = ["Arg", "Opener", "Typed", "Var", "names_of", "symbol"]


class Opener(Protocol):
    """What a symbolic value needs of its trace."""

    marks: Marks

    def open(self, variable: str | None, reason: str) -> NoReturn:
        """Ends the trace here."""
        ...

    def known(self, pieces: tuple[Piece, ...]) -> str | None:
        """The text, where the trace has taken a choice for every value in it; else None."""
        ...


class Var(str):
    """Text with values in it that are not known yet."""

    __slots__ = ("_opener",)
    _opener: Opener

    @classmethod
    def over(cls, text: str, opener: Opener) -> Var:
        """The text, with its marks, as a symbolic value."""
        made = cls(text)
        made._opener = opener
        return made

    def __str__(self) -> str:
        return self

    def __repr__(self) -> str:
        return self._shaped("r", "")

    def __format__(self, spec: str) -> str:
        return self._shaped("", spec) if spec else self

    def __add__(self, other: Any) -> Any:
        return self._with(str.__add__(_plain(self), other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return self._with(str.__add__(other, _plain(self))) if isinstance(other, str) else NotImplemented

    def __mul__(self, count: Any) -> Any:
        return self._with(str.__mul__(_plain(self), count))

    __rmul__ = __mul__

    def __rmod__(self, template: Any) -> Any:
        """`"%s" % value`: only plain `%s`; a width would count the mark."""
        return formatted_by_percent(template, self, self)

    def join(self, items: Iterable[str]) -> Any:
        """Text with this one between."""
        return self._with(str.join(_plain(self), items))

    def __copy__(self) -> Var:
        return self

    def __deepcopy__(self, memo: object) -> Var:
        return self

    def _with(self, text: str) -> Var:
        return Var.over(text, self._opener)

    def _shaped(self, conversion: str, spec: str) -> Var:
        pieces = self._pieces()
        insert: Insert = Shaped(pieces, conversion, spec)
        alone = pieces[0] if len(pieces) == 1 else None
        if isinstance(alone, Value) and not (alone.spec or (conversion and alone.conversion)):
            insert = dataclasses.replace(alone, conversion=conversion or alone.conversion, spec=spec)
        if spec and not isinstance(self, Arg):
            _check_spec("", spec, names_of(pieces), "text")
        return self._with(self._opener.marks.mark(insert))

    def _pieces(self) -> tuple[Piece, ...]:
        try:
            return self._opener.marks.pieces(_plain(self))
        except DamagedMark as damage:
            self._opener.open(None, str(damage))

    def _look(self, what: str) -> NoReturn:
        self._opener.open(names_of(self._pieces()), what)

    def _known(self) -> str | None:
        return self._opener.known(self._pieces())


class Arg(Var):
    """An argument that was not given: whatever is asked of it beyond its text opens the trace."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._look(f"reads its attribute {name!r}")


class Typed:
    """A value of a type other than str that is not known yet."""

    __slots__ = ("_opener", "_type", "_value")

    def __init__(self, value: Value, type_: Any, opener: Opener) -> None:
        self._value = value
        self._type = type_
        self._opener = opener

    def __str__(self) -> str:
        return self._shaped("s", "")

    def __repr__(self) -> str:
        return self._shaped("r", "")

    def __format__(self, spec: str) -> str:
        sample = _SAMPLES.get(self._type)
        if spec and sample is not None:
            _check_spec(sample, spec, self._value.name, self._type.__name__)
        return self._shaped("", spec)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        child = _attribute_type(self._type, name)
        if child is None:
            self._look(f"reads its attribute {name!r}, which its type {_type_name(self._type)} may not have")
        return self._child(Attribute(name), child)

    def __getitem__(self, key: Any) -> Any:
        child = _key_type(self._type, key)
        if child is None:
            self._look(f"takes its item {key!r}, which it may not have")
        return self._child(Item(key), child)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """For `isinstance`: the class that the value will have; opens where that is not one class."""
        known = typing.get_origin(self._type) or self._type
        if not isinstance(known, type) or known is types.UnionType or known.__module__ == "typing":
            self._look("asks for its type")
        return dict if typing_extensions.is_typeddict(known) else known

    def _as_expr(self) -> NoReturn:
        raise TypeError(
            f"{self._value.name!r}, a {_type_name(self._type)}, cannot be appended to a state; use str(...)"
        )

    def __copy__(self) -> Typed:
        return self

    def __deepcopy__(self, memo: object) -> Typed:
        return self

    def _child(self, step: Step, type_: Any) -> Any:
        return symbol(dataclasses.replace(self._value, steps=(*self._value.steps, step)), type_, self._opener)

    def _shaped(self, conversion: str, spec: str) -> Var:
        insert = dataclasses.replace(self._value, conversion=conversion, spec=spec)
        return Var.over(self._opener.marks.mark(insert), self._opener)

    def _look(self, what: str) -> NoReturn:
        self._opener.open(self._value.name, what)


def symbol(value: Value, type_: Any, opener: Opener) -> Any:
    """What a body gets for a value of that type: a `Var` for text, a `Typed` for all else; None is what it is."""
    if type_ is None or type_ is type(None):
        return None
    if type_ is str or (typing.get_origin(type_) is Literal and all(type(o) is str for o in typing.get_args(type_))):
        return Var.over(opener.marks.mark(value), opener)
    return Typed(value, type_, opener)


def names_of(pieces: Iterable[Piece]) -> str | None:
    """The values in a text, as the program calls them; None if there are none."""
    names = [value.name for piece in pieces if not isinstance(piece, str) for value in piece.values()]
    return ", ".join(dict.fromkeys(names)) or None


def formatted_by_percent(template: str, values: Any, first: Var | Typed) -> Any:
    """`template % values`, where some of the values are symbolic; `first` is the first of these."""
    plain = template.replace("%%", "")
    if plain.count("%") != plain.count("%s") + plain.count("%r"):
        first._look(f"formats it by {template!r}; without its text, only %s and %r are certain")
    return Var.over(str.__mod__(template, (values,) if isinstance(values, str) else values), first._opener)


def _plain(text: str) -> str:
    return str.__str__(text)


_SAMPLES: dict[Any, Any] = {int: 1, float: 1.5, bool: True}


def _check_spec(sample: Any, spec: str, name: str | None, kind: str) -> None:
    if Marks.touched(spec):
        raise InvalidValueError(f"the format specification of {name!r} has a value in it that is not known yet")
    try:
        format(sample, spec)
    except ValueError as error:
        raise InvalidValueError(
            f"the format specification {spec!r} does not fit {name!r}, which is {kind}: {error}"
        ) from None


def _type_name(type_: Any) -> str:
    return getattr(type_, "__name__", None) or str(type_)


def _attribute_type(type_: Any, name: str) -> Any:
    """The type of an attribute that every value of the type has as a field; None where that is not sure."""
    if not isinstance(type_, type):
        return None
    fields = getattr(type_, "model_fields", None) or getattr(type_, "__dataclass_fields__", {})
    return _hints(type_).get(name) if name in fields else None


def _key_type(type_: Any, key: Any) -> Any:
    """The type of a key that every value of the type has; None where that is not sure."""
    if not typing_extensions.is_typeddict(type_) or key not in type_.__required_keys__:
        return None
    return _hints(type_).get(key)


def _hints(type_: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(type_)
    except Exception:  # a name that is not there: the types are not known
        return {}


_MADE = {
    "__class__", "__new__", "__init__", "__init_subclass__", "__subclasshook__", "__doc__", "__dir__", "__sizeof__",
    "__getattribute__", "__setattr__", "__delattr__", "__reduce__", "__slots__", "__module__",
}  # fmt: skip
_NUMBERS = """__bool__ __int__ __float__ __index__ __complex__ __bytes__ __neg__ __pos__ __abs__ __invert__ __round__
    __trunc__ __floor__ __ceil__ __sub__ __rsub__ __truediv__ __rtruediv__ __floordiv__ __rfloordiv__ __mod__ __pow__
    __rpow__ __and__ __rand__ __or__ __ror__ __xor__ __rxor__ __lshift__ __rlshift__ __rshift__ __rrshift__ __divmod__
    __rdivmod__ __matmul__ __rmatmul__""".split()
_OBJECTS = """__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__ __len__ __iter__ __next__ __contains__ __reversed__
    __call__ __enter__ __exit__ __reduce_ex__ __setitem__ __delitem__ __add__ __radd__ __mul__ __rmul__ __rmod__
    """.split()
_WORDS = {
    "__eq__": "compares it", "__ne__": "compares it", "__lt__": "compares it", "__le__": "compares it",
    "__gt__": "compares it", "__ge__": "compares it", "__contains__": "looks for something in it",
    "__len__": "takes its length", "__iter__": "iterates over it", "__getitem__": "indexes it",
    "__bool__": "branches on it", "__hash__": "takes its hash, as for a dict's key or a set",
    "__int__": "converts it to int", "__float__": "converts it to float", "__index__": "uses it as a number",
    "__complex__": "converts it to a number",
}  # fmt: skip


def _looking(name: str) -> Callable[..., Any]:
    what = _WORDS.get(name) or (f"uses its {name}" if name.startswith("__") else f"calls its method {name!r}")

    def look(self: Any, *args: Any, **kwargs: Any) -> Any:
        known = self._known() if issubclass(type(self), Var) else None
        if known is None:
            return self._look(what)
        return _of_text(known, name, [_known_argument(arg) for arg in args], kwargs)

    look.__name__ = name
    return look


def _known_argument(value: Any) -> Any:
    if not issubclass(type(value), Var):
        return value
    known = value._known()
    if known is None:
        value._look("compares it, or looks for it in a text")
    return known


def _of_text(text: str, name: str, args: Iterable[Any], kwargs: dict[str, Any]) -> Any:
    """What the method gives for a text that is known."""
    convert = _CONVERSIONS.get(name)
    return convert(text) if convert else getattr(text, name)(*args, **kwargs)


_CONVERSIONS: dict[str, Callable[[str], Any]] = {
    "__bool__": bool, "__int__": int, "__float__": float, "__complex__": complex, "__bytes__": bytes,  # type: ignore[dict-item]
}  # fmt: skip


def _close(cls: type, names: Iterable[str]) -> None:
    """Every method of `names` that the class has not said itself opens the trace."""
    for name in names:
        if name not in vars(cls) and name not in _MADE:
            setattr(cls, name, _looking(name))


_close(
    Var, [name for name in dir(str) if callable(getattr(str, name))] + _NUMBERS + ["__call__", "__enter__", "__exit__"]
)
_close(Typed, _NUMBERS + _OBJECTS)
# Defining __eq__ takes __hash__ away from a class; here both open.
