"""A schema document: checked against its metaschema, its references resolved.

In: JSON text of a schema, and the documents that a remote `$ref` may name. Out: the root `Sub`, from which every
sub-schema is reached; nothing is ever fetched.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jsonschema_specifications  # type: ignore[import-untyped]
import referencing
import referencing.exceptions
import referencing.jsonschema

from ..errors import ConstraintError
from .bounded import TooMuchWork, bounded, start
from .metaschema import obeys_metaschema

if TYPE_CHECKING:
    import jsonschema

__all__ = ["DRAFTS", "Sub", "admits", "root_sub", "subschema"]


@dataclass(frozen=True)
class Draft:
    """A version of JSON schema."""

    name: str
    uri: str
    specification: Any
    declared: bool = True

    @property
    def validator(self) -> Any:
        """The independent validator's class. It is imported where it is first asked: it takes a second to."""
        import jsonschema

        return getattr(jsonschema, f"Draft{self.name.replace('-', '')}Validator")

    @property
    def year(self) -> int:
        """2020, 2019, or the number of an older draft."""
        return int(self.name.split("-")[0])

    @property
    def asserts_content(self) -> bool:
        """Whether `contentEncoding` and `contentMediaType` may be assertions: they became annotations in 2019-09."""
        return self.year == 7 or not self.declared


_SPECS = referencing.jsonschema
_NEW, _OLD = "https://json-schema.org/draft/", "http://json-schema.org/draft-0"
DRAFTS = (
    Draft("2020-12", f"{_NEW}2020-12/schema", _SPECS.DRAFT202012),
    Draft("2019-09", f"{_NEW}2019-09/schema", _SPECS.DRAFT201909),
    Draft("7", f"{_OLD}7/schema", _SPECS.DRAFT7),
    Draft("6", f"{_OLD}6/schema", _SPECS.DRAFT6),
    Draft("4", f"{_OLD}4/schema", _SPECS.DRAFT4),
)


@dataclass(frozen=True, eq=False)
class Sub:
    """A sub-schema in its place.

    Attributes:
        schema: the dict or bool.
        resolver: resolves its references.
        draft: how its keywords are read.
        pointer: where it stands, for messages.
        key: equal for sub-schemas that mean the same.
        scopes: URI → whether the document there has a `$dynamicAnchor`; shared by a whole schema.
    """

    schema: Any
    resolver: Any = field(repr=False)
    draft: Draft
    pointer: str
    key: str
    scopes: dict[str, bool] = field(repr=False)

    def get(self, keyword: str, default: Any = None) -> Any:
        """The value of a keyword."""
        return self.schema.get(keyword, default)

    def error(self, message: str, keyword: str) -> ConstraintError:
        """An error that names a keyword of this sub-schema and its place."""
        where = f"{self.pointer}/{keyword.replace('~', '~0').replace('/', '~1')}"
        return ConstraintError(f"{message} (at {where})", keyword=keyword, pointer=where)


def root_sub(source: str, documents: Mapping[str, Any] | None) -> Sub:
    """The root of a schema.

    Raises:
        ConstraintError: not a schema of any known draft.
    """
    schema = json.loads(source)
    draft = _draft_of(schema)
    registry = jsonschema_specifications.REGISTRY.with_resources(
        (uri, referencing.Resource.from_contents(document, default_specification=draft.specification))
        for uri, document in (documents or {}).items()
    )
    resource = draft.specification.create_resource(schema)
    registry = registry.with_resource("", resource)
    base = resource.id() or _ROOT
    registry = registry.with_resource(base, resource)
    return _sub(schema, registry.resolver(base), draft, "", {})


def subschema(parent: Sub, schema: Any, *path: str | int) -> Sub:
    """A sub-schema inside `parent`, at `path` below it."""
    steps = "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)
    resolver, draft = parent.resolver, parent.draft
    if isinstance(schema, dict):
        draft = _known(schema.get("$schema")) or draft
        if "$id" in schema or "id" in schema:
            resolver = resolver.in_subresource(draft.specification.create_resource(schema))
    return _sub(schema, resolver, draft, parent.pointer + steps, parent.scopes)


