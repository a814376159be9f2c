"""What ties a folder of the Hugging Face layout to the `.gguf` file that its tensors are read from.

In: a folder. Out: the file. Needs nothing but the standard library: most folders have no such file.
"""

from __future__ import annotations

import json
from pathlib import Path

from ..errors import WeightsError

__all__ = ["POINTER", "source_of", "stamp_of"]

POINTER = "gguf.json"
"""Name of the file that says so."""


def source_of(folder: Path) -> Path:
    """The `.gguf` file whose folder this is.

    Raises:
        WeightsError: the file is gone, or is another one now.
    """
    said = json.loads((folder / POINTER).read_text(encoding="utf-8"))
    source = Path(said["file"])
    if not source.is_file() or stamp_of(source) != said["stamp"]:
        raise WeightsError(f"{source} is gone or was changed since {folder} was made; open the .gguf file again")
    return source


def stamp_of(path: Path) -> str:
    """What changes when a file does: its size and the time of the last change."""
    stat = path.stat()
    return f"{stat.st_size} {stat.st_mtime_ns}"
