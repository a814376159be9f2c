"""What programs of a kernel do at their ends: start early, wait for what the launch before wrote, prefetch.

In: nothing, or pointers. Out: nothing. For launches with `launch_pdl` (`launch.early_options`): the programs of such a
launch may run before the launch before has ended, and must wait before they read anything that it wrote or write
anything that it may read. Every program must wait, for the next launch waits only for this one.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["BEGIN_AT_ONCE", "BEGIN_AT_THE_END", "BEGIN_INSIDE", "await_inputs", "finish", "let_next_begin", "prefetch"]

BEGIN_AT_ONCE = tl.constexpr(1)
"""DEPENDENT: the next launch's programs may begin when all of this one's have begun."""
BEGIN_INSIDE = tl.constexpr(2)
"""DEPENDENT: they may begin when the launch before this one has ended."""
BEGIN_AT_THE_END = tl.constexpr(3)
"""DEPENDENT: they may begin when all programs of this launch are nearly done."""


@triton.jit
def await_inputs(DEPENDENT: tl.constexpr):
    """Waits until the launch before has ended and its writes are seen; DEPENDENT of 0 waits for nothing."""
    if DEPENDENT == BEGIN_AT_ONCE:
        tl.extra.cuda.gdc_launch_dependents()
    if DEPENDENT > 0:
        tl.extra.cuda.gdc_wait()
    if DEPENDENT == BEGIN_INSIDE:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def finish(DEPENDENT: tl.constexpr):
    """Called when a program has little left to do."""
    if DEPENDENT == BEGIN_AT_THE_END:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def let_next_begin():
    """Lets the next launch's programs begin when all of this one's have come here."""
    tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def prefetch(places):
    """Brings the cache line of each place into L2."""
    tl.inline_asm_elementwise("prefetch.global.L2 [$1]; // $0", "=r,l", [places], dtype=tl.int32, is_pure=False, pack=1)