def referred(parent: Sub, keyword: str) -> Sub:
    """What a `$ref` of `parent` names; a `$dynamicRef` names the outermost of the documents that led to it.

    Raises:
        ConstraintError: nothing has that name, or what has it is no schema.
    """
    reference = parent.schema[keyword]
    if not parent.draft.declared and "$id" in parent.schema and parent.pointer:
        raise parent.error("$id beside $ref means one thing in draft 7 and another since 2019-09; give $schema", "$id")
    try:
        found = _found(parent.resolver, reference, keyword)
    except (referencing.exceptions.Unresolvable, ValueError, KeyError, TypeError, AttributeError) as error:
        hint = "" if reference.startswith("#") else "; give remote documents as Constraint.json_schema(documents=…)"
        raise parent.error(f"{keyword} {reference!r} names nothing{hint}", keyword) from error
    if not isinstance(found.contents, (dict, bool)):
        raise parent.error(f"{keyword} {reference!r} names something that is no schema", keyword)
    draft = parent.draft
    if isinstance(found.contents, dict):
        draft = _known(found.contents.get("$schema")) or draft
    pointer = reference if reference.startswith("#") else parent.pointer
    return _sub(found.contents, found.resolver, draft, pointer, parent.scopes)


def _found(resolver: Any, reference: str, keyword: str) -> Any:
    found = resolver.lookup(reference)
    document, _, name = reference.partition("#")
    if keyword == "$dynamicRef" or not name or name.startswith("/"):
        return found
    # The library takes any reference to a dynamic anchor for a dynamic one.
    whole = resolver.lookup(document or "#") if document else resolver.lookup(resolver._base_uri)
    anchor = whole.resolver._registry.anchor(whole.resolver._base_uri, name).value
    if not isinstance(anchor, referencing.jsonschema.DynamicAnchor):
        return found
    inner = whole.resolver.in_subresource(anchor.resource)
    return referencing._core.Resolved(  # type: ignore[call-arg]
        contents=anchor.resource.contents, resolver=inner
    )


def admits(sub: Sub, value: Any, *, goes_on: bool = False) -> bool:
    """Whether a value is valid (formats are assertions), by an independent validator unless little is asked.

    Args:
        sub: the schema.
        value: plain data.
        goes_on: whether the work counts on from the last call (in this thread) instead of anew.

    Raises:
        ConstraintError: a reference that names nothing, or more work than is done for one value.
    """
    if isinstance(sub.schema, bool):
        return sub.schema
    if _PLAIN.issuperset(sub.schema) and sub.draft.year > 4:
        return _has_type(value, sub.schema.get("type")) and _is_in(value, sub.schema)
    kind = bounded(sub.draft.validator)
    validator = kind(sub.schema, format_checker=sub.draft.validator.FORMAT_CHECKER, _resolver=sub.resolver)
    if not goes_on:
        start()
    try:
        return bool(validator.is_valid(value))
    except TooMuchWork as error:
        raise sub.error("checking a value against it takes too long", "schema") from error
    except (referencing.exceptions.Unresolvable, RecursionError) as error:
        raise sub.error(f"cannot check {value!r}: {error}", "$ref") from error


_PLAIN = frozenset(["type", "enum", "const", "title", "description", "default", "examples", "$comment"])


def _has_type(value: Any, types: Any) -> bool:
    if types is None:
        return True
    names = {types} if isinstance(types, str) else set(types)
    return bool(names & _types(value))


def _types(value: Any) -> set[str]:
    """The types of a value."""
    if isinstance(value, (bool, str, list, dict)) or value is None:
        return {{bool: "boolean", str: "string", list: "array", dict: "object"}.get(type(value), "null")}
    return {"number", "integer"} if value == value // 1 else {"number"}


def _is_in(value: Any, schema: dict[str, Any]) -> bool:
    given = [[schema["const"]]] if "const" in schema else []
    given += [schema["enum"]] if "enum" in schema else []
    text = _spelled(value)
    return all(text in map(_spelled, values) for values in given)


def _spelled(value: Any) -> str:
    """Equal for equal values: 1 and 1.0 are, 1 and true are not."""
    return json.dumps(_whole(value), sort_keys=True)


