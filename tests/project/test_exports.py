"""The public names: all of them there, none by accident, each with a docstring."""

from __future__ import annotations

import ast
import importlib
import inspect
import types

import pytest
import radicel
import radicel.errors
import radicel.runtime
import source_tree as src

PUBLIC = {
    "radicel": """
        Constraint Engine LocalRuntime MockBackend OpenAI OpenAIBackend Reply Runtime RuntimeEndpoint SamplingParams
        assistant assistant_begin assistant_end flush_cache function gen gen_int gen_string get_default_backend
        greedy_token_selection image joint_likelihood role select separate_reasoning set_default_backend system
        system_begin system_end token_length_normalized unconditional_likelihood_normalized user user_begin user_end
        """.split(),
    "radicel.runtime": ["LocalRuntime"],
    "radicel.errors": """
        BackendClosedError BatchError CancelledError ConstraintError ContextLengthError EngineDeadError
        IncompleteOutputError ModelNotFoundError RadicelError UnknownVariableError
        """.split(),
}
"""What outside programs rely on. More may be exported, after thought; nothing here may go without a reason in the
changelog."""


@pytest.mark.parametrize("package", PUBLIC)
def test_public_names_are_exported(package: str) -> None:
    exported = importlib.import_module(package).__all__
    assert len(exported) == len(set(exported))
    assert not set(PUBLIC[package]) - set(exported)


@pytest.mark.parametrize(("package", "name"), [(p, n) for p in PUBLIC for n in importlib.import_module(p).__all__])
def test_exported_names_exist_and_say_what_they_are(package: str, name: str) -> None:
    value = getattr(importlib.import_module(package), name)
    assert not isinstance(value, types.ModuleType) or value is radicel.errors, (
        f"{name} is a module; export what is in it"
    )
    if callable(value):
        assert inspect.getdoc(value), f"{package}.{name} has no docstring"
        own = inspect.getdoc(type(value)) if not inspect.isclass(value) else inspect.getdoc(object)
        assert inspect.getdoc(value) != own, f"{package}.{name} has only its type's docstring"


@pytest.mark.parametrize("package", PUBLIC)
def test_dir_shows_the_lazy_names_too(package: str) -> None:
    module = importlib.import_module(package)
    assert set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError, match="no_such_name"):
        module.no_such_name  # noqa: B018


def test_other_names_of_the_front_end() -> None:
    assert radicel.LocalRuntime is radicel.runtime.LocalRuntime
    assert radicel.Runtime is radicel.Engine
    assert issubclass(radicel.Engine, radicel.LocalRuntime)  # it takes `model_path=` as well
    assert radicel.OpenAI is radicel.OpenAIBackend


def literal_all(module: str) -> list[str] | None:
    for node in src.tree(src.modules()[module]).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return None


def defined(module: str) -> set[str]:
    """Names bound at the top of a module, imports included."""
    names: set[str] = set()
    for node in ast.walk(src.tree(src.modules()[module])):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


@pytest.mark.parametrize("module", sorted(src.modules()))
def test_all_is_true(module: str) -> None:
    exported = literal_all(module)
    if exported is None:
        return
    assert len(exported) == len(set(exported))
    lazy = "__getattr__" in defined(module)
    assert lazy or not set(exported) - defined(module)


def test_errors_are_one_tree() -> None:
    for name in radicel.errors.__all__:
        error = getattr(radicel.errors, name)
        assert issubclass(error, radicel.errors.RadicelError), name
        assert name in (radicel.errors.__doc__ or ""), f"{name} is missing in the drawing at the top of errors.py"
