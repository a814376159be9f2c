"""docs/models.md out of measured figures: the text and the tables, so that nothing on the page is typed by hand.

In: the figures of docs/benchmarks/models.json. Out: the page.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agreement import GREEDY, KINDS
from formats import GGUF_FAMILIES
from radicel.runtime.gguf_config import GGUF_ARCHITECTURES
from radicel.runtime.models import ARCHITECTURES
from radicel.runtime.models.rope import ROPE_KINDS
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
  each token. Equal router scores go to the lowest expert.
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

SPEED_INTRO = """Decode steps of two published shapes with random weights, 512 tokens in each sequence, the sampled ids
read back after every step. The floor is the time in which the matrices of a step can be read, at {rate:.0f} GB/s, the
rate of one large linear layer.
"""

GPU_INTRO = """## On a GPU, in bfloat16

The same checkpoints through the kernels. Both numbers are distances from transformers' float32 logits, relative to
their size: ours / transformers' own in bfloat16. Where rounding sends a token to other experts, both are far off.
"""


def render(figures: dict[str, Any]) -> str:
    """The page."""
    cpu = figures["cpu"]
    parts = [
        INTRO.format(count=len(ARCHITECTURES), greedy=GREEDY),
        _table(
            ["Architecture", "After the config of", *KINDS, "Size", "Greedy"],
            ([_name(family), FAMILIES[family].like, *_apart(row)] for family, row in cpu["families"].items()),
        ),
        _machine(cpu),
        _gpu(figures["cuda"]) if "cuda" in figures else "",
        FORMAT_INTRO,
        _loading(figures),
        _table(["Format", *KINDS, "Size", "Greedy"], ([name, *_apart(row)] for name, row in cpu["formats"].items())),
        GGUF_INTRO.format(names=", ".join(f"`{name}`" for name in GGUF_ARCHITECTURES)),
        _table(
            ["In the file", "After the config of", *KINDS, "Size", "Greedy"],
            ([f"`{GGUF_FAMILIES[name]}`", FAMILIES[name].like, *_apart(row)] for name, row in cpu["gguf"].items()),
        ),
        NOTES.format(ropes=", ".join(f"`{kind}`" for kind in ROPE_KINDS)),
    ]
    return "\n".join(part for part in parts if part)


def _name(family: str) -> str:
    return f"`{FAMILIES[family].architecture}`"


def _apart(row: dict[str, Any]) -> list[str]:
    return [*(f"{row['apart'][kind]:.0e}" for kind in KINDS), f"{row['scale']:.1f}", f"{row['greedy']} of {GREEDY}"]


def _machine(found: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return f"Measured on one {found['machine']}, with {versions}.\n"


def _gpu(cuda: dict[str, Any]) -> str:
    rows = (
        [
            _name(family),
            FAMILIES[family].like,
            *(f"{row['ours'][kind]:.3f} / {row['theirs'][kind]:.3f}" for kind in KINDS),
        ]
        for family, row in cuda["families"].items()
    )
    return "\n".join(
        [
            GPU_INTRO,
            _table(["Architecture", "After the config of", *KINDS], rows),
            _machine(cuda),
            SPEED_INTRO.format(rate=cuda["speed"]["read_gb_per_s"]),
            _table(
                ["Shape", "Sequences", "Milliseconds a step", "Floor", "Ratio"],
                (
                    [name, size, f"{row['ms']:.2f}", f"{row['floor_ms']:.2f}", f"{row['ms'] / row['floor_ms']:.2f}"]
                    for name, sizes in cuda["speed"]["shapes"].items()
                    for size, row in sizes.items()
                ),
            ),
        ]
    )


def _loading(figures: dict[str, Any]) -> str:
    lines = []
    for device, where in (("cuda", "to a GPU"), ("cpu", "on a CPU, beside the model itself,")):
        if found := figures.get(device, {}).get("loading"):
            lines.append(
                f"Loading {found['whole']:.0f} MB in files of at most {found['largest']:.0f} MB {where}\n"
                f"took {found['peak']:.0f} MB of host memory at most: {found['peak'] / found['largest']:.2f} × the "
                "largest file.\n"
            )
    return "\n".join(lines)


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