def _whole(value: Any) -> Any:
    if isinstance(value, list):
        return list(map(_whole, value))
    if isinstance(value, dict):
        return {name: _whole(item) for name, item in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _sub(schema: Any, resolver: Any, draft: Draft, pointer: str, scopes: dict[str, bool]) -> Sub:
    # The base URI has no public name; with it, equal texts under two bases are told apart.
    base = getattr(resolver, "_base_uri", id(resolver))
    if isinstance(schema, dict) and not _NEWER[draft.year].isdisjoint(schema):
        schema = {keyword: value for keyword, value in schema.items() if keyword not in _NEWER[draft.year]}
    scope = _scope(resolver, scopes)
    return Sub(schema, resolver, draft, pointer, f"{draft.name} {base} {scope} {json.dumps(schema)}", scopes)


# The base of a schema without `$id`: a name, so that it counts among the documents that led somewhere.
_ROOT = "urn:x-radicel:schema"


def _scope(resolver: Any, scopes: dict[str, bool]) -> str:
    """The documents that led here, outermost first, as far as a `$dynamicRef` can tell."""
    led: dict[str, None] = {}
    for uri, registry in reversed(list(resolver.dynamic_scope())):
        if uri not in scopes:
            found = registry.get(uri) or registry.crawl().get(uri)
            scopes[uri] = found is not None and '"$dynamicAnchor"' in json.dumps(found.contents)
        if scopes[uri]:
            led[uri] = None
    return " ".join(led)


# What each draft does not have yet; it is ignored there, as every unknown keyword is.
_2020 = frozenset(["prefixItems", "$dynamicRef", "$dynamicAnchor"])
_2019 = _2020 | {
    "dependentRequired", "dependentSchemas", "unevaluatedItems", "unevaluatedProperties", "minContains", "maxContains",
    "$anchor", "$recursiveRef", "$recursiveAnchor",
}  # fmt: skip
_7 = _2019 | {"if", "then", "else"}
_NEWER = {2020: frozenset(), 2019: _2020, 7: _2019, 6: _7, 4: _7 | {"const", "contains", "propertyNames"}}


def _known(uri: Any) -> Draft | None:
    text = uri.rstrip("#") if isinstance(uri, str) else None
    return next((draft for draft in DRAFTS if draft.uri in (text, (text or "").replace("https:", "http:"))), None)


def _draft_of(schema: Any) -> Draft:
    """The draft that `$schema` names, or else the newest one whose metaschema the schema obeys."""
    named = schema.get("$schema") if isinstance(schema, dict) else None
    known = _known(named)
    if named is not None and known is None:
        raise ConstraintError(
            f"$schema {named!r} is no metaschema that Radicel knows (drafts 4 to 2020-12)",
            keyword="$schema",
            pointer="/$schema",
        )
    for draft in [known] if known else DRAFTS:
        if obeys_metaschema(schema, draft.year):
            return dataclasses.replace(draft, declared=known is not None)
    first: jsonschema.SchemaError | None = None
    for draft in [known] if known else DRAFTS:
        error = next(_metaschema(draft).iter_errors(schema), None)
        if error is None:
            return dataclasses.replace(draft, declared=known is not None)
        first = first or error
    assert first is not None
    path = [str(step) for step in first.absolute_path]
    keyword = next((step for step in reversed(path) if not step.isdigit()), "schema")
    raise ConstraintError(
        f"not a valid JSON schema: {_clipped(first.message)} (at /{'/'.join(path)})",
        keyword=keyword,
        pointer="/" + "/".join(path) if path else "",
    )


_METASCHEMAS: dict[str, Any] = {}


def _metaschema(draft: Draft) -> Any:
    if draft.name not in _METASCHEMAS:
        from jsonschema.validators import validator_for

        meta = draft.validator.META_SCHEMA
        _METASCHEMAS[draft.name] = validator_for(meta, draft.validator)(meta)
    return _METASCHEMAS[draft.name]


def _clipped(message: str) -> str:
    return message if len(message) <= 200 else message[:200] + "…"
