"""`select`: the model chooses one of several strings by likelihood."""

from __future__ import annotations

import math
from collections.abc import Iterable

from typing_extensions import override

from ..choices import ChoicesMethod, check_choices, joint_likelihood
from ..errors import SamplingError
from ..ir import Op, SelectCall
from ..sampling import SamplingParams
from .expr import Expr, Recorder

__all__ = ["Select", "select"]


class Select(Expr):
    """One of the choices. Lowers to one SELECT node and binds its name."""

    __slots__ = ("choices", "method", "name", "sampling", "temperature")

    def __init__(
        self,
        name: str | None,
        choices: tuple[str, ...],
        method: ChoicesMethod,
        temperature: float,
        sampling: SamplingParams,
    ) -> None:
        self.name = name
        self.choices = choices
        self.method = method
        self.temperature = temperature
        self.sampling = sampling

    @override
    def record(self, to: Recorder) -> None:
        name = to.name_for(self.name)
        call = SelectCall(name, self.choices, self.method, self.temperature, to.merged(self.sampling))
        to.bind(name, to.ask(Op.SELECT, call))


def select(
    name: str | None = None,
    choices: Iterable[str] | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesMethod | None = None,
    *,
    seed: int | None = None,
) -> Expr:
    """The choice that the model finds likeliest here; the value is one of the choices, byte for byte.

    `meta.probabilities` maps each choice to its probability, normalised over the choices. Where one choice is a
    prefix of another, the end of the turn counts into both.

    Args:
        name: the variable.
        choices: the strings, each once.
        temperature: 0 takes the best; above, one is drawn from softmax(score / temperature).
        choices_method: the scoring rule; `joint_likelihood` when None.
        seed: makes the draw repeatable; the program's seed when None.

    Raises:
        ChoicesError: no choices, one of them twice, or not strings.
        SamplingError: a temperature that is negative or not finite.
    """
    from .gen import checked_name

    checked_name(name, "select")
    if isinstance(temperature, bool) or not isinstance(temperature, (int, float)) or not 0 <= temperature < math.inf:
        raise SamplingError(f"select: temperature={temperature!r}: must be a finite number ≥ 0")
    method = joint_likelihood if choices_method is None else choices_method
    if not isinstance(method, ChoicesMethod):
        raise TypeError(
            f"select: choices_method={method!r} is a {type(method).__name__}; give a scoring rule such as "
            "radicel.joint_likelihood"
        )
    checked = check_choices(() if choices is None else choices)  # type: ignore[arg-type]
    return Select(name, checked, method, float(temperature), SamplingParams.of(seed=seed))
