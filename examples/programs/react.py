"""Thinking and acting in turns, with real tools: a search over local text and a calculator (ReAct, HotpotQA).

After each thought the model selects a tool and writes its input; the program runs the tool and appends what it
observed. So the body reads values as it goes, and each step starts where the one before it left the cache.

    python examples/programs/react.py [--data hotpotqa_100.jsonl] [--rows N] [--steps 5]
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from common import options, run, show_answers
from multi_document_qa import answer, documents_of, expected, question_of
from radicel import function, gen, select

TASK = """You answer a question in steps. A step is a thought and an action. The actions are Search[words], which finds
a text, Calculate[numbers], which computes, and Finish[answer], which ends.

Question: How many years after the mill at Lower Fell was built did it burn down?
Thought 1: I need to find the mill at Lower Fell.
Action 1: Search[mill Lower Fell]
Observation 1: The mill at Lower Fell was built in 1811. It burnt down in 1874 and was never rebuilt.
Thought 2: It was built in 1811 and burnt down in 1874. I need the difference.
Action 2: Calculate[1874 - 1811]
Observation 2: 63
Thought 3: It burnt down after 63 years.
Action 3: Finish[63]

Question: """


@function
def answer_question(s: Any, question: str, tools: Mapping[str, Callable[[str], str]], steps: int) -> None:
    """Makes `answer` and `used`, the actions taken; the last step can only finish."""
    used: list[str] = []
    s += TASK + question + "\n"
    for number in range(1, steps + 1):
        s += f"Thought {number}:" + gen("thought", max_tokens=48, stop="\n") + "\n"
        s += f"Action {number}: " + select("tool", [*tools, "Finish"] if number < steps else ["Finish"]) + "["
        s += gen("input", max_tokens=24, stop=["]", "\n"]) + "]\n"
        used.append(f"{s['tool']}[{s['input']}]")
        if s["tool"] == "Finish":
            break
        s += f"Observation {number}: {tools[s['tool']](s['input'])}\n"
    s["answer"], s["used"] = s["input"], used


# --- the tools -------------------------------------------------------------------------------------------------------

OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


def calculate(text: str) -> str:
    """The value of a sum of numbers with `+ - * / // %` and brackets; says so where the text is none."""
    try:
        value = _value(ast.parse(text.strip().replace(",", ""), mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError) as error:
        return f"This cannot be computed ({error or type(error).__name__})."
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _value(node: ast.AST) -> Any:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value
    if isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_value(node.operand))
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError("only numbers and + - * / // % are known")


class Search:
    """Finds the text that shares the rarest words with a query.

    Args:
        texts: what there is to find.
        most_characters: of a text that is found, so much is shown.
    """

    def __init__(self, texts: Sequence[str], most_characters: int = 400) -> None:
        self.texts = list(dict.fromkeys(texts))
        self.most_characters = most_characters
        self._words = [_words(text) for text in self.texts]
        known = Counter(word for words in self._words for word in words)
        self._weight = {word: math.log(1 + len(self.texts) / count) for word, count in known.items()}

    def __call__(self, query: str) -> str:
        wanted = _words(query)
        scores = [sum(self._weight[word] for word in wanted & words) for words in self._words]
        best = max(scores, default=0.0)
        return self.texts[scores.index(best)][: self.most_characters] if best else "Nothing was found."


def _words(text: str) -> set[str]:
    return {word.casefold() for word in re.findall(r"\w+", text)}


def main(argv: list[str] | None = None) -> None:
    """The command."""
    said = options(__doc__, "hotpotqa.jsonl", argv, steps=5)
    search = Search([document for row in said.rows for document in documents_of(row)])
    tools = {"Search": search, "Calculate": calculate}
    batch = [{"question": question_of(row), "tools": tools, "steps": said.args.steps} for row in said.rows]
    with said.runtime() as runtime:
        states = run(answer_question, batch, runtime)
        show_answers([(question_of(row), expected(row), answer(state)) for row, state in zip(said.rows, states)])
        for row, state in zip(said.rows, states):
            if state.error() is None:
                print(question_of(row), *state["used"], sep="\n  ")


if __name__ == "__main__":
    main()
