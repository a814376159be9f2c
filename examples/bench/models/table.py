"""docs/models.md: every architecture and every weight format, with the measured agreement with transformers.

    python examples/bench/models/table.py                              measure on the CPU in float32, write the page
    python examples/bench/models/table.py --device cuda --out FILE     measure on a GPU in bfloat16, into a JSON file
    python examples/bench/models/table.py --merge FILE                 take a GPU's figures into the page

Figures are kept in docs/benchmarks/models.json; the page is made from them and from this script alone.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
from agreement import KINDS, measure, our_logits, their_logits
from formats import FORMATS, GGUF_FAMILIES, measure_format, measure_gguf, peak_of_sharded_load
from page import render
from radicel.runtime.models import load_model
from speed import measure_speed
from tiny_families import FAMILIES, make_checkpoint

DOCS = Path(__file__).resolve().parents[3] / "docs"
DATA, PAGE = DOCS / "benchmarks" / "models.json", DOCS / "models.md"


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="write the figures here, and no page")
    parser.add_argument("--merge", type=Path, help="measure nothing, take these figures")
    parser.add_argument("--only", default="", help="names of families, with commas")
    options = parser.parse_args()
    figures = json.loads(DATA.read_text()) if DATA.is_file() else {}
    if options.merge:
        figures.update(json.loads(options.merge.read_text()))
    else:
        figures[torch.device(options.device).type] = measured(
            options.device, options.only.split(",") if options.only else []
        )
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n")
        return
    DATA.write_text(json.dumps(figures, indent=1) + "\n")
    PAGE.write_text(render(figures))
    print(PAGE.read_text())


def measured(device: str, only: list[str]) -> dict[str, Any]:
    """All figures of a machine."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    warnings.filterwarnings("ignore")
    on_gpu = torch.device(device).type == "cuda"
    families: dict[str, Any] = {}
    for name in only or FAMILIES:
        started = time.perf_counter()
        try:
            families[name] = half(name, device) if on_gpu else single(name)
        except Exception:  # the others should not be lost with it; a row that is missing fails the page's test
            traceback.print_exc()
        print(f"{name}: {time.perf_counter() - started:.1f} s {families.get(name)}", flush=True)
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "gguf", "safetensors")}
    machine = torch.cuda.get_device_name() if on_gpu else f"{platform.machine()} CPU"
    found = {"machine": machine, "versions": versions, "families": families}
    if on_gpu:
        for part, measure_part in (("loading", peak_of_sharded_load), ("speed", measure_speed)):
            try:
                found[part] = measure_part(device)
            except Exception:
                traceback.print_exc()
            print(part, found.get(part), flush=True)
    else:
        found["formats"] = {name: measure_format(name) for name in FORMATS}
        found["gguf"] = {name: measure_gguf(name) for name in GGUF_FAMILIES}
        found["loading"] = peak_of_sharded_load(device, hidden=1024)
    return found


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
