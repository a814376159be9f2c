"""Rate limits: when calls may begin, and when one that was refused may be made again.

In: calls about to begin; refusals (HTTP 429), with the seconds that the server asks to wait. Out: waiting. All calls of
a backend wait together, since the limit is the account's and not the call's.
"""

from __future__ import annotations

import asyncio
import email.utils
import random
import time
from collections.abc import Mapping

__all__ = ["RateLimit", "retry_after"]

_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 60.0


class RateLimit:
    """The gate that calls go through. Used on one event loop.

    Args:
        per_minute: calls that may begin in a minute; None: as many as there are.
        patience: seconds that one call waits, all in all, while it is refused.
    """

    def __init__(self, per_minute: float | None, patience: float) -> None:
        self._spacing = 0.0 if per_minute is None else 60.0 / per_minute
        self._patience = patience
        self._next = 0.0
        self._closed_until = 0.0

    async def enter(self) -> None:
        """Waits until a call may begin."""
        while (left := max(self._next, self._closed_until) - time.monotonic()) > 0:
            await asyncio.sleep(left)
        self._next = time.monotonic() + self._spacing

    async def refused(self, waited: float, times: int, after: float | None) -> float | None:
        """Waits after a refusal, and makes all calls wait.

        Args:
            waited: seconds that this call has waited before.
            times: how often it was refused before.
            after: seconds that the server asks for; None: twice as long each time.

        Returns:
            the seconds that it has waited now; None where it has waited enough.
        """
        backoff = min(_FIRST_WAIT_S * 2.0**times, _LONGEST_WAIT_S)
        delay = after if after is not None else backoff * random.uniform(0.75, 1.0)
        if waited + delay > self._patience:
            return None
        self._closed_until = max(self._closed_until, time.monotonic() + delay)
        await asyncio.sleep(delay)
        return waited + delay


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds that a response asks to wait: `retry-after-ms`, or `retry-after` in seconds or as a date."""
    for name, divisor in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers[name]) / divisor)
        except (KeyError, ValueError):
            continue
    date = email.utils.parsedate_tz(headers.get("retry-after", ""))
    return None if date is None else max(0.0, email.utils.mktime_tz(date) - time.time())
