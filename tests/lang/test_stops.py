"""Stop strings and patterns in text that comes in pieces: exact cuts, no leaked beginnings, whatever the pieces."""

import random
import time

import pytest
import regex
from radicel.errors import SamplingError
from radicel.stops import StopMatcher


def run(pieces, stops=(), patterns=(), keep=False):
    matcher = StopMatcher(stops, patterns, keep)
    shown = [matcher.feed(piece) for piece in pieces]
    shown.append(matcher.finish())
    assert matcher.num_chars == sum(map(len, shown))
    return shown, matcher.matched


def naive(text, stops=(), patterns=(), keep=False):
    """The definition: the first prefix of the text that contains a stop; in it the stop that begins first."""
    for end in range(1, len(text) + 1):
        prefix = text[:end]
        hits = [(end - len(s), -i, end) for i, s in enumerate(stops) if prefix.endswith(s)]
        hits += [(m.start(), 1, m.end()) for p in patterns if (m := regex.search(p, prefix))]
        if hits:
            begin, _, stop_end = min(hits, key=lambda h: h[0])
            return prefix[: stop_end if keep else begin], prefix[begin:stop_end]
    return text, None


CASES = [
    # stops, pieces, shown piece by piece and at the end, matched
    (["DEFGHIJ"], ["DEF", "G", "HI", "J"], ["", "", "", "", ""], "DEFGHIJ"),
    (["Observation"], ["Ob", "serv", "ers"], ["", "", "Observers", ""], None),
    (["b,c"], ["a", ",b,", "c,d"], ["a", ",", "", ""], "b,c"),
    (["\n\n"], [".\n\nNext", "more"], [".", "", ""], "\n\n"),
    (["\n<|endoftext|>"], ["1\n", "2\n", "3"], ["1", "\n2", "\n3", ""], None),
    ([], ["Hel", "lo wo", "rld"], ["Hel", "lo wo", "rld", ""], None),
    (["aab"], ["aaa", "ab"], ["a", "a", ""], "aab"),
    (["abcd", "bc"], ["abcd"], ["a", ""], "bc"),
    (["b", "ab"], ["xab"], ["x", ""], "ab"),
    (["x"], ["é😀", "x", "y"], ["é😀", "", "", ""], "x"),
    (["STOP"], ["go ST"], ["go ", "ST"], None),
]


@pytest.mark.parametrize(("stops", "pieces", "shown", "matched"), CASES)
def test_pieces(stops, pieces, shown, matched):
    assert run(pieces, stops) == (shown, matched)


def test_keep_stop_keeps_the_stop_and_names_it():
    assert run(["Once there was Li", "ly. She"], ["."], keep=True) == (["Once there was Li", "ly.", ""], ".")
    assert run(["a\n", "\nb"], ["\n\n"], keep=True) == (["a\n", "\n", ""], "\n\n")
    assert run(["ab1", "2c"], [], [r"\d\d"], keep=True) == (["ab1", "2", ""], "12")


PATTERN_CASES = [
    ([r"\n(?=User:)"], ["hi\nUs", "er: x"], "hi", "\n"),
    ([r"\n\s*\n"], ["a\n", "  ", "\nb"], "a", "\n  \n"),
    ([r"[.!?]"], ["Wait", "! no."], "Wait", "!"),
    ([r"(?i)the end"], ["It is THE", " enD now"], "It is ", "THE enD"),
    ([r"(?<!\d)\."], ["3.14 is pi", ". yes"], "3.14 is pi", "."),
    ([r"^#"], ["a#b"], "a#b", None),
    ([r"(?m)^#"], ["a#b\n", "#c"], "a#b\n", "#"),
    ([r"(a|b)\1"], ["cab", "bz"], "ca", "bb"),
    ([r"a.*z"], ["a b c", "bc"], "a b cbc", None),
    ([r"a.*z", r"bc"], ["a ", "bc z"], "a ", "bc"),
]


@pytest.mark.parametrize(("patterns", "pieces", "text", "matched"), PATTERN_CASES)
def test_patterns(patterns, pieces, text, matched):
    shown, found = run(pieces, [], patterns)
    assert ("".join(shown), found) == (text, matched)


