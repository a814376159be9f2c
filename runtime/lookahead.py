"""Whether a step is launched before the tokens of the one before it are known.

In: what steps cost so far, what grammars forced. Out: yes or no, for one step.

Launching ahead hides the CPU's part of a step (planning, masks, text, callbacks) behind the device's. It costs rows:
a sequence whose grammar forces what follows the unknown token takes one step more than if that token had been known
first. With d seconds of the device and c of the CPU a step, and a share w of the rows that so wait, a step ahead pays
while max(d, c) · (1 + w) < d + c.
"""

from __future__ import annotations

__all__ = ["Lookahead"]

_WEIGHT = 1 / 16
"""Of a new step in the running means."""


class Lookahead:
    """Keeps the means. Used by the engine's thread.

    Args:
        enabled: the switch of the config, and whether the device works beside the CPU at all.
    """

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self._device_s = 0.0
        self._cpu_s = 0.0
        self._forced = 0.5  # share of constrained tokens after which something was forced

    def pays(self, rows: int, constrained: int) -> bool:
        """Whether to launch ahead of a step of so many rows, `constrained` of them sampled under a grammar."""
        if not self.enabled:
            return False
        if not constrained:
            return True
        waiting = self._forced * constrained / rows
        return max(self._device_s, self._cpu_s) * (1 + waiting) < self._device_s + self._cpu_s

    def ran(self, device_s: float, cpu_s: float) -> None:
        """A step took so long on the device, and on the CPU beside filling masks and waiting."""
        self._device_s += (device_s - self._device_s) * _WEIGHT
        self._cpu_s += (cpu_s - self._cpu_s) * _WEIGHT

    def read(self, constrained: int, forced: int) -> None:
        """So many tokens under a grammar were read, and after so many of them something was forced."""
        if constrained:
            self._forced += (forced / constrained - self._forced) * _WEIGHT
