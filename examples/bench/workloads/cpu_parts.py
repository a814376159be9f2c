"""What the CPU benchmark measures.

In: a `Bench` (the models, threads, repeats). Out: rows: what, the value, its unit, what is asked for, and whether it is
reached. A row that cannot be measured says why.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.metadata
import json
import platform
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from radicel import State, assistant, function, gen, select, user
from radicel.runtime import LocalRuntime, hub

__all__ = ["MEASURES", "Bench"]

Row = dict[str, Any]
Spent = tuple[float, float]
"""Seconds of wall and of all threads' CPU time."""
Times = dict[str, list[Spent]]

STORY = (
    "The ferry leaves the northern harbour at six in the morning. Its captain, a quiet woman from the islands, checks "
    "the ropes, counts the crates of apples and letters, and writes the weather into a small green book. "
)
NEW_TOKENS = 64
PREFIX, CONTINUATIONS, SHORT = 500, 16, 16
CHOICES = ["harbour", "mountain", "library", "railway station", "hospital", "bakery", "school", "football ground"]
LENGTHS = (100, 1000, 4000)


class Bench:
    """The engines, made when they are first needed; those of one dtype at a time."""

    def __init__(self, model: str | None, *, threads: int, reps: int, gguf: Path | None) -> None:
        self.folder = hub.resolve(model)
        self.threads = threads
        self.reps = reps
        self.gguf = gguf

    @cached_property
    def tokenizer(self) -> Any:
        """transformers' tokenizer of the model."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.folder)

    @cached_property
    def reference(self) -> Any:
        """transformers' model in float32."""
        return self.reference_in("float32")

    def reference_in(self, dtype: str) -> Any:
        """transformers' model in a dtype."""
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(self.folder, dtype=getattr(torch, dtype)).eval()

    def runtime(self, **options: Any) -> LocalRuntime:
        """Ours, on the CPU."""
        return LocalRuntime(self.folder, device="cpu", **{"kv_tokens": 16_384, **options})

    def ids(self, count: int, start: int = 0) -> list[int]:
        """So many tokens of a text; other starts give other texts."""
        text = f"Log {start}. " + STORY * (count // 30 + 2)
        return list(self.tokenizer.encode(text, add_special_tokens=False)[:count])

    def interleaved(self, calls: dict[str, Callable[[int], Any]]) -> Times:
        """What each call took. They take turns and are told the round; the first round is a warm-up.

        A call that returns a `Spent` has measured itself, less what it had to prepare.
        """
        times: Times = {name: [] for name in calls}
        for rep in range(self.reps + 1):
            for name, call in calls.items():
                began = _now()
                measured = call(rep)
                spent = _since(began)
                if rep:
                    times[name].append(measured if isinstance(measured, tuple) else spent)
        return times

    @staticmethod
    def versions() -> dict[str, str]:
        """What took part."""
        found = {"python": platform.python_version()}
        for name in ("torch", "transformers", "xllamacpp"):
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
        return found


def decode(bench: Bench) -> Iterator[Row]:
    """Batch 1: a hundred tokens in, `NEW_TOKENS` out, greedy; the same dtype on both sides."""
    llama = _llama_cpp(bench)
    with contextlib.ExitStack() as stack:
        runtimes = {
            "float32": stack.enter_context(bench.runtime(dtype="float32")),
            "bfloat16": stack.enter_context(bench.runtime(dtype="bfloat16")),
            "int4": stack.enter_context(bench.runtime(weights="int4")),
        }
        models = {dtype: bench.reference_in(dtype) for dtype in ("float32", "bfloat16")}
        calls: dict[str, Callable[[int], Any]] = {}
        for name, runtime in runtimes.items():
            if name in models:
                calls[f"transformers {name}"] = lambda rep, m=models[name]: _generate(
                    m, bench.ids(100, rep), NEW_TOKENS
                )
            calls[name] = lambda rep, r=runtime: _ours(r, [bench.ids(100, rep)], NEW_TOKENS)
        if callable(llama):
            calls["llama.cpp"] = lambda rep, call=llama: call(bench.ids(100, rep), NEW_TOKENS)
        times = bench.interleaved(calls)
    for dtype in models:
        what = f"batch 1, {dtype}: speed against transformers' `generate` in {dtype}"
        yield _at_least(what, times, f"transformers {dtype}", dtype, 1.0)
    for name in runtimes:
        what = f"batch 1, {name if 'float' in name else f'`weights={name!r}`'}: speed against llama.cpp (4-bit)"
        if callable(llama):
            yield _at_least(what, times, "llama.cpp", name, 0.5)
        else:
            yield {"what": what, "value": None, "why": llama, "goal": "≥ 0.5"}
    what = "batch 1, `weights='int4'`: speed against our bfloat16"
    yield {"what": what, "unit": "×", **_ratio(times, "bfloat16", "int4")}


def prefix(bench: Bench) -> Iterator[Row]:
    """One long prefix with sixteen short continuations, cold; transformers takes them one by one."""
    model = bench.reference

    def prompts(rep: int) -> list[list[int]]:
        shared = bench.ids(PREFIX, 100 + rep)
        return [shared + bench.ids(4, i)[:4] for i in range(CONTINUATIONS)]

    with bench.runtime() as runtime:

        def ours(rep: int) -> None:
            runtime.flush_cache()
            _ours(runtime, prompts(rep), SHORT)

        calls = {"one by one": lambda rep: [_generate(model, ids, SHORT) for ids in prompts(rep)], "ours": ours}
        times = bench.interleaved(calls)
    what = f"one {PREFIX}-token prefix, {CONTINUATIONS} continuations of {SHORT}: speed against transformers one by one"
    yield _at_least(what, times, "one by one", "ours", 8.0)


def choosing(bench: Bench) -> Iterator[Row]:
    """`select` among eight after a prompt that is cached on both sides, and after a cold one."""
    model = bench.reference

    @function
    def place(s: State, text: str) -> None:
        s += user(text) + assistant(select("place", CHOICES))

    def question(rep: int) -> str:
        return f"Log {rep}. {STORY}Where does the story begin?"

    def start(rep: int) -> str:
        messages = [{"role": "user", "content": question(rep)}]
        return str(bench.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))

    def ids(rep: int) -> tuple[list[int], list[list[int]]]:
        prompt = bench.tokenizer.encode(start(rep), add_special_tokens=False)
        whole = [bench.tokenizer.encode(start(rep) + choice, add_special_tokens=False) for choice in CHOICES]
        return prompt, [one[len(prompt) :] for one in whole]

    def cached(rep: int) -> tuple[Any, Any, list[list[int]]]:
        prompt, ends = ids(rep)
        done = model(torch.tensor([prompt]), logits_to_keep=1)
        return done.past_key_values, done.logits[0, -1].float().log_softmax(-1), ends

    def one_by_one(rep: int) -> tuple[Spent, str]:
        with torch.inference_mode():
            cache, first, ends = cached(rep)
            began = _now()
            scores = []
            for end in ends:
                scores.append(first[end[0]].item())
                if len(end) > 1:
                    logits = model(torch.tensor([end[:-1]]), past_key_values=copy.deepcopy(cache)).logits[0].float()
                    scores[-1] += logits.log_softmax(-1).gather(-1, torch.tensor(end[1:])[:, None]).sum().item()
            return _since(began), CHOICES[max(range(len(scores)), key=scores.__getitem__)]

    def batched(rep: int, cold: bool = False) -> Spent:
        with torch.inference_mode():
            began = _now()
            cache, _, ends = cached(rep)
            if not cold:
                began = _now()
            longest = max(map(len, ends))
            padded = torch.tensor([end + [0] * (longest - len(end)) for end in ends])  # causal: padding is never seen
            copied = copy.deepcopy(cache)
            copied.batch_repeat_interleave(len(ends))
            model(padded[:, :-1], past_key_values=copied).logits.float().log_softmax(-1)
            return _since(began)

    with bench.runtime() as runtime:

        def ours(rep: int, cold: bool = False) -> tuple[Spent, str]:
            runtime.flush_cache()
            if not cold:
                runtime.generate(ids(rep)[0], max_tokens=1)
            began = _now()
            chosen = str(place.run(question(rep), backend=runtime)["place"])
            return _since(began), chosen

        calls = {
            "one by one": lambda rep: one_by_one(rep)[0],
            "batched": batched,
            "batched, cold": lambda rep: batched(rep, cold=True),
            "ours": lambda rep: ours(rep)[0],
            "ours, cold": lambda rep: ours(rep, cold=True)[0],
        }
        times = bench.interleaved(calls)
        same = sum(ours(rep)[1] == one_by_one(rep)[1] for rep in range(4))
    for name, mine, what in (
        ("one by one", "ours", "after a cached prompt: time against transformers, one by one over its cache"),
        ("batched", "ours", "after a cached prompt: time against transformers, one batch over its copied cache"),
        ("batched, cold", "ours, cold", "after a cold prompt: time against transformers, one batch over its cache"),
    ):
        row: Row = {"what": f"`select` among {len(CHOICES)} {what}", "unit": "×", "goal": "≤ 0.45"}
        row |= {**_ratio(times, mine, name), "seconds": _seconds(times, (name, mine))}
        yield {**row, "reached": row["value"] <= 0.45, "same_choice_of_4": same}


