"""Programs as they are written for SGLang run after changing the import line."""

from __future__ import annotations

import asyncio

import pytest
import radicel as sgl
from radicel import MockBackend, Reply

STOP = ["\n"]  # one module-level list for every gen, as many programs have it


@sgl.function
def multi_turn_question(s, question_1, question_2):
    s += sgl.system("You are a helpful assistant.")
    s += sgl.user(question_1)
    s += sgl.assistant(sgl.gen("answer_1", max_tokens=256))
    s += sgl.user(question_2)
    s += sgl.assistant(sgl.gen("answer_2", max_tokens=256))


def test_multi_turn_single_stream_and_batch():
    mock = MockBackend({"answer_1": "Washington.", "answer_2": "Paris, London."})
    sgl.set_default_backend(mock)
    try:
        state = multi_turn_question.run(question_1="Capital?", question_2="Others?")
        streaming = multi_turn_question.run(question_1="Capital?", question_2="Others?", stream=True)
        text = "".join(streaming.text_iter())
        states = multi_turn_question.run_batch(
            [{"question_1": "a", "question_2": "b"}, {"question_1": "c", "question_2": "d"}], progress_bar=True
        )
    finally:
        sgl.set_default_backend(None)
    assert [(m["role"], m["content"]) for m in state.messages()] == [
        ("system", "You are a helpful assistant."),
        ("user", "Capital?"),
        ("assistant", "Washington."),
        ("user", "Others?"),
        ("assistant", "Paris, London."),
    ]
    assert text == streaming.text() == state.text()
    assert [s["answer_2"] for s in states] == ["Paris, London."] * 2


@sgl.function
def tool_use(s, question):
    s += "To answer this question: " + question + ". "
    s += "I need to use a " + sgl.gen("tool", choices=["calculator", "search engine"]) + ". "
    if s["tool"] == "calculator":
        s += "The math expression is" + sgl.gen("expression", stop=STOP)
    elif s["tool"] == "search engine":
        s += "The key word to search is" + sgl.gen("word", stop=STOP)


@pytest.mark.parametrize(("tool", "name"), [("calculator", "expression"), ("search engine", "word")])
def test_control_flow_on_a_choice(tool, name):
    state = tool_use.run(question="2+2", backend=MockBackend({"tool": tool, name: " it\nmore"}))
    assert state[name] == " it"
    assert [n for n in ("expression", "word") if n in state] == [name]


@sgl.function
def tip_suggestion(s):
    s += "Here are two tips: 1. Balanced Diet. 2. Regular Exercise.\n\n"
    forks = s.fork(2)
    for i, f in enumerate(forks):
        f += f"Now, expand tip {i + 1} into a paragraph:\n"
        f += sgl.gen("detailed_tip", max_tokens=256, stop="\n\n")
    s += "Tip 1:" + forks[0]["detailed_tip"] + "\n"
    s += "Tip 2:" + forks[1]["detailed_tip"] + "\n"
    s += "In summary" + sgl.gen("summary")


def test_fork_read_without_join():
    mock = MockBackend(lambda r: {"summary": " ok"}.get(r.name, r.prompt[-len("1 into a paragraph:\n") :][0]))
    state = tip_suggestion.run(backend=mock)
    assert state.text().endswith("Tip 1:1\nTip 2:2\nIn summary ok")


@sgl.function
def parallel_sample(s, question, n):
    s += "Question: " + question + "\n"
    forks = s.fork(n)
    forks += "Reasoning:" + sgl.gen("reasoning", stop="\n", temperature=0.3) + "\n"
    forks += "Tool:" + sgl.gen("tool", choices=["calculator", "browser"], choices_method=sgl.token_length_normalized)
    forks += lambda i: f" ({i})"
    forks[0] += "!"
    forks.join()
    s += " ".join(s["reasoning"])
    return forks


