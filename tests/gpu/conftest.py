"""What the GPU tests compare with."""

from __future__ import annotations

from pathlib import Path

import pytest
from parity import Reference


@pytest.fixture(scope="session")
def reference(model_dir: Path) -> Reference:
    """transformers on the embedded model, in float32 on the same GPU."""
    return Reference(model_dir, "cuda")