class Contact(BaseModel):
    """What is extracted."""

    name: str
    company: str
    phone: str | None


def extraction(bench: Bench) -> Iterator[Row]:
    """Four e-mails to JSON under a limit of tokens: how many come back valid."""
    folder = Path(__file__).resolve().parents[2] / "data" / "emails"
    mails = [file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.txt"))]

    @function
    def read(s: State, mail: str) -> None:
        s += user(f"Copy the sender's contact out of this e-mail as JSON.\n\n{mail}")
        s += assistant(gen("contact", schema=Contact, max_tokens=48))

    with bench.runtime() as runtime:
        states = read.run_batch([{"mail": mail} for mail in mails], backend=runtime, sampling={"temperature": 0})
    valid = sum(state.error() is None and isinstance(state["contact"], Contact) for state in states)
    yield {
        "what": f"{len(mails)} JSON extractions under 48 tokens: valid",
        "value": float(valid),
        "unit": f"of {len(mails)}",
        "goal": f"{len(mails)}",
        "reached": valid == len(mails),
    }


def growth(bench: Bench) -> Iterator[Row]:
    """What a step costs beside the model, by length: with a model of one narrow layer nearly all of it is ours.

    Time still has that layer's attention in it, which must grow; calls of Python functions are counted for the rest.
    """
    calls = [0]

    def count(frame: Any, event: str, argument: Any) -> None:
        calls[0] += event == "call"

    new = 64
    with tempfile.TemporaryDirectory() as name:
        folder = _narrow(bench.folder, Path(name) / "narrow")
        options: dict[str, Any] = {"device": "cpu", "load_format": "dummy", "kv_tokens": 8_192}
        times: dict[int, list[float]] = {length: [] for length in LENGTHS}
        with LocalRuntime(folder, **options) as runtime:
            for rep in range(bench.reps + 1):
                for length in LENGTHS:
                    ids = bench.ids(length, length)
                    _ours(runtime, [ids], 1)  # cached from here on
                    began = time.perf_counter()
                    _ours(runtime, [ids], 1)
                    first = time.perf_counter()
                    _ours(runtime, [ids], new + 1)
                    if rep:
                        times[length].append((time.perf_counter() - first - (first - began)) / new)
        threading.setprofile(count)  # for threads that start now: the engine's
        counted: dict[int, float] = {}
        try:
            with LocalRuntime(folder, **options) as runtime:
                threading.setprofile(None)
                for length in LENGTHS:
                    ids = bench.ids(length, length)
                    found = []
                    for tokens in (1, 1, new + 1):
                        calls[0] = 0
                        _ours(runtime, [ids], tokens)
                        found.append(calls[0])
                    counted[length] = (found[2] - found[1]) / new
        finally:
            threading.setprofile(None)
    medians = {length: statistics.median(seen) for length, seen in times.items()}
    for length in LENGTHS[1:]:
        each = [a / b for a, b in zip(times[length], times[LENGTHS[0]])]
        yield {
            "what": f"a step with one narrow layer at {length:,} tokens, against {LENGTHS[0]} tokens: time "
            f"({medians[length] * 1e6:.0f} and {medians[LENGTHS[0]] * 1e6:.0f} µs in this run)",
            "value": statistics.median(each),
            "low": min(each),
            "high": max(each),
            "unit": "×",
        }
        more = counted[length] / counted[LENGTHS[0]]
        yield {
            "what": "the same: calls of Python functions "
            f"({counted[length]:.0f} and {counted[LENGTHS[0]]:.0f} a token)",
            "value": more,
            "unit": "×",
            "goal": "≤ 1.02",
            "reached": more <= 1.02,
        }


MEASURES: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "decode": decode,
    "prefix": prefix,
    "select": choosing,
    "json": extraction,
    "growth": growth,
}


