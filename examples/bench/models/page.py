"""docs/models.md out of measured figures: the text and the tables, so that nothing on the page is typed by hand.

In: the figures of docs/benchmarks/models.json. Out: the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from agreement import GREEDY, KINDS
from formats import FORMATS, GGUF_FAMILIES
from radicel.runtime.gguf_config import GGUF_ARCHITECTURES
from radicel.runtime.models import ARCHITECTURES
from radicel.runtime.models.rope import ROPE_KINDS
from speed import SHAPES
from tiny_families import FAMILIES

__all__ = ["render"]

INTRO = """# Models

`examples/bench/models/table.py` makes this page. It measures, and writes what it measured.

`LocalRuntime(model)` runs {count} architectures. Each has one file in `runtime/models/`, which holds its config
reader, its weight names and what it computes otherwise than the others. An architecture that is not in the table is
refused by name, with the list of those that are.

## Agreement with transformers

For each row, transformers makes a tiny checkpoint with random weights from the architecture's own config class. Ratios
of heads, biases, ties, kinds of rope, windows, caps, multipliers and experts are those of the published config that is
named. The checkpoint is saved, loaded by `load_model`, and run in float32 on a CPU. A number is the largest difference
of any logit from transformers', over:

- **prefill**: 150 tokens in one step
- **chunks**: the same in chunks of 7, and of 64
- **decode**: the last 30 tokens one by one
- **forks**: six sequences over one prefix of 100 tokens, each with a prompt of its own length, then three tokens one
  by one

**Greedy** says how many of {greedy} tokens equal those of transformers' `generate`. **Size** is the root mean square
of the logits, to judge the differences by.
"""

NOTES = """## What to know

- **Rope.** Kinds: {ropes}.
  A long rope (Phi-3, Phi-4-mini) has one set of factors for texts up to its original context and one beyond. They are
  chosen once, from the runtime's `context_length`, and hold for every text: keys in the cache must not turn with the
  length of a text. `LocalRuntime(model, context_length=4096)` takes the short ones.
- **Windows.** Layers with a window (Mistral, Gemma, Phi-3) attend to the window. Their keys and values are kept for
  the whole text, like those of other layers, since a fork may go on from any of its tokens.
- **Gemma 3** runs text. Of a checkpoint with a vision tower, the text part is loaded.
- **Mixtures of experts.** Tokens are grouped by expert, so that an expert's weights are read for a group and not for
  each token; one token alone reads its experts' weights and no others. Steps are replayed as CUDA graphs whatever the
  router chooses. Equal router scores go to the lowest expert.
- **Quantised weights** of a GGUF file become numbers of the runtime's dtype as they are loaded. Other quantised
  checkpoints are refused.
- **Damage.** A tensor that is missing, too many, misshapen or cut short is an error that names file and tensor.
"""

FORMAT_INTRO = """## Weight formats

One tiny Llama, written in each format and loaded; differences as above. A file with fewer bits is compared with
transformers' model of the numbers that the file stands for.
"""

GGUF_INTRO = """`LocalRuntime("model.gguf")` reads config, tokenizer and tensors from the file.
Architectures in GGUF files:
{names}.
Each of these was written as a GGUF file of half-precision numbers and loaded:
"""

SPEED_INTRO = """Decode steps of published shapes with random weights, 512 tokens in each sequence, the sampled ids read
back after every step. The floor is the time in which the matrices of a step can be read, of experts those that some
token chose, at {rate:.0f} GB/s, the rate of one large linear layer.
"""

GPU_INTRO = """## On a GPU, in bfloat16

