"""The scoring rules of `select` on given logprobs, and the checks of choices."""

import copy
import dataclasses
import itertools
import math
import pickle
import random

import pytest
from radicel.backend import Score
from radicel.choices import (
    ChoicesMethod,
    check_choices,
    greedy_token_selection,
    joint_likelihood,
    score_end_flags,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from radicel.errors import BackendError, ChoicesError

METHODS = [
    joint_likelihood,
    token_length_normalized,
    greedy_token_selection,
    unconditional_likelihood_normalized,
]
INF = math.inf


def score(text, logprobs, ids=None, end=None, base=None):
    ids = tuple(range(len(logprobs))) if ids is None else ids
    total = math.fsum([*logprobs, *([] if end is None else [end])])
    return Score(text, tuple(ids), tuple(logprobs), total, end, base)


def pick(method, *scores, **kwargs):
    choices = tuple(s.text for s in scores)
    return choices[method.decide(choices, scores, **kwargs).index]


LONG = score("Antidisestablishmentarianism", [-9.0] + [-0.1] * 7, ids=range(10, 18))
PARIS = score("Paris", [-2.0], ids=[1])


def test_the_default_does_not_favour_easy_later_tokens():
    assert pick(joint_likelihood, LONG, PARIS) == "Paris"
    assert pick(token_length_normalized, LONG, PARIS) == "Antidisestablishmentarianism"
    assert pick(greedy_token_selection, LONG, PARIS) == "Paris"
    decision = joint_likelihood.decide(("A", "P"), [LONG, PARIS])
    assert decision.scores == {"A": pytest.approx(-9.7), "P": -2.0}
    total = math.exp(-9.7) + math.exp(-2.0)
    assert decision.probabilities == pytest.approx({"A": math.exp(-9.7) / total, "P": math.exp(-2.0) / total})


def test_mean_logprob():
    decision = token_length_normalized.decide(("a", "b"), [score("a", [0.0, -2.0]), score("b", [0.0])])
    assert decision.scores == {"a": -1.0, "b": 0.0}
    assert decision.index == 1
    with_end = token_length_normalized.decide(("a", ""), [score("a", [-1.0], end=-3.0), score("", [], end=-5.0)])
    assert with_end.scores == {"a": -2.0, "": -5.0}
    assert token_length_normalized.decide(("a",), [score("a", [])]).scores == {"a": 0.0}


def test_unconditional_takes_out_how_common_a_choice_is():
    common = score("the", [-1.0], base=(-0.5,))
    rare = score("quark", [-2.0, -2.0], base=(-6.0, -3.0))
    decision = unconditional_likelihood_normalized.decide(("the", "quark"), [common, rare])
    assert decision.scores == {"the": -0.5, "quark": 2.5}
    assert decision.index == 1
    ended = unconditional_likelihood_normalized.decide(("x",), [score("x", [-1.0], end=-2.0, base=(-4.0,))])
    assert ended.scores == {"x": 0.5}
    never = score("never", [-INF], base=(-INF,))
    assert unconditional_likelihood_normalized.decide(("never", "the"), [never, common]).index == 1
    with pytest.raises(BackendError, match="unconditional logprobs of 'the'"):
        unconditional_likelihood_normalized.decide(("the",), [score("the", [-1.0])])
    assert [m.needs_unconditional for m in METHODS] == [False, False, False, True]


class TestGreedy:
    def test_shared_first_token_is_decided_where_the_choices_differ(self):
        need = score("No I need", [-0.1, -0.2, -3.0], ids=[1, 2, 3])
        am = score("No I am not", [-0.1, -0.2, -0.5, -8.0], ids=[1, 2, 4, 5])
        yes = score("Yes", [-2.5], ids=[9])
        assert pick(greedy_token_selection, need, am, yes) == "No I am not"
        assert pick(joint_likelihood, need, am, yes) == "Yes"

    @pytest.mark.parametrize(("end", "more", "taken"), [(-0.1, -2.4, "John"), (-2.4, -0.1, "John Doe")])
    def test_a_choice_that_ends_stands_there_with_the_end_of_the_turn(self, end, more, taken):
        john = score("John", [-1.0], ids=[1], end=end)
        doe = score("John Doe", [-1.0, more], ids=[1, 2], end=-5.0)
        assert pick(greedy_token_selection, john, doe) == taken
        assert pick(greedy_token_selection, doe, john) == taken

    def test_without_an_end_logprob_the_shorter_one_goes_on_with_its_mean(self):
        short = score("ab", [-1.0, -2.0], ids=[1, 2])
        assert pick(greedy_token_selection, short, score("abc", [-1.0, -2.0, -1.4], ids=[1, 2, 3])) == "abc"
        assert pick(greedy_token_selection, short, score("abc", [-1.0, -2.0, -1.6], ids=[1, 2, 3])) == "ab"

    def test_probabilities_are_shares_at_the_forks(self):
        scores = [
            score("a", [math.log(0.2)], ids=[1]),
            score("bc", [math.log(0.6), math.log(0.3)], ids=[2, 3]),
            score("bd", [math.log(0.6), math.log(0.1)], ids=[2, 4]),
        ]
        decision = greedy_token_selection.decide(("a", "bc", "bd"), scores)
        assert decision.probabilities == pytest.approx({"a": 0.25, "bc": 0.75 * 0.75, "bd": 0.75 * 0.25})
        assert decision.index == 1

    def test_equals_decoding_token_by_token(self):
        rng = random.Random(1)
        for _ in range(300):
            paths = list({tuple(rng.choice("abc") for _ in range(rng.randint(1, 4))) for _ in range(5)})
            table = {p: rng.uniform(-5, 0) for n in range(6) for p in itertools.product("abc.", repeat=n)}
            # Decoding among the choices: the likeliest character that leads to a choice, "." for its end.
            text = ""
            while not text.endswith("."):
                nexts = {("".join(p) + ".")[len(text)] for p in paths if ("".join(p) + ".").startswith(text)}
                text += max(nexts, key=lambda c: table[(*text, c)])
            scores = [
                score("".join(p), [table[p[: i + 1]] for i in range(len(p))], [*map(ord, p)], table[(*p, ".")])
                for p in paths
            ]
            assert pick(greedy_token_selection, *scores) == text[:-1]


@pytest.mark.parametrize("method", METHODS, ids=repr)
class TestEveryRule:
    def scores(self):
        return [
            score("x", [-1.0], ids=[1], base=(-1.0,)),
            score("y", [-1.0], ids=[2], base=(-1.0,)),
            score("z", [-3.0], ids=[3], base=(-1.0,)),
        ]

    def test_ties_go_to_the_first(self, method):
        assert pick(method, *self.scores()) == "x"
        assert pick(method, *reversed(self.scores())) == "y"

    def test_probabilities_sum_to_one_over_the_choices(self, method):
        decision = method.decide(("x", "y", "z"), self.scores())
        assert list(decision.probabilities) == ["x", "y", "z"]
        assert math.fsum(decision.probabilities.values()) == pytest.approx(1.0)
        assert decision.probabilities["x"] == pytest.approx(1 / (2 + math.exp(-2)))

    def test_temperature_draws_from_the_softmax(self, method):
        n = 4000
        drawn = [pick(method, *self.scores(), temperature=2.0, seed=i) for i in range(n)]
        weights = {"x": 1.0, "y": 1.0, "z": math.exp(-1.0)}
        for choice, weight in weights.items():
            p = weight / sum(weights.values())
            assert abs(drawn.count(choice) / n - p) < 5 * math.sqrt(p * (1 - p) / n)
        assert pick(method, *self.scores(), temperature=2.0, seed=7) == drawn[7]

    def test_one_seed_draws_independently_in_other_places(self, method):
        longer = [dataclasses.replace(s, prompt_tokens=9) for s in self.scores()]
        pairs = [
            tuple(pick(method, *scores, temperature=9.0, seed=seed) for scores in (self.scores(), longer))
            for seed in range(300)
        ]
        assert 50 < sum(a == b for a, b in pairs) < 160

    def test_one_choice(self, method):
        decision = method.decide(("only",), [score("only", [-5.0], base=(-5.0,))])
        assert (decision.index, decision.probabilities) == (0, {"only": 1.0})

    def test_impossible_choices(self, method):
        impossible = score("i", [-INF], ids=[5], base=(-1.0,))
        assert pick(method, impossible, self.scores()[2]) == "z"
        both = method.decide(("i", "j"), [impossible, score("j", [-INF], ids=[6], base=(-1.0,))])
        assert (both.index, both.probabilities) == (0, {"i": 0.5, "j": 0.5})
        assert all(pick(method, impossible, self.scores()[2], temperature=5.0, seed=i) == "z" for i in range(50))

    def test_nan_and_missing_scores_are_errors(self, method):
        with pytest.raises(BackendError, match="'n' got the logprob nan"):
            method.decide(("n",), [score("n", [math.nan], base=(-1.0,))])
        with pytest.raises(BackendError, match=r"2 choices.*1 scores"):
            method.decide(("a", "b"), self.scores()[:1])

    def test_is_a_value_that_travels(self, method):
        assert isinstance(method, ChoicesMethod)
        assert pickle.loads(pickle.dumps(method)) is method
        assert copy.deepcopy(method) is method
        with pytest.raises(AttributeError):
            method.name = "other"


def test_a_rule_of_ones_own():
    class Shortest(ChoicesMethod):
        def score(self, scores):
            return [-float(len(s.text)) for s in scores]

    assert pick(Shortest(), score("long", [-1.0]), score("s", [-9.0])) == "s"
    assert repr(Shortest()) == "Shortest"


@pytest.mark.parametrize(
    ("choices", "flags"),
    [
        (["John", "John Doe"], (True, True)),
        (["John Doe", "Mary", "John"], (True, False, True)),
        (["a", "ab", "abc", "b"], (True, True, True, False)),
        (["ab", "ac", "a b"], (False, False, False)),
        (["No I need support", "No I am not ok"], (False, False)),
        (["", "x"], (True, True)),
        (["a", "a!", "aa", "aab"], (True, True, True, True)),
    ],
)
def test_score_end_flags(choices, flags):
    assert score_end_flags(choices) == flags


def test_score_end_flags_equal_the_definition():
    rng = random.Random(2)
    for _ in range(500):
        choices = list({"".join(rng.choice("ab") for _ in range(rng.randint(1, 5))) for _ in range(6)})
        related = [any(c != d and (c.startswith(d) or d.startswith(c)) for d in choices) for c in choices]
        assert score_end_flags(choices) == tuple(related)


@pytest.mark.parametrize(
    ("choices", "named"),
    [
        ([], "empty"),
        ("yes", "one string"),
        (["a", "b", "a"], r"choices\[2\] repeats choices\[0\], 'a'"),
        (["a", 1], r"choices\[1\] is 1, a int"),
        (3, "not a list"),
        ([""], "only choice is the empty string"),
        (["a", "\ud800"], "surrogate"),
    ],
)
def test_wrong_choices(choices, named):
    with pytest.raises(ChoicesError, match=named):
        check_choices(choices)


def test_right_choices_stay_byte_for_byte():
    given = ["WEB_SEARCH", " OTHER", "é", "e\u0301", ""]
    assert check_choices(iter(given)) == tuple(given)
