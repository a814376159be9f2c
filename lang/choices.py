"""Which of its choices a `select` takes: the scoring rules, and the checks of the choices.

In: the choices and one `Score` for each (`Backend.submit_score`).
Out: a `Decision`: the index taken, and each choice's score and probability.

Where one choice is a prefix of another ("John", "John Doe"), the end of the turn counts into both
(`score_end_flags`): without it the longer one could never win. It counts as one more token in every rule.
Among equals the first choice wins, so the result is the same every time.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from .backend import Score
from .errors import BackendError, ChoicesError

__all__ = [
    "ChoicesMethod",
    "Decision",
    "check_choices",
    "greedy_token_selection",
    "joint_likelihood",
    "score_end_flags",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
]


@dataclass(frozen=True)
class Decision:
    """What a rule made of the scores.

    Attributes:
        index: of the choice taken.
        probabilities: choice → probability, summing to 1 over the choices (at temperature 1).
        scores: choice → the number the rule compares.
    """

    index: int
    probabilities: dict[str, float]
    scores: dict[str, float]


class ChoicesMethod(ABC):
    """A scoring rule. A rule of your own subclasses this and is given as `choices_method=`.

    Attributes:
        name: its name in this module.
        needs_unconditional: whether the backend must score the choices without the prompt, too.
    """

    name: str = ""
    needs_unconditional: bool = False
    __slots__ = ()

    def decide(
        self, choices: tuple[str, ...], scores: Sequence[Score], *, temperature: float = 0.0, seed: int | None = None
    ) -> Decision:
        """Takes a choice: the best one, or at `temperature` > 0 one drawn from softmax(score / temperature).

        Args:
            choices: the choices, distinct.
            scores: one for each choice, in their order.
            temperature: ≥ 0.
            seed: makes the draw repeatable: it depends on the seed, the choices and the length of what stands before
                (`Score.prompt_tokens`) alone; None draws freshly.

        Raises:
            BackendError: a score is not a number, or one is missing.
        """
        if len(scores) != len(choices):
            raise BackendError(f"{len(choices)} choices, but the backend gave {len(scores)} scores")
        for choice, score in zip(choices, scores):
            if any(map(math.isnan, [score.logprob, *score.token_logprobs])):
                raise BackendError(f"the choice {choice!r} got the logprob nan from the backend")
        values = self.score(scores)
        logs = _log_softmax([v / temperature for v in values]) if temperature > 0 else values
        index = _draw(logs, _mixed(seed, choices, scores)) if temperature > 0 else values.index(max(values))
        probabilities = map(math.exp, _log_softmax(values))
        return Decision(index, dict(zip(choices, probabilities)), dict(zip(choices, values)))

    @abstractmethod
    def score(self, scores: Sequence[Score]) -> list[float]:
        """One number for each choice; the highest wins."""

    def __repr__(self) -> str:
        return self.name or type(self).__name__

    def __reduce__(self) -> str | tuple[object, ...]:
        return self.name if globals().get(self.name) is self else object.__reduce_ex__(self, 2)


class _JointLikelihood(ChoicesMethod):
    """The probability of the whole choice: the sum of its tokens' logprobs.

    The only rule whose probabilities are the model's own. A long choice is not favoured for its easy later tokens.
    """

    name = "joint_likelihood"
    __slots__ = ()

    def score(self, scores: Sequence[Score]) -> list[float]:
        return [s.logprob for s in scores]


class _TokenLengthNormalized(ChoicesMethod):
    """The mean of the tokens' logprobs: favours long choices whose later tokens follow from their first ones."""

    name = "token_length_normalized"
    __slots__ = ()

    def score(self, scores: Sequence[Score]) -> list[float]:
        return [_mean(_events(s)) for s in scores]


class _UnconditionalLikelihoodNormalized(ChoicesMethod):
    """The mean of what the prompt adds to the tokens' logprobs: logprob after the prompt less logprob after nothing.

    Takes out how common a choice is by itself (Holtzman et al. 2021, "Surface form competition"). The end of the
    turn has no such base, so its logprob counts as it is.
    """

    name = "unconditional_likelihood_normalized"
    needs_unconditional = True
    __slots__ = ()

    def score(self, scores: Sequence[Score]) -> list[float]:
        return [_mean(self._gains(s)) for s in scores]

    def _gains(self, score: Score) -> list[float]:
        base = score.unconditional_logprobs
        if base is None or len(base) != len(score.token_logprobs):
            raise BackendError(
                f"{self.name} needs the unconditional logprobs of {score.text!r}; the backend gave {base}"
            )
        # A token that is impossible after the prompt stays impossible, also where it is so after nothing.
        gains = [p if p == -math.inf else p - b for p, b in zip(score.token_logprobs, base)]
        return gains + ([] if score.end_logprob is None else [score.end_logprob])