The same checkpoints through the kernels. Both numbers are distances from transformers' float32 logits, relative to
their size: ours / transformers' own in bfloat16. Where rounding sends a token to other experts, both are far off.
"""


LOADED = """Loading {whole:.0f} MB in files of at most {largest:.0f} MB {where} took {seconds:.1f} s
and {peak:.0f} MB of host memory at most: {share:.2f} × the largest file. Each kind at its own highest: {own:.0f} MB of
the process's own, {file:.0f} MB pages of files, {shared:.0f} MB shared. Buffers that a driver may keep elsewhere:
{pinned:.0f} MB. Libraries and driver, {before:.0f} MB, were there before.
"""


def render(figures: dict[str, Any]) -> str:
    """The page."""
    cpu = figures["cpu"]
    parts = [
        INTRO.format(count=len(ARCHITECTURES), greedy=GREEDY),
        _table(
            ["Architecture", "After the config of", *KINDS, "Size", "Greedy"],
            ([_name(name), FAMILIES[name].like, *_cells(cpu["families"].get(name), _apart)] for name in FAMILIES),
        ),
        _machine(cpu),
        _gpu(figures["cuda"]) if "cuda" in figures else "",
        FORMAT_INTRO,
        *(_loading(figures[device], where) for device, where in WHERE.items() if device in figures),
        _table(
            ["Format", *KINDS, "Size", "Greedy"],
            ([name, *_cells(cpu["formats"].get(name), _apart)] for name in FORMATS),
        ),
        GGUF_INTRO.format(names=", ".join(f"`{name}`" for name in GGUF_ARCHITECTURES)),
        _table(
            ["In the file", "After the config of", *KINDS, "Size", "Greedy"],
            (
                [f"`{kind}`", FAMILIES[name].like, *_cells(cpu["gguf"].get(name), _apart)]
                for name, kind in GGUF_FAMILIES.items()
            ),
        ),
        NOTES.format(ropes=", ".join(f"`{kind}`" for kind in ROPE_KINDS)),
    ]
    return "\n".join(part for part in parts if part)


def _name(family: str) -> str:
    return f"`{FAMILIES[family].architecture}`"


def _cells(row: dict[str, Any] | None, shown: Callable[[dict[str, Any]], list[str]]) -> list[str]:
    """What a row shows, or why there is nothing to show."""
    if row is None:
        return ["not measured: no time was left"]
    return [f"failed: {row['error']}".replace("|", "/")] if "error" in row else shown(row)


def _apart(row: dict[str, Any]) -> list[str]:
    return [*(f"{row['apart'][kind]:.0e}" for kind in KINDS), f"{row['scale']:.1f}", f"{row['greedy']} of {GREEDY}"]


def _far(row: dict[str, Any]) -> list[str]:
    return [f"{row['ours'][kind]:.3f} / {row['theirs'][kind]:.3f}" for kind in KINDS]


def _machine(found: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return f"Measured on one {found['machine']}, with {versions}.\n"


def _gpu(cuda: dict[str, Any]) -> str:
    speed = cuda.get("speed", {})
    rates = [row["read_gb_per_s"] for row in speed.values() if "error" not in row]
    rows = ([_name(name), FAMILIES[name].like, *_cells(cuda["families"].get(name), _far)] for name in FAMILIES)
    return "\n".join(
        [
            GPU_INTRO,
            _table(["Architecture", "After the config of", *KINDS], rows),
            _machine(cuda),
            SPEED_INTRO.format(rate=max(rates, default=0)),
            _table(
                ["Shape", "Sequences", "Milliseconds a step", "Floor", "Ratio"],
                (row for name in SHAPES for row in _speeds(name, speed.get(name))),
            ),
        ]
    )


def _speeds(name: str, found: dict[str, Any] | None) -> list[list[str]]:
    if found is None or "error" in found:
        return [[name, *_cells(found, lambda row: [])]]
    return [
        [name, size, f"{row['ms']:.2f}", f"{row['floor_ms']:.2f}", f"{row['ms'] / row['floor_ms']:.2f}"]
        for size, row in found["sizes"].items()
    ]


WHERE = {"cuda": "to a GPU", "cpu": "on a CPU, beside the model itself,"}


def _loading(figures: dict[str, Any], where: str) -> str:
    found = figures.get("loading")
    if found is None or "error" in found:
        return f"What loading {where.rstrip(',')} takes: {_cells(found, lambda row: [])[0]}.\n"
    return LOADED.format(
        where=where,
        share=found["peak"] / found["largest"],
        own=found["RssAnon"],
        file=found["RssFile"],
        shared=found["RssShmem"],
        **{name: found[name] for name in ("whole", "largest", "seconds", "peak", "pinned", "before")},
    )


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *([*row, *[""] * (len(head) - len(row))] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
