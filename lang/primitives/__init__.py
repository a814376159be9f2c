"""The functions a program writes with: one file each, a docstring and a rule that lowers it to core nodes (`ir.py`).

`expr.py` has the interface between the two. Forks and joins, which are methods of a state, are in `../branches.py`;
scopes and copies in `../state.py`.
"""

from .gen import gen, gen_int, gen_string
from .image import image
from .reasoning import separate_reasoning
from .roles import (
    assistant,
    assistant_begin,
    assistant_end,
    role,
    system,
    system_begin,
    system_end,
    user,
    user_begin,
    user_end,
)
from .select import select
from .text import special

__all__ = [
    "assistant",
    "assistant_begin",
    "assistant_end",
    "gen",
    "gen_int",
    "gen_string",
    "image",
    "role",
    "select",
    "separate_reasoning",
    "special",
    "system",
    "system_begin",
    "system_end",
    "user",
    "user_begin",
    "user_end",
]
