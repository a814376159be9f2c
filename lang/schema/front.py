"""JSON schema → normal form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def normal_form(source: str, *, documents: Mapping[str, Any] | None = None, strict: bool = False) -> str:
    """The schema in normal form, as JSON text."""
    return source
