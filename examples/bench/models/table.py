"""docs/models.md: what every architecture and weight format was measured to give, beside transformers.

    python examples/bench/models/table.py                              measure on the CPU in float32, write the page
    python examples/bench/models/table.py --device cuda --out FILE     measure on a GPU in bfloat16, into a JSON file
    python examples/bench/models/table.py --merge FILE                 take a GPU's figures into the page

Figures are kept in docs/benchmarks/models.json; the page is made from them and from this script alone. Every piece (a
family, a format, a shape's speed, loading) has a process of its own, and FILE is written anew after each. `--limit`
says in how many seconds all must be over: on a GPU what is timed comes first, and what has not ended by then is named
on the page. `--only` measures some pieces, and `--merge` then takes these and leaves the others as they are.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from agreement import KINDS, measure, our_logits, their_logits
from formats import FORMATS, GGUF_FAMILIES, measure_format, measure_gguf
from jobs import Clock, run_jobs
from loading import measure_loading
from page import render
from radicel.runtime.models import load_model
from speed import SHAPES, measure_speed
from tiny_families import FAMILIES, make_checkpoint

DOCS = Path(__file__).resolve().parents[3] / "docs"
DATA, PAGE = DOCS / "benchmarks" / "models.json", DOCS / "models.md"
LOADED = {"cuda": (4096, 11), "cpu": (1024, 20), "tiny": (256, 4)}
"""Hidden size and layers of the checkpoint whose loading is measured: on a GPU 6.4 GB in four files."""


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="write the figures here, and no page")
    parser.add_argument("--merge", type=Path, help="measure nothing, take these figures")
    parser.add_argument("--only", default="", help="pieces with commas, as a run prints them: loading, family:qwen3, …")
    parser.add_argument("--limit", type=float, default=0, help="seconds in which all must be over")
    parser.add_argument("--at-once", type=int, default=0, help="pieces side by side, without those that are timed")
    parser.add_argument("--gpu-part", action="store_true", help="the pieces of a GPU, wherever: to try the script")
    parser.add_argument("--tiny", action="store_true", help="small sizes for what is timed: to try the script")
    parser.add_argument("--piece", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.piece:
        print(json.dumps(measured_piece(options.piece, options.device, options.gpu_part, options.tiny)))
        return
    if options.merge:
        figures = merged(json.loads(DATA.read_text()), json.loads(options.merge.read_text()))
    else:
        figures = merged(json.loads(DATA.read_text()) if DATA.is_file() else {}, measured(options))
        if options.out:
            return
    DATA.write_text(json.dumps(figures, indent=1) + "\n")
    PAGE.write_text(render(figures))
    print(PAGE.read_text())


def merged(figures: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Figures with those of a run: all of its machine's are new, or, of a run with `--only`, those that it has."""
    for device, found in new.items():
        if found.pop("only", False) and device in figures:
            old = figures[device]
            for part, rows in found.items():
                old[part] = {**old.get(part, {}), **rows} if isinstance(rows, dict) and part != "loading" else rows
        else:
            figures[device] = found
    return figures


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All figures of a machine, written to `--out` after each."""
    device, clock = torch.device(options.device).type, Clock(options.limit)
    on_gpu = device == "cuda" or options.gpu_part
    found: dict[str, Any] = {**facts(device), "families": {}}
    asked = options.only.split(",") if options.only else []
    if asked:
        found["only"] = True

    def done(piece: str, result: dict[str, Any], seconds: float) -> None:
        put(found, piece, result)
        print(f"{piece}: {seconds:.1f} s {json.dumps(result)}", flush=True)
        if options.out:
            options.out.write_text(json.dumps({device: found}, indent=1) + "\n")

    given = ["--device", options.device, *["--gpu-part"] * on_gpu, *["--tiny"] * options.tiny]
    cores = max(1, min(12, (os.cpu_count() or 1) * 3 // 4)) if device == "cuda" else 1
    for pieces, at_once, least, most in (
        ([f"speed:{name}" for name in SHAPES] if on_gpu else [], 1, 45, 300),
        (["loading"], 1, 30, 300),
        ([f"family:{name}" for name in FAMILIES], options.at_once or cores, 20, 240),
        ([] if on_gpu else [f"format:{name}" for name in FORMATS], options.at_once or cores, 20, 240),
        ([] if on_gpu else [f"gguf:{name}" for name in GGUF_FAMILIES], options.at_once or cores, 20, 240),
    ):
        some = [piece for piece in pieces if not asked or piece in asked or piece.partition(":")[2] in asked]
        run_jobs(Path(__file__), given, some, at_once=at_once, least=least, most=most, clock=clock, done=done)
        left = [piece for piece in some if not known(found, piece)]
        print(*(f"{piece}: no time was left" for piece in left), sep="\n", end="\n" * bool(left), flush=True)
    return {device: found}


def facts(device: str) -> dict[str, Any]:
    """What a machine is."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "gguf", "safetensors")}
    machine = torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} CPU"
    return {"machine": machine, "versions": versions}


def place_of(found: dict[str, Any], piece: str) -> tuple[dict[str, Any], str]:
    """Where among the figures a piece is kept."""
    kind, _, name = piece.partition(":")
    part = {"family": "families", "format": "formats", "gguf": "gguf", "speed": "speed"}.get(kind)
    return (found, piece) if part is None else (found.setdefault(part, {}), name)


def known(found: dict[str, Any], piece: str) -> bool:
    """Whether a piece was measured."""
    part, name = place_of(found, piece)
    return name in part


def put(found: dict[str, Any], piece: str, result: dict[str, Any]) -> None:
    """Keeps a result (changes `found`)."""
    part, name = place_of(found, piece)
    part[name] = result


def measured_piece(piece: str, device: str, on_gpu: bool, tiny: bool) -> dict[str, Any]:
    """One piece, in this process."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    warnings.filterwarnings("ignore")
    kind, _, name = piece.partition(":")
    if kind == "family":
        return half(name, device) if on_gpu else single(name)
    if kind == "format":
        return measure_format(name)
    if kind == "gguf":
        return measure_gguf(name)
    if kind == "speed":
        return measure_speed(name, device, tiny=tiny)
    return measure_loading(device, *LOADED["tiny" if tiny else torch.device(device).type])


def single(name: str) -> dict[str, Any]:
    """Float32 on a CPU: the largest difference of a logit."""
    with tempfile.TemporaryDirectory() as folder:
        theirs = make_checkpoint(name, Path(folder))
        model = load_model(Path(folder), device="cpu", dtype="float32", context_length=FAMILIES[name].context)
    return measure(model, theirs, model.context_length).as_dict()


def half(name: str, device: str) -> dict[str, Any]:
    """Bfloat16 on a GPU: how far ours and theirs are from transformers' float32, relative to its size."""
    with tempfile.TemporaryDirectory() as folder:
        theirs = make_checkpoint(name, Path(folder))
        model = load_model(Path(folder), device=device, dtype="bfloat16", context_length=FAMILIES[name].context)
    context = model.context_length
    truth = their_logits(theirs, context)
    theirs = theirs.to(device, torch.bfloat16)
    found, peer = our_logits(model, context), their_logits(theirs, context)
    return {
        "ours": {kind: _relative(found[kind], truth[kind]) for kind in KINDS},
        "theirs": {kind: _relative(peer[kind], truth[kind]) for kind in KINDS},
    }


def _relative(found: torch.Tensor, truth: torch.Tensor) -> float:
    return float((found - truth).square().mean().sqrt() / truth.square().mean().sqrt())


if __name__ == "__main__":
    main()