def test_parallel_sample_with_lambdas_and_items():
    state = parallel_sample.run(question="q", n=3, backend=MockBackend({"reasoning": "r", "tool": "browser"}))
    assert (state["reasoning"], state["tool"]) == (["r"] * 3, ["browser"] * 3)
    assert len(state.get_meta_info("tool")) == 3
    forks = state.ret_value
    assert [f.text()[-5:] for f in forks] == [" (0)!", "r (1)", "r (2)"]


@sgl.function
def expand_tip(s, topic, tip):
    s += f"Expand {tip} about {topic}: " + sgl.gen("detailed_tip", stop=["\n\n"])


@sgl.function
def suggest_tips(s, topic):
    s += "1." + sgl.gen("tip_1", stop=["\n", ":", "."]) + "\n"
    detailed = [expand_tip(topic=topic, tip=s["tip_1"]), expand_tip(topic=topic, tip="another")]
    s += "Tip: " + detailed[0]["detailed_tip"] + detailed[1]["detailed_tip"]


def test_program_in_program():
    mock = MockBackend(lambda r: " sleep" if r.name == "tip_1" else r.prompt.split()[1])
    assert suggest_tips.run(topic="health", backend=mock).text() == "1. sleep\nTip: sleepanother"


@sgl.function
def copies(s):
    s += sgl.user("Judge.")
    with s.copy() as c:
        c += sgl.assistant(sgl.gen("draft"))
    with s.assistant(), s.var_scope("whole"):
        s += "Because " + sgl.gen("why")
    s.set_var("note", len(s["draft"]))


def test_copy_scope_and_set_var():
    state = copies.run(backend=MockBackend({"draft": "d1", "why": "so"}))
    assert (state["draft"], state["whole"], state.get_var("note")) == ("d1", "Because so", 2)


@sgl.function(num_api_spec_tokens=64)
def character(s, name):
    s += name + " is.\nName:" + sgl.gen("name", stop="\n") + "\nBirthday:" + sgl.gen("birthday", stop="\n")


def test_num_api_spec_tokens_is_kept():
    bound = character.bind(name="Harry")
    assert bound.num_api_spec_tokens == 64
    assert bound.run(backend=MockBackend([" H\n", " 31\n"]))["birthday"] == " 31"


def test_async_streaming_with_meta_data():
    async def main():
        state = multi_turn_question.run(
            question_1="a",
            question_2="b",
            stream=True,
            backend=MockBackend([Reply(pieces=["x", "y"]), "z"]),
        )
        seen = []
        async for text, meta in state.text_async_iter(var_name="answer_1", return_meta_data=True):
            seen.append((text, meta))
        return seen

    seen = asyncio.run(main())
    assert "".join(text for text, _ in seen) == "xy"
    assert seen[-1][1]["completion_tokens"] == 2


def test_sampling_keywords_of_run_and_run_batch():
    mock = MockBackend({"answer_1": "a", "answer_2": "b"})
    arguments = {"question_1": "a", "question_2": "b"}
    multi_turn_question.run(**arguments, max_new_tokens=9, temperature=0, top_k=3, backend=mock)
    multi_turn_question.run_batch([arguments], max_new_tokens=9, temperature=0, num_threads=2, backend=mock)
    assert {(r.sampling.max_tokens, r.sampling.temperature) for r in mock.requests} == {(256, 0)}


def test_stop_list_is_as_it_was():
    assert STOP == ["\n"]


@sgl.function
def begin_end(s):
    s += sgl.system_begin() + "S" + sgl.system_end()
    s += sgl.user_begin()
    s += "U"
    s += sgl.user_end() + sgl.assistant_begin()
    s += sgl.gen_int("i") + sgl.gen_string("t") + sgl.select("c", choices=["a", "b"])
    s += sgl.assistant_end()


def test_begin_end_typed_and_select():
    state = begin_end.run(backend=MockBackend({"i": "3", "t": '"q"', "c": "b"}))
    assert (state["i"], state["t"], state["c"]) == (3, "q", "b")
    assert state.messages()[-1] == {"role": "assistant", "content": '3"q"b'}
