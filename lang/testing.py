"""What users' tests need, beside `MockBackend`: runs recorded and replayed, plans compared with a file, constraints.

In: a program's run, its plan, a constraint and a text. Out: the same run without a model (`record`, `replay`), an error
where a plan changed (`check_snapshot`), whether a model could write the text (`accepts`).
"""

from __future__ import annotations

from .accepts import accepts
from .recorded import check_snapshot, record, replay

__all__ = ["accepts", "check_snapshot", "record", "replay"]
