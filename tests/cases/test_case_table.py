"""Which test is about which case: a case of the groups GR, JS and GRT and a row of the tables B and C each has one.

The cases themselves stand in `cases.md` beside the checkout; where it is there, its cases are compared with this list.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = ("cases/test_cases_constraints.py", "cases/test_cases_runtime.py", "cases/test_cases_language.py")

GROUPS = {
    "GR": "B38 B39 B40 B41 B44 B45 B46",
    "JS": "B47 B48 B50 B51 B52 B54 B55 B56 B57 B59 B61 B62 B63",
    "GRT": "B65 B66 B68 B70 B72 B73",
}
TABLES = {
    **{f"B-U{row}": "test_table_b_accepts_no_invalid_text" for row in range(1, 9)},
    **{f"B-R{row}": "test_table_b_reaches_every_valid_value" for row in range(1, 13)},
    "B-right": "test_table_b_what_others_have_right",
    **{f"C-S{row}": "test_table_c_regexes_mean_what_python_means" for row in range(1, 7)},
    **{f"C-X{row}": "test_table_c_regexes_mean_what_python_means" for row in (1, 2, 3, 4, 5, 7, 8, 10)},
    "C-X6": "test_table_c_what_cannot_be_is_refused_by_name",
    "C-X9": "test_table_c_possessive_repeats",
    **{f"C-R{row}": "test_table_c_regexes_mean_what_python_means" for row in range(1, 10)},
    "C-L1": "test_table_c_what_cannot_be_is_refused_by_name",
    "C-L2": "test_table_c_what_cannot_be_is_refused_by_name",
}
"""Row → test. B: U accepted wrongly, R rejected; C: S silently wrong, X and L refused, R right, each in order."""


def known_tests() -> set[str]:
    found: set[str] = set()
    for name in FILES:
        tree = ast.parse((HERE.parent / name).read_text(encoding="utf-8"))
        found |= {
            node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        }
    return found


CASES = [case for cases in GROUPS.values() for case in cases.split()]


@pytest.mark.parametrize("case", CASES)
def test_a_case_has_a_test_that_names_it(case: str) -> None:
    assert [name for name in known_tests() if re.search(rf"_{case.lower()}(_|$)", name)]


@pytest.mark.parametrize("row", TABLES)
def test_a_row_has_a_test(row: str) -> None:
    assert TABLES[row] in known_tests()
    if row.startswith("C-") and TABLES[row].endswith("python_means"):
        assert f'"{row}"' in (HERE / "test_cases_constraints.py").read_text(encoding="utf-8")


def test_no_case_is_missing() -> None:
    path = Path(os.environ.get("RADICEL_CASES") or HERE.parent.parent.parent / "shared" / "cases.md")
    if not path.exists():
        pytest.skip(f"no {path}; RADICEL_CASES says where it is")
    text = path.read_text(encoding="utf-8")
    for group, cases in GROUPS.items():
        own = re.findall(rf"^\*\*(B\d+) (?:[A-Z]+/)*{group}(?:/[A-Z]+)*\*\*", text, re.MULTILINE)
        assert own == cases.split()
    unsound, strict = text.split("**Accepts invalid JSON")[1].split("**Rejects valid JSON")
    strict = strict.split("# C.")[0]
    assert sum(row.startswith("|") for row in unsound.splitlines()) - 2 == 8
    assert sum(row.startswith("|") for row in strict.splitlines()) - 2 == 12