def _ratio(times: Times, over: str, under: str) -> dict[str, float]:
    """`over` ÷ `under` of each round: median, least, most; and the median for CPU time."""
    each, cpu = ([a[i] / b[i] for a, b in zip(times[over], times[under])] for i in (0, 1))
    return {"value": statistics.median(each), "low": min(each), "high": max(each), "cpu": statistics.median(cpu)}


def _seconds(times: Times, names: Iterable[str]) -> dict[str, float]:
    """The median wall of each."""
    return {name: statistics.median(wall for wall, _ in times[name]) for name in names}


def _now() -> Spent:
    return time.perf_counter(), time.process_time()


def _since(began: Spent) -> Spent:
    now = _now()
    return now[0] - began[0], now[1] - began[1]


def _at_least(what: str, times: Times, peer: str, ours: str, goal: float) -> Row:
    row: Row = {"what": what, "unit": "×", "goal": f"≥ {goal:g}", **_ratio(times, peer, ours)}
    return {
        **row,
        "reached": row["value"] >= goal,
        "seconds": _seconds(times, times),
    }


def _generate(model: Any, ids: list[int], new: int) -> Any:
    with torch.inference_mode():
        prompt = torch.tensor([ids])
        return model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=new, min_new_tokens=new, do_sample=False
        )