class _GreedyTokenSelection(ChoicesMethod):
    """What greedy decoding among the choices would write: the choices as a tree over tokens, walked from its root.

    At each fork the likeliest next token is taken, and with it every choice that goes on so, until one is left. A
    choice that ends at a fork stands there with the end of the turn (where the backend gave no logprob for that,
    with the mean of its own tokens, as the SGLang front end extends a shorter choice). Choices that share their first
    tokens are thus told apart by the token in which they differ.

    A choice's probability is the product of its branch's share at each fork on its way; its score is the log of that.
    At `temperature` > 0 each fork is drawn at that temperature. The likeliest choice need not be the one taken: greedy
    decoding never looks past a fork.
    """

    name = "greedy_token_selection"
    __slots__ = ()

    def decide(
        self, choices: tuple[str, ...], scores: Sequence[Score], *, temperature: float = 0.0, seed: int | None = None
    ) -> Decision:
        plain = super().decide(choices, scores)
        if temperature > 0:
            index = _draw(self._paths(scores, temperature), _mixed(seed, choices, scores))
        else:
            index = self._walk(scores)
        return Decision(index, plain.probabilities, plain.scores)

    def score(self, scores: Sequence[Score]) -> list[float]:
        return self._paths(scores, 1.0)

    def _walk(self, scores: Sequence[Score]) -> int:
        alive, depth = list(range(len(scores))), 0
        while len(alive) > 1:
            alive = max(self._fork(scores, alive, depth), key=lambda branch: branch[0])[1]  # the first of equals
            depth += 1
        return alive[0]

    def _paths(self, scores: Sequence[Score], temperature: float) -> list[float]:
        """Log of the probability that the walk, drawn at this temperature, ends at each choice."""
        logs = [0.0] * len(scores)
        todo = [(list(range(len(scores))), 0)]
        while todo:
            alive, depth = todo.pop()
            if len(alive) < 2:
                continue
            branches = self._fork(scores, alive, depth)
            for share, (_, members) in zip(_log_softmax([b[0] / temperature for b in branches]), branches):
                for i in members:
                    logs[i] += share
                todo.append((members, depth + 1))
        return logs

    @staticmethod
    def _fork(scores: Sequence[Score], alive: list[int], depth: int) -> list[tuple[float, list[int]]]:
        """The branches at a fork, in the choices' order: the logprob of the next event, and whom it leads to."""
        branches: dict[tuple[str, int], tuple[float, list[int]]] = {}
        for i in alive:
            s = scores[i]
            if depth < len(s.token_ids):
                branches.setdefault(("token", s.token_ids[depth]), (s.token_logprobs[depth], []))[1].append(i)
            else:
                end = _mean(s.token_logprobs) if s.end_logprob is None else s.end_logprob
                branches["end", i] = (end, [i])
        return list(branches.values())


joint_likelihood: ChoicesMethod = _JointLikelihood()
token_length_normalized: ChoicesMethod = _TokenLengthNormalized()
greedy_token_selection: ChoicesMethod = _GreedyTokenSelection()
unconditional_likelihood_normalized: ChoicesMethod = _UnconditionalLikelihoodNormalized()


def check_choices(choices: Sequence[str]) -> tuple[str, ...]:
    """The choices as a tuple.

    Raises:
        ChoicesError: not a list of strings, none at all, one of them twice, only the empty string, or text that no
            tokenizer can have (a lone surrogate).
    """
    if isinstance(choices, (str, bytes)):
        raise ChoicesError(f"choices={choices!r} is one string; give a list of strings")
    try:
        given = tuple(choices)
    except TypeError:
        raise ChoicesError(f"choices={choices!r} is not a list of strings") from None
    if not given:
        raise ChoicesError("choices is empty; give at least one string")
    seen: dict[str, int] = {}
    for i, choice in enumerate(given):
        if not isinstance(choice, str):
            raise ChoicesError(f"choices[{i}] is {choice!r}, a {type(choice).__name__}; every choice must be a string")
        if choice in seen:
            raise ChoicesError(f"choices[{i}] repeats choices[{seen[choice]}], {choice!r}; give each choice once")
        if any("\ud800" <= char <= "\udfff" for char in choice):
            raise ChoicesError(f"choices[{i}] is {choice!r}: a lone surrogate is not text")
        seen[choice] = i
    if given == ("",):
        raise ChoicesError("the only choice is the empty string; give a choice with text, or leave the select out")
    return given


def score_end_flags(choices: Sequence[str]) -> tuple[bool, ...]:
    """For each choice, whether the end of the turn counts into it: it is a prefix of another, or another of it."""
    flags = dict.fromkeys(choices, False)
    open_prefixes: list[str] = []  # each a prefix of the next; in sorted order a prefix comes before its extensions
    for choice in sorted(choices):
        while open_prefixes and not choice.startswith(open_prefixes[-1]):
            open_prefixes.pop()
        if open_prefixes:
            flags[choice] = flags[open_prefixes[-1]] = True
        open_prefixes.append(choice)
    return tuple(flags[choice] for choice in choices)


def _events(score: Score) -> list[float]:
    return [*score.token_logprobs, *([] if score.end_logprob is None else [score.end_logprob])]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _log_softmax(logs: Sequence[float]) -> list[float]:
    top = max(logs)
    if math.isinf(top):  # all impossible, or some beyond every number: equal shares of those at the top
        tops = sum(v == top for v in logs)
        return [-math.log(tops) if v == top else -math.inf for v in logs]
    total = top + math.log(math.fsum(math.exp(v - top) for v in logs))
    return [v - total for v in logs]


def _mixed(seed: int | None, choices: tuple[str, ...], scores: Sequence[Score]) -> str | None:
    """A seed for this place: two selects of one program with one seed must not draw the same number."""
    return None if seed is None else repr((seed, scores[0].prompt_tokens, choices))


def _draw(logs: Sequence[float], seed: str | None) -> int:
    """An index, with the probabilities whose logs these are."""
    left = random.Random(seed).random()
    last = 0
    for i, log in enumerate(logs):
        if log > -math.inf:
            left -= math.exp(log)
            last = i
            if left < 0:
                return i
    return last  # rounding left a crumb
