"""Where the Triton kernels run: on the GPU if there is one, else in Triton's interpreter.

The interpreter must be chosen before Triton is first imported, so it is chosen here, for every test of this process.
"""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

    import triton_interpreter  # of tests/support

    triton_interpreter.look_once()
