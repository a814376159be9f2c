"""`radicel models`: the models on this machine, and those that could be fetched by name.

In: the folders of pulled models, the hub's cache. Out: a line for each.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

from .output import as_size, print_columns, print_json

__all__ = ["models"]


def models(args: argparse.Namespace) -> None:
    """Lists them, the embedded one first."""
    from ..runtime.inventory import inventory

    rows = inventory()
    if args.json:
        print_json([asdict(row) for row in rows])
        return
    lines = [("name", "here", "size", "architecture", "licence", "folder")]
    for row in rows:
        name = f"{row.name} (default)" if row.default else row.name
        here = "yes" if row.pulled else "no"
        lines.append(
            (name, here, as_size(row.size_bytes), row.architecture or "-", row.license or "-", str(row.folder))
        )
    print_columns(lines)
    if not any(row.pulled for row in rows):
        print("\n`radicel pull` fetches the default model; `radicel pull OWNER/NAME` one of the hub.")
