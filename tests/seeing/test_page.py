"""The report's page in a browser: it renders, unfolds by mouse and keyboard, shows text as text, asks no network."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from radicel import MockBackend, Reply, assistant, batch_report, function, gen, select, system, user
from radicel.seeing.model import Asked, Costs, NodeCost, Piece, ProgramCost, Said, Stretch
from radicel.seeing.page import page

EVIL = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>\"'&amp;</details></script>"


@function(name=f"judge {EVIL}")
def judge(s, essay, sides):
    s += system("You judge essays. " + "Be fair. " * 80) + user(f"Essay: {essay}")
    with s.fork(len(sides)) as branches:
        for side, branch in zip(sides, branches):
            branch += user(f"Side {side}?")
            branch += assistant(gen("note" + EVIL, max_tokens=20, logprobs=True, return_text_in_logprobs=True))
    s += user("Notes: " + " ".join(s["note" + EVIL])) + assistant(select("grade", ["good", EVIL]))


def reply(request):
    if request.kind == "select":
        return {EVIL: -0.1, "good": -2.4}
    if "fail" in request.prompt:
        return RuntimeError(EVIL)
    logprobs = [-0.001, -0.2, -0.9, -1.5, -3.0, -6.0]
    return Reply(pieces=["The ", "river ", EVIL, "is ", "quite ", "long"], logprobs=logprobs, delay=0.01)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    items = [{"essay": f"{i} {EVIL}", "sides": ["style", "facts"]} for i in range(3)]
    items.append({"essay": "fail", "sides": ["style"]})
    states = judge.run_batch(items, backend=MockBackend(reply))
    return batch_report(states).save_html(tmp_path_factory.mktemp("page") / "run.html")


# -- without a browser -----------------------------------------------------------------------------------------------


class Reader(HTMLParser):
    """Every tag, and every attribute that could lead out of the page."""

    def __init__(self):
        super().__init__()
        self.tags, self.addresses, self.handlers, self.open = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "srcset", "action", "data")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        if tag not in ("meta", "br", "hr", "input", "link", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_file_is_whole_and_leads_nowhere(saved):
    text = saved.read_text(encoding="utf-8")
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    assert reader.tags.count("script") == 1
    assert not {"img", "link", "iframe", "object"} & set(reader.tags)
    assert all(address.startswith("#") for address in reader.addresses)
    assert reader.handlers == []
    assert "default-src &#x27;none&#x27;" in text
    assert not re.search(r"https?://|@import|url\(", text)


def test_every_address_in_the_page_is_there(saved):
    text = saved.read_text(encoding="utf-8")
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', text)) <= set(ids)


def test_a_report_of_nothing_is_a_page(tmp_path):
    assert "no program" in batch_report([]).save_html(tmp_path / "empty.html").read_text()


def test_big_runs_are_cut_and_say_so():
    nodes = tuple(NodeCost(i, i, "gen", "x", "f.py:3", text="t", ended_s=1.0) for i in range(1000))
    programs = tuple(ProgramCost(i, "p", None, (Said("", "q"), Asked("", i)), None) for i in range(1000))
    leaves = tuple(Stretch(0, 0, 5, "abcde", (i,), False, 5, ()) for i in range(1000))
    root = Stretch(None, 0, 0, "", (), False, 0, tuple(range(1, 1001)))
    text = page(Costs(programs, nodes, (root, *leaves), 1000, "tokens", "tokens", 1.0))
    assert text.count('<details class="program"') == 200
    assert "… and 800 more programs" in text
    assert "… and 600 more values" in text
    assert "… 700 more rows are not drawn" in text
    assert len(text) < 2_000_000


# -- in a browser ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tab(browser, saved):
    return browser.open(saved)


@pytest.fixture
def fresh(browser, saved):
    return browser.open(saved)


def test_it_renders_without_a_complaint_or_a_request(tab, saved):
    assert tab.eval("document.querySelectorAll('details.program').length") == 4
    assert tab.eval("document.querySelectorAll('.row.head, a.row').length") == 1 + 10
    assert tab.eval("document.querySelector('#tree').getBoundingClientRect().height") > 50
    assert tab.complaints() == []
    assert tab.requests() == [saved.resolve().as_uri()]


def test_text_is_text(tab):
    assert tab.eval("typeof window.hacked") == "undefined"
    assert tab.eval("document.querySelectorAll('img').length") == 0
    for selector in (".program .talk .text", ".value .name", ".value .written", ".choice", ".error", "h1"):
        shown = tab.eval(f"[...document.querySelectorAll({selector!r})].map(e => e.textContent)")
        assert any(EVIL in text for text in shown), selector
    assert tab.eval("[...document.querySelectorAll('#tree .box')].some(b => b.dataset.text.includes('<script>'))")


def test_values_unfold_by_mouse_and_by_keyboard(fresh):
    assert fresh.eval("document.querySelector('.value').open") is False
    fresh.click(".value > summary")
    assert fresh.eval("document.querySelector('.value').open") is True
    assert fresh.eval("document.querySelector('.value .written').getBoundingClientRect().height") > 10
    fresh.eval("document.querySelectorAll('.value > summary')[1].focus()")
    fresh.press("Enter", "\r")
    assert fresh.eval("document.querySelectorAll('.value')[1].open") is True
    fresh.click("#fold")
    assert fresh.eval("document.querySelectorAll('details[open]').length") == 0
    fresh.click("#unfold")
    assert fresh.eval("document.querySelectorAll('details:not([open])').length") == 0


def test_everything_that_can_be_clicked_can_be_reached_with_tab(fresh):
    reached = []
    for _ in range(24):
        fresh.press("Tab", "\t")
        reached.append(fresh.eval("document.activeElement.id || document.activeElement.tagName"))
    assert {"A", "theme", "unfold", "fold", "SUMMARY"} <= set(reached)
    assert fresh.eval("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_tokens_are_coloured_by_their_probability(tab):
    steps = tab.eval("[...document.querySelector('.value .written').children].map(e => e.className)")
    assert steps == ["t p0", "t p1", "t p2", "t p3", "t p4", "t p5"]
    title = tab.eval("document.querySelector('.value .written .p2').title")
    assert title == "40.7% (logprob -0.900)"


def test_the_tree_is_to_scale(tab):
    boxes = tab.eval(
        "[...document.querySelectorAll('#tree .box')].map(b => [b.getBoundingClientRect().width,"
        " parseInt(b.dataset.facts.replace(/,/g, '')), b.getBoundingClientRect().height,"
        " b.dataset.calls.split(' ').length])"
    )
    scale = boxes[0][0] / boxes[0][1]
    for width, tokens, _, _ in boxes:
        assert width == pytest.approx(max(2.0, tokens * scale), abs=1.0)
    assert boxes[0][3] == 10, "all requests begin alike"
    assert boxes[0][2] == max(height for _, _, height, _ in boxes)


def test_arrow_keys_move_in_the_tree(fresh):
    fresh.eval("document.querySelector('#tree .box').focus()")
    assert fresh.eval("document.querySelector('#stretch').textContent").count("shared by 10 requests") == 1
    fresh.press("ArrowRight")
    below = fresh.eval("document.activeElement.dataset.at")
    assert fresh.eval("document.activeElement.dataset.up") == "1"
    fresh.press("ArrowDown")
    assert fresh.eval("document.activeElement.dataset.at") != below
    fresh.press("ArrowUp")
    assert fresh.eval("document.activeElement.dataset.at") == below
    fresh.press("ArrowLeft")
    assert fresh.eval("document.activeElement.dataset.at") == "1"
    fresh.press("End")
    assert fresh.eval("document.querySelectorAll('#tree .box[tabindex=\"0\"]').length") == 1


def test_a_row_of_the_timeline_leads_to_its_value(fresh):
    row = "#timeline a.row:nth-of-type(5)"
    number = fresh.eval(f"document.querySelector({row!r}).getAttribute('href')")
    assert fresh.eval(f"document.querySelector({number!r}).open") is False
    fresh.click(row)
    assert fresh.eval(f"document.querySelector({number!r}).open") is True
    assert fresh.eval(f"document.querySelector({number!r}).closest('.program').open") is True


def test_the_timeline_is_in_order(tab):
    spans = tab.eval(
        "[...document.querySelectorAll('#timeline a.row')].map(r => [...r.querySelectorAll('.seg')].map(s => {"
        " const b = s.getBoundingClientRect(); return [b.left, b.right]; }))"
    )
    assert any(len(row) >= 3 for row in spans)
    for row in spans:
        for (_, before), (after, _) in pairwise(row):
            assert after == pytest.approx(before, abs=1.5)


def test_dark_and_light(fresh):
    back = "getComputedStyle(document.body).backgroundColor"
    fresh.dark(False)
    light = fresh.eval(back)
    fresh.dark(True)
    dark = fresh.eval(back)
    assert light != dark
    fresh.dark(False)
    fresh.click("#theme")
    assert fresh.eval(back) == dark, "said by the reader, whatever the system prefers"


CONTRAST = """
(() => {
  const light = (text) => {
    const parts = text.match(/[\\d.]+/g).slice(0, 3).map(Number).map((v) => v / 255);
    const [r, g, b] = parts.map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (colour !== "rgba(0, 0, 0, 0)") return colour;
    }
  };
  const found = {};
  for (const e of document.querySelectorAll("main *, header *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.getClientRects().length) continue;
    const [a, b] = [light(getComputedStyle(e).color), light(behind(e))].sort((x, y) => y - x);
    const name = e.tagName + "." + e.className;
    found[name] = Math.min(found[name] || 99, (a + 0.05) / (b + 0.05));
  }
  return found;
})()
"""


KINDS = """
document.querySelectorAll("#tree .box").forEach((box, at) => {
  box.className = "box " + ["once", "held", "again", "plain", "wrote"][at % 5];
})
"""


@pytest.mark.parametrize("dark", [False, True])
def test_every_text_can_be_told_from_what_is_behind_it(fresh, dark):
    fresh.dark(dark)
    fresh.eval(KINDS)
    fresh.click("#unfold")
    found = fresh.eval(CONTRAST)
    assert len(found) > 25
    assert {name: round(ratio, 2) for name, ratio in found.items() if ratio < 4.5} == {}


def test_a_narrow_window_needs_no_scrolling_sideways(fresh):
    fresh.size(390, 800)
    fresh.click("#unfold")
    assert fresh.eval("document.documentElement.scrollWidth") <= 390


def test_pieces_without_logprobs_are_plain_text():
    node = NodeCost(0, 0, "gen", "x", "", text="a <b>", pieces=(Piece("a "), Piece("<b>")))
    text = page(Costs((ProgramCost(0, "p", None, (Asked("", 0),), None),), (node,), (), 0, "tokens", "", 0.0))
    assert '<div class="text written">a &lt;b&gt;</div>' in text
