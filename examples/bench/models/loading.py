"""What a host holds while a checkpoint of several files is loaded, beside what the process held before.

In: a device, a size. Out: MB. The measurement has a process of its own, which first loads a tiny model to the device,
so that libraries, driver and context are there. Then the system is asked how much of it is resident: the high-water
mark (VmHWM, begun anew), and, every two milliseconds, which kind it is: memory of its own (RssAnon), pages of files
(RssFile, which the system may drop at any time), shared memory (RssShmem).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
from radicel.runtime.models import load_model
from safetensors import safe_open
from safetensors.torch import save_file

__all__ = ["measure_loading"]

KINDS = ("VmRSS", "RssAnon", "RssFile", "RssShmem")
PERIOD = 0.002


def measure_loading(device: str, hidden: int, layers: int, timeout: float = 600) -> dict[str, float]:
    """Loads a Llama of four files.

    Returns:
        MB of the `largest` file and the `whole` checkpoint; MB that the process held more at its `peak`, and of each
        kind at that kind's own peak; what torch had `pinned`, which a driver may keep where the system does not count
        it; MB `before`; `seconds`. On a CPU the model itself is taken off the peak and what is its own.
    """
    with tempfile.TemporaryDirectory() as made:
        sizes = _checkpoint(Path(made) / "large", hidden, layers)
        _checkpoint(Path(made) / "tiny", 128, 2)
        command = [sys.executable, __file__, made, device]
        child = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        if child.returncode:
            raise RuntimeError(f"loading ended with {child.returncode}: {child.stderr[-2000:]}")
    found: dict[str, float] = json.loads(child.stdout.splitlines()[-1])
    if device == "cpu":
        for kind in ("peak", "RssAnon"):
            found[kind] = max(0.0, found[kind] - sum(sizes) / 1e6)
    return {"largest": max(sizes) / 1e6, "whole": sum(sizes) / 1e6, **found}


def _checkpoint(folder: Path, hidden: int, layers: int, shards: int = 4) -> list[int]:
    """A Llama of random bfloat16 numbers in several files; their sizes."""
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        vocab_size=8 * hidden,
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
    )
    config.save_pretrained(folder)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
        shapes = {name: p.shape for name, p in model.named_parameters()}
    whole, begun = sum(shape.numel() for shape in shapes.values()), 0
    files: list[dict[str, Any]] = [{} for _ in range(shards)]
    for name, shape in shapes.items():
        files[begun * shards // whole][name] = shape
        begun += shape.numel()
    # Drawing billions of numbers would take longer than all else: each tensor is another part of some millions.
    numbers = torch.randn(1 << 24, generator=torch.Generator().manual_seed(0)).bfloat16()
    weight_map, sizes = {}, []
    for number, of_file in enumerate(files, 1):
        file = folder / f"model-{number:05}-of-{shards:05}.safetensors"
        save_file({name: _some(numbers, shape, len(name)) for name, shape in of_file.items()}, file)
        weight_map.update(dict.fromkeys(of_file, file.name))
        sizes.append(file.stat().st_size)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return sizes


def _some(numbers: torch.Tensor, shape: torch.Size, begin: int) -> torch.Tensor:
    turned = numbers.roll(begin)
    return turned.repeat(-(-shape.numel() // len(turned)))[: shape.numel()].view(shape).clone()


class _Watch:
    """The most that was resident of each kind, in MB; used as a context."""

    def __init__(self) -> None:
        self.most: dict[str, float] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(PERIOD):
            found = _status()
            self.most = {kind: max(found[kind], self.most.get(kind, 0.0)) for kind in KINDS}


def _status() -> dict[str, float]:
    """MB of every kind of memory that the system tells of this process."""
    lines = [line.split() for line in Path("/proc/self/status").read_text().splitlines()]
    return {line[0][:-1]: int(line[1]) / 1e3 * 1.024 for line in lines if line[-1] == "kB"}


def _load(folder: Path, device: str) -> dict[str, float]:
    """The measurement itself, in a process that does nothing else."""

    def load(name: str) -> Any:
        model = load_model(folder / name, device=device, dtype="bfloat16", context_length=64)
        if device != "cpu":
            torch.cuda.synchronize()
        return model

    load("tiny")
    # The pinned buffers of that loading are kept for the next; those of the next should count.
    getattr(torch._C, "_host_emptyCache", int)()
    before = _status()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
        began_anew = True
    except OSError:
        began_anew = False
    started = time.perf_counter()
    with _Watch() as watch:
        model = load("large")
    seconds = time.perf_counter() - started
    high = _status()["VmHWM"] if began_anew else watch.most["VmRSS"]
    _check(model, folder / "large")
    kinds = {kind: max(0.0, watch.most[kind] - before[kind]) for kind in KINDS[1:]}
    pinned = 0.0 if device == "cpu" else torch.cuda.host_memory_stats().get("allocated_bytes.peak", 0) / 1e6
    return {
        "peak": max(0.0, high - before["VmRSS"]),
        **kinds,
        "pinned": pinned,
        "before": before["VmRSS"],
        "seconds": seconds,
    }


def _check(model: Any, folder: Path) -> None:
    """Some tensors of every file are on the device as they are in the file."""
    places = model.places()
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in list(tensors.keys())[::7]:
                if not torch.equal(places[name].cpu().view(torch.int16), tensors.get_tensor(name).view(torch.int16)):
                    raise AssertionError(f"{name} is not what {file} holds")


if __name__ == "__main__":
    print(json.dumps(_load(Path(sys.argv[1]), sys.argv[2])))
