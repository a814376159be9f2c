"""What a model should write for a Python type: pydantic's JSON schema, narrowed to one good spelling.

In: pydantic's core schema of a type. Out: a JSON schema of texts that the type's validator reads (nearly) always, where
pydantic's own schema is looser than its validator: decimals, URLs, durations, keys that are numbers.
"""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema
from typing_extensions import override

from ..errors import ConstraintError
from .formats import format_pattern

__all__ = ["SchemaForWriting"]

# A number as people write it: no sign but minus, no leading zeros, no exponent; digits bounded, so that it ends.
_DECIMAL = r"^-?(?:0|[1-9][0-9]{0,29})(?:\.[0-9]{1,30})?$"
_INTEGER = r"^-?(?:0|[1-9][0-9]{0,17})$"
_CLOCK_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
_ZONE = r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_SECONDS = r"[0-9]{1,6}(?:\.[0-9]{1,6})?S"
_CLOCK = rf"T(?:[0-9]{{1,4}}H(?:[0-9]{{1,4}}M)?(?:{_SECONDS})?|[0-9]{{1,4}}M(?:{_SECONDS})?|{_SECONDS})"
_DURATION = rf"^-?P(?:[0-9]{{1,6}}D(?:{_CLOCK})?|{_CLOCK})$"
_PART = r"(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,18})?"
_COMPLEX = rf"^-?{_PART}(?:[+-]{_PART}j)?$"
_KEYS = {"int": _INTEGER, "float": _DECIMAL, "decimal": _DECIMAL, "bool": "^(?:true|false)$"}


class SchemaForWriting(GenerateJsonSchema):
    """Generates the schemas.

    Raises:
        ConstraintError: a field that no key of its own object gives (`AliasPath`): what was written would not be read.
    """

    @override
    def model_field_schema(self, schema: core_schema.ModelField) -> JsonSchemaValue:
        """A field's own, where a key of the object is read as the field."""
        self._check_has_key(schema)
        return super().model_field_schema(schema)

    @override
    def dataclass_field_schema(self, schema: core_schema.DataclassField) -> JsonSchemaValue:
        """The same of a dataclass."""
        self._check_has_key(schema)
        return super().dataclass_field_schema(schema)

    @override
    def typed_dict_field_schema(self, schema: core_schema.TypedDictField) -> JsonSchemaValue:
        """The same of a TypedDict."""
        self._check_has_key(schema)
        return super().typed_dict_field_schema(schema)

    def _check_has_key(
        self, field: core_schema.ModelField | core_schema.DataclassField | core_schema.TypedDictField
    ) -> None:
        paths = field.get("validation_alias")
        if not isinstance(paths, list) or self._config.validate_by_name or self._config.populate_by_name:
            return
        is_one = not all(isinstance(path, list) for path in paths)
        ways: list[Any] = [paths] if is_one else paths
        if is_one or not any(len(way) == 1 and isinstance(way[0], str) for way in ways):
            shown = " or ".join(f"AliasPath({', '.join(map(repr, way))})" for way in ways)
            raise ConstraintError(
                f"a field is read from {shown} only, not from a key of its own object; give it a name as well "
                "(AliasChoices with a string, or populate_by_name=True)",
                keyword="AliasPath",
            )

    @override
    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        """A string of digits where nothing bounds it, else a number with the bounds (places as a multiple)."""
        said: dict[str, Any] = {name: schema.get(name) for name in ("multiple_of", "le", "ge", "lt", "gt")}
        bounds: dict[str, Any] = {name: float(value) for name, value in said.items() if value is not None}
        places, digits = schema.get("decimal_places"), schema.get("max_digits")
        if not bounds and places is None and digits is None:
            return {"type": "string", "pattern": _DECIMAL}
        if places is not None and "multiple_of" not in bounds:
            bounds["multiple_of"] = 10.0**-places
        number = self.float_schema(core_schema.float_schema(**bounds))
        if digits is None:
            return number
        limit = 10 ** (digits - (places or 0))
        return {"allOf": [number, {"exclusiveMinimum": -limit, "exclusiveMaximum": limit}]}

    @override
    def datetime_schema(self, schema: core_schema.DatetimeSchema) -> JsonSchemaValue:
        """A date and time as `isoformat` writes it, the zone as the type asks for it: `datetime` has one or none."""
        return {"type": "string", "pattern": f"^{format_pattern('date')}T{_CLOCK_TIME}{_zone(schema)}$"}

    @override
    def time_schema(self, schema: core_schema.TimeSchema) -> JsonSchemaValue:
        """A time as `isoformat` writes it, seconds included."""
        return {"type": "string", "pattern": f"^{_CLOCK_TIME}{_zone(schema)}$"}

    @override
    def uuid_schema(self, schema: core_schema.UuidSchema) -> JsonSchemaValue:
        """A UUID, of the version that the type names."""
        version = schema.get("version")
        if version is None:
            return {"type": "string", "format": "uuid"}
        return {
            "type": "string",
            "pattern": f"^{_HEX}{{8}}-{_HEX}{{4}}-{version}{_HEX}{{3}}-[89ab]{_HEX}{{3}}-{_HEX}{{12}}$",
        }

    @override
    def timedelta_schema(self, schema: core_schema.TimedeltaSchema) -> JsonSchemaValue:
        """ISO 8601 without years and months, whose length varies."""
        return {"type": "string", "pattern": _DURATION}

    @override
    def complex_schema(self, schema: core_schema.ComplexSchema) -> JsonSchemaValue:
        """As Python spells them: `1.5-2j`."""
        return {"type": "string", "pattern": _COMPLEX}

    @override
    def url_schema(self, schema: core_schema.UrlSchema) -> JsonSchemaValue:
        """A URI, of the allowed schemes where the type names them."""
        written = super().url_schema(schema)
        schemes = schema.get("allowed_schemes")
        if schemes:
            host = r"[a-z0-9](?:[a-z0-9-]{0,20}[a-z0-9])?"
            start = "|".join(schemes)
            written["pattern"] = rf"^(?:{start})://{host}(?:\.{host}){{0,4}}(?::[1-9][0-9]{{0,3}})?(?:[/?#].*)?$"
        return written

    @override
    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        """An object; keys that must read as numbers are spelled as numbers."""
        written = super().dict_schema(schema)
        keys = schema.get("keys_schema")
        pattern = _KEYS.get(keys["type"]) if keys else None
        if pattern is not None and "propertyNames" not in written:
            written["propertyNames"] = {"pattern": pattern}
        if keys and keys["type"] == "enum":
            written["propertyNames"] = {"enum": [str(member.value) for member in keys["members"]]}
        return written

    @override
    def set_schema(self, schema: core_schema.SetSchema) -> JsonSchemaValue:
        """A list: with repeats it reads as the set without them."""
        return _with_repeats(super().set_schema(schema))

    @override
    def frozenset_schema(self, schema: core_schema.FrozenSetSchema) -> JsonSchemaValue:
        """A list: with repeats it reads as the set without them."""
        return _with_repeats(super().frozenset_schema(schema))

    @override
    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """The schema of the value; a default is no part of what may be written."""
        written = super().default_schema(schema)
        written.pop("default", None)
        return written


_HEX = "[0-9a-f]"


def _zone(schema: core_schema.DatetimeSchema | core_schema.TimeSchema) -> str:
    asked = schema.get("tz_constraint")
    return "" if asked == "naive" else f"{_ZONE}?" if asked is None else _ZONE


def _with_repeats(schema: JsonSchemaValue) -> JsonSchemaValue:
    schema.pop("uniqueItems", None)
    return schema
