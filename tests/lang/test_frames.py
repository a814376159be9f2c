"""Whose code is it: Radicel's, a library's, the user's?"""

import collections
import json
import sysconfig
import types

import pydantic
import pytest
from radicel import function, program
from radicel.frames import is_users

OURS = [("radicel", "/somewhere/radicel/__init__.py"), ("radicel.program", program.__file__)]
LIBRARIES = [
    ("json.decoder", json.decoder.__file__),
    ("pydantic.main", pydantic.main.__file__),
    ("importlib._bootstrap", "<frozen importlib._bootstrap>"),
    ("collections", collections.namedtuple.__code__.co_filename),
    ("other", sysconfig.get_path("purelib") + "/other/__init__.py"),
    ("os", "os.py"),  # compiled elsewhere, with a path of its own
]
USERS = [
    ("__main__", "/home/me/judge.py"),
    ("__main__", "<stdin>"),
    ("calendar", "/home/me/calendar.py"),  # called as a module of the standard library
    ("radicelle", "/home/me/radicelle.py"),
    ("judge", "judge.py"),
]


@pytest.mark.parametrize(("module", "file"), OURS + LIBRARIES)
def test_not_the_user_s(module, file):
    assert not is_users(module, file)


@pytest.mark.parametrize(("module", "file"), USERS)
def test_the_user_s(module, file):
    assert is_users(module, file)


def test_a_fingerprint_leaves_out_what_a_link_leads_to():
    """The package may lie behind links: its functions are known by their module, not by where their files are."""
    from radicel.saved.fingerprint import program_print

    linked = types.FunctionType(
        function.__code__.replace(co_filename="/a/link/to/radicel/program.py"), function.__globals__, "helper"
    )
    linked.__module__ = "radicel.program"
    assert program_print(linked).parts == {}
