"""How many cores this process may use.

In: nothing. Out: a number. No torch here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

__all__ = ["usable_cores"]


def usable_cores() -> int:
    """The cores that the system lets this process run on, at least 1.

    A container's share of time counts in whole cores: threads beyond it would only be stopped in turn.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *(int(share) for share in _shares(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")))]))


def _shares(groups: Path, root: Path) -> Iterator[float]:
    """The cores' worth of time that the control groups of this process have, as far as they are limited."""
    for line in (_read(groups) or "").splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = root / "cpu" if controllers else root
        # What a container sees is cut off at its own group, whose limits then stand at the mount.
        for group in [mount, *(mount / part for part in _ancestors(name))]:
            quota = _read(group / "cpu.cfs_quota_us") if controllers else None
            limit = f"{quota} {_read(group / 'cpu.cfs_period_us')}" if quota else _read(group / "cpu.max")
            match (limit or "").split():
                case [quota, period] if quota.isdigit() and period.isdigit() and int(period):
                    yield int(quota) / int(period)


def _ancestors(name: str) -> list[str]:
    path = PurePosixPath(name.lstrip("/"))
    return [str(part) for part in (path, *path.parents) if str(part) != "."]


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