def test_what_cannot_become_a_stop_is_shown_at_once():
    matcher = StopMatcher([], [r"\n\n+User"])
    assert [matcher.feed(c) for c in "a\nb\n\nUs."] == ["a", "", "\nb", "", "", "", "", "\n\nUs."]


def test_skipped_text_is_no_part_of_a_stop():
    matcher = StopMatcher(["\n\n"], [r"\d\d"])
    assert matcher.skip("a\n\n12\n") == "a\n\n12\n"
    assert matcher.feed("\nb3") == "\nb"
    assert matcher.feed("4") == ""
    assert matcher.matched == "34"
    plain = StopMatcher()
    assert [plain.feed("ab"), plain.skip("cd"), plain.feed("e"), plain.finish()] == ["ab", "cd", "e", ""]


@pytest.mark.parametrize(
    ("stops", "patterns", "named"),
    [
        ([""], [], "non-empty"),
        ([], ["["], r"'\['"),
        ([], ["a*"], "empty text"),
        ([], ["(?r)a"], "cannot"),
        ([], [r"a\Kb"], "cannot"),
    ],
)
def test_refused(stops, patterns, named):
    with pytest.raises(SamplingError, match=named):
        StopMatcher(stops, patterns)


PATTERNS = [
    "ab", "a+b", "a.*c", "(?:ab|b)c", "[^a]b", "a{2,3}b", "(?s)a.c", "b(?=c)", "a(?!b)c", r"\bab", r"a\b", "(?<=a)b",
    "a$", "(?m)a$", "(?>a(?:bc)?)b", "a?+b", "c+?a", "(?m)^b", "^a", "(a|b)\\1", "(?<!b)c", "a(?!bc)"]  # fmt: skip


def split(rng, text):
    pieces = []
    while text:
        size = rng.randint(1, 4)
        pieces.append(text[:size])
        text = text[size:]
    return pieces


@pytest.mark.parametrize("kind", ["strings", "patterns", "both"])
def test_equals_the_naive_definition_whatever_the_pieces(kind):
    rng = random.Random(kind)
    stopped = 0
    for _ in range(4000):
        alphabet = rng.choice(["ab", "abc", "abc \n"])
        text = "".join(rng.choice(alphabet) for _ in range(rng.randint(0, 24)))
        stops = ["".join(rng.choice("abc") for _ in range(rng.randint(2, 5))) for _ in range(rng.randint(1, 3))]
        patterns = rng.sample(PATTERNS, rng.randint(1, 2))
        stops, patterns = (stops if kind != "patterns" else []), (patterns if kind != "strings" else [])
        keep = rng.random() < 0.4
        shown, matched = run(split(rng, text), stops, patterns, keep)
        expected = naive(text, stops, patterns, keep)
        assert ("".join(shown), matched) == expected, (text, stops, patterns, keep)
        stopped += matched is not None
    assert 500 < stopped < 3900


def test_never_shows_what_is_later_cut():
    rng = random.Random(5)
    for _ in range(2000):
        text = "".join(rng.choice("ab") for _ in range(20))
        stop = "".join(rng.choice("ab") for _ in range(rng.randint(1, 6)))
        matcher, seen = StopMatcher([stop]), 0
        for end, piece in enumerate(text, 1):
            seen += len(matcher.feed(piece))
            cut = text.find(stop)
            # Exactly the longest end of the text that begins the stop is held back, no more and no less.
            if cut < 0 or end < cut + len(stop):
                held = max(n for n in range(len(stop)) if text[:end].endswith(stop[:n]))
                assert seen == end - held
            else:
                assert seen == cut


def test_cost_is_linear():
    def seconds(pieces):
        matcher = StopMatcher(["aab"] * 2 + ["</answer>"], [r"\n\n+User", r"x{3}y"])
        begin = time.perf_counter()
        for _ in range(pieces):
            matcher.feed("aa x\n")
        return time.perf_counter() - begin

    seconds(1000)
    small, large = (min(seconds(n) for _ in range(3)) for n in (2000, 16000))
    assert large < 8 * small * 4