def _ours(runtime: LocalRuntime, prompts: list[list[int]], new: int) -> None:
    runtime.generate(prompts, temperature=0, max_tokens=new, ignore_eos=True)


def _llama_cpp(bench: Bench) -> Callable[[list[int], int], Any] | str:
    """A call that generates with llama.cpp, or why there is none."""
    try:
        import xllamacpp
    except ImportError:
        return "llama.cpp is not installed (package xllamacpp)"
    if bench.gguf is None:
        return "no GGUF file was given (--gguf)"
    params = xllamacpp.CommonParams()
    params.model.path = str(bench.gguf)
    params.n_ctx, params.n_parallel, params.verbosity = 2048, 1, -1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = bench.threads
    server = xllamacpp.Server(params)

    def call(ids: list[int], new: int) -> Any:
        done = server.handle_completions(
            {"prompt": ids, "n_predict": new, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
        )
        if done["usage"]["completion_tokens"] != new if "usage" in done else done["tokens_predicted"] != new:
            raise RuntimeError(f"llama.cpp made another number of tokens: {json.dumps(done)[:300]}")
        return done

    return call


def _narrow(folder: Path, made: Path) -> Path:
    """A model folder with the same tokenizer and vocabulary, and one layer of one narrow head."""
    made.mkdir(parents=True)
    for file in folder.iterdir():
        if file.suffix == ".json" and file.name != "config.json" and "index" not in file.name:
            shutil.copy(file, made / file.name)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16}
    config |= {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 16}
    (made / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return made
