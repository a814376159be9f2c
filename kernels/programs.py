"""What programs of a kernel do at their ends: start early, wait for what the launch before wrote, prefetch.

In: nothing, or pointers. Out: nothing. For launches with `launch_pdl` (see `launch.dependent`): the programs of such a
launch may run before the launch before it has ended, and must call `wait_for_inputs` before they read anything that it
wrote or write anything that it may read. Every program must call it, for the next launch waits only for this one.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["begin_early", "prefetch", "wait_for_inputs"]


@triton.jit
def begin_early():
    """Lets the next launch's programs start as soon as every program of this one has come here."""
    tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_inputs():
    """Waits until the launch before has ended and its writes are seen."""
    tl.extra.cuda.gdc_wait()


@triton.jit
def prefetch(places):
    """Brings the cache line of each place into L2."""
    tl.inline_asm_elementwise("prefetch.global.L2 [$1]; // $0", "=r,l", [places], dtype=tl.int32, is_pure=False, pack=1)
