"""`radicel pull`: a model fetched once.

In: a known name, a hub id, or nothing. Out: the folder that it is in.
"""

from __future__ import annotations

import argparse

from .output import print_json

__all__ = ["pull"]


def pull(args: argparse.Namespace) -> None:
    """Fetches the model and prints its folder."""
    from ..runtime import hub

    folder = hub.pull(args.model)
    if args.json:
        print_json({"model": args.model or hub.DEFAULT_MODEL, "folder": str(folder)})
    else:
        print(folder)
