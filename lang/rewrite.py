"""A function's twin that reports what it does with text: same source, same lines, with calls of hooks put in.

In: a function, and the hooks. Out: a function that does the same, where

    f"…"           is   text(f"…")                so that text with values in it stays watched
    f(a, b=c)      is   call(f, a, b=c)
    a % b          is   percent(a, b)
    a in b         is   sought(a) in b
    f"{a!a}"       is   f"{ascii(a)}"
    eval(a)        is   eval(evaluated(a))          and exec

or None where the source is not there or is not what the function was compiled from: that is compared code by code.
The hooks stand in the code's constants, so the function's globals are its own.
"""

from __future__ import annotations
import __future__

import ast
import linecache
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from typing_extensions import override

__all__ = ["HOOKS", "Rewriter"]

HOOKS = ("text", "call", "percent", "sought", "ascii", "evaluated")
_PLACE = "\ufde0{}\ufde0"  # a constant that no source has; the hook takes its place
_OF_THE_FRAME = frozenset({"super", "locals", "globals", "vars", "dir", "eval", "exec"})
_MAX_FILES = 64
_FUTURE = __future__.annotations.compiler_flag  # the one future import that changes code still


class Rewriter:
    """Makes and keeps the twins.

    Args:
        hooks: by the names in `HOOKS`.
    """

    def __init__(self, hooks: Mapping[str, Callable[..., Any]]) -> None:
        self._hooks = {_PLACE.format(name): hooks[name] for name in HOOKS}
        self._files: dict[tuple[str, int], tuple[list[str], dict[types.CodeType, types.CodeType]]] = {}

    def twin(self, function: types.FunctionType) -> types.FunctionType | None:
        """The function with hooks in it; itself where it has them already; None without its source."""
        code = function.__code__
        if any(const is hook for const in code.co_consts for hook in self._hooks.values()):
            return function
        codes = self._codes(code.co_filename, code.co_flags & _FUTURE, function.__globals__)
        new = codes.get(code) or _asserting(code, codes)
        if new is None or new.co_freevars != code.co_freevars:
            return None
        made = types.FunctionType(
            new, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        made.__kwdefaults__ = function.__kwdefaults__
        made.__qualname__, made.__module__ = function.__qualname__, function.__module__
        return made

    def _codes(self, file: str, flags: int, namespace: dict[str, Any]) -> dict[types.CodeType, types.CodeType]:
        """The file's code objects → their twins."""
        lines = linecache.getlines(file, namespace)
        known = self._files.get((file, flags))
        if known is not None and (known[0] is lines or known[0] == lines):
            return known[1]
        codes = dict(self._pairs("".join(lines), file, flags)) if lines else {}
        if len(self._files) >= _MAX_FILES:
            self._files.clear()
        self._files[file, flags] = (lines, codes)
        return codes

    def _pairs(self, source: str, file: str, flags: int) -> Iterator[tuple[types.CodeType, types.CodeType]]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                plain = compile(source, file, "exec", flags, dont_inherit=True)
                tree = ast.fix_missing_locations(_Hooking().visit(ast.parse(source, file)))
                hooked = self._placed(compile(tree, file, "exec", flags, dont_inherit=True))
        except (SyntaxError, ValueError, RecursionError):
            return
        for one, other in zip(_codes_in(plain), _codes_in(hooked)):
            if (one.co_name, one.co_firstlineno) != (other.co_name, other.co_firstlineno):
                return
            yield one, other

    def _placed(self, code: types.CodeType) -> types.CodeType:
        return code.replace(co_consts=tuple(self._constant(const) for const in code.co_consts))

    def _constant(self, const: Any) -> Any:
        if isinstance(const, types.CodeType):
            return self._placed(const)
        return self._hooks.get(const, const) if isinstance(const, str) else const


class _Hooking(ast.NodeTransformer):
    """Puts the hooks in."""

    @override
    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return _hook("text", [self._inside(node)], node)

    def _inside(self, node: ast.JoinedStr) -> ast.JoinedStr:
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                part.value = self.visit(part.value)
                if part.conversion == ord("a"):
                    part.value, part.conversion = _hook("ascii", [part.value], part.value), -1
                if isinstance(part.format_spec, ast.JoinedStr):
                    self._inside(part.format_spec)
        return node

    @override
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in _OF_THE_FRAME:
            if node.func.id in ("eval", "exec") and node.args:
                node.args[0] = _hook("evaluated", [node.args[0]], node.args[0])
            return node
        return _hook("call", [node.func, *node.args], node, node.keywords)

    @override
    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        return _hook("percent", [node.left, node.right], node) if isinstance(node.op, ast.Mod) else node

    @override
    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        operands = [node.left, *node.comparators]
        for index, op in enumerate(node.ops):
            if isinstance(op, (ast.In, ast.NotIn)):
                operands[index] = _hook("sought", [operands[index]], operands[index])
        node.left, node.comparators = operands[0], operands[1:]
        return node

    @override
    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.body = [self.visit(step) for step in node.body]
        node.decorator_list = [self.visit(one) for one in node.decorator_list]
        node.args = self.visit(node.args)
        return node  # annotations are no code of the body

    @override
    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.value = self.visit(node.value) if node.value is not None else None
        return node


def _hook(name: str, args: Sequence[ast.expr], at: ast.AST, keywords: Sequence[ast.keyword] = ()) -> ast.Call:
    place = ast.copy_location(ast.Constant(_PLACE.format(name)), at)
    return ast.copy_location(ast.Call(place, list(args), list(keywords)), at)


def _codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code objects inside, in the order of the source."""
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield const
            yield from _codes_in(const)


def _place(code: types.CodeType) -> tuple[Any, ...]:
    return code.co_name, code.co_firstlineno, code.co_argcount, code.co_kwonlyargcount, code.co_freevars


def _asserting(code: types.CodeType, codes: Mapping[types.CodeType, types.CodeType]) -> types.CodeType | None:
    """The twin of a function whose asserts a test runner rewrote: the same but for these."""
    if not any(name.startswith("@py") for name in (*code.co_names, *code.co_varnames)):
        return None
    found = [new for old, new in codes.items() if _place(old) == _place(code)]
    return found[0] if len(found) == 1 else None
