"""Whether a function that cannot be watched needs no watching: its code compares nothing and calls nothing unknown.

In: a function without a source (typed into a console, made by `exec`). Out: yes or no, by its byte code.
"""

from __future__ import annotations

import builtins
import dis
import types
from typing import Any

__all__ = ["is_harmless"]

_LOOKING = frozenset(
    {"COMPARE_OP", "CONTAINS_OP", "MATCH_SEQUENCE", "MATCH_MAPPING", "MATCH_CLASS", "MATCH_KEYS", "BINARY_MODULO"}
)
_NAMES = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_FREE = frozenset({"LOAD_DEREF", "LOAD_CLASSDEREF"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_STATE = frozenset(
    """append assistant copy extend fork format get_var items join messages role set_var system text update user
    values var_scope variables""".split()
)
_BUILTINS = frozenset("enumerate format len list print range repr reversed str tuple zip dict".split())


def is_harmless(function: Any, seen: frozenset[types.CodeType] = frozenset()) -> bool:
    """Whether nothing that the function does can read a text without asking it.

    Args:
        function: what is asked about.
        seen: code that is being asked about already.
    """
    if not isinstance(function, types.FunctionType):
        return False
    cells = zip(function.__code__.co_freevars, function.__closure__ or ())
    closure = {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
    if function.__code__ in seen:
        return True
    names = {**vars(builtins), **function.__globals__, **closure}
    return _harmless(function.__code__, names, seen | {function.__code__})


def _harmless(code: types.CodeType, names: dict[str, Any], seen: frozenset[types.CodeType]) -> bool:
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    own = {*code.co_varnames, *code.co_cellvars}
    for step in dis.get_instructions(code):
        if step.opname in _LOOKING or (step.opname == "BINARY_OP" and "%" in step.argrepr):
            return False
        if step.opname in _ATTRIBUTES and str(step.argval) not in _STATE:
            return False
        is_outer = step.opname in _NAMES or (step.opname in _FREE and step.argval not in own)
        if is_outer and step.argval in names and not _is_plain(names[step.argval], step.argval, seen):
            return False
    return all(_harmless(one, names, seen) for one in inner)


def _is_plain(value: Any, name: str, seen: frozenset[types.CodeType]) -> bool:
    """Whether using the value reads no text: plain data, something of Radicel's, a harmless function."""
    if not callable(value):
        return not isinstance(value, types.ModuleType) or value.__name__ == "radicel"
    module = str(getattr(value if isinstance(value, (type, types.FunctionType)) else type(value), "__module__", ""))
    if module == "radicel" or module.startswith("radicel."):
        return True
    return (value is getattr(builtins, name, None) and name in _BUILTINS) or is_harmless(value, seen)


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
