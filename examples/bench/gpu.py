"""Every workload on the GPU in one call: ours, each part of the runtime off in turn, transformers as a peer.

    python examples/bench/gpu.py --workloads WORKLOADS.py --model FOLDER
    python examples/bench/gpu.py --workloads … --model … --only ours --profile           # in two calls,
    python examples/bench/gpu.py --workloads … --model … --only ablations,transformers --out other
    python examples/bench/gpu.py --render docs/benchmarks/gpu-workloads.json other.json    # and one page of both

In: a workload file (`WL` with W1 to W6, `emit`), a model folder (config and tokenizer; weights are random). Out: the
table on the screen, JSON and a page made from it beside it. `--only` names workloads (W1 to W8, idle) and parts (ours,
flat, eager, serial, uncached, transformers; ablations). Without a workload file W7, W8 and the idle share run.
Every part is a process of its own; what is done when time runs out is written down.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "workloads"))

from gpu_rows import PARTS, ROWS, markdown

PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "gpu-workloads"
ABLATED = tuple(name for name in PARTS if name not in ("ours", "transformers"))
WORKLOADS = {
    "ours": ("W2", "W7", "W5", "W3", "W6", "W1", "W4", "W8", "idle"),
    "flat": ("W3", "W6", "W5"),
    "eager": ("W2", "W7", "W5"),
    "serial": ("W2", "W7", "W1", "W5", "idle"),
    "uncached": ("W3", "W4"),
    "transformers": ("W2", "W1", "W3", "W5"),
}
"""Part → where it can matter. Without the prefix cache W6 would not fit into memory."""
WITH_SCHEMA = ("ours", "serial")
VERSIONS = ("torch", "triton", "transformers", "xgrammar", "llguidance", "numpy")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workloads", type=Path, help="the workload file; without it only W7, W8 and idle")
    parser.add_argument("--model", help="folder with config and tokenizer")
    parser.add_argument("--only", default="", help="workloads and parts, with commas")
    parser.add_argument("--reps", type=int, default=3, help="repeats of ours; the other parts have one")
    parser.add_argument("--mem", type=float, default=0.85, help="memory fraction")
    parser.add_argument("--opt", action="append", default=[], help="KEY=JSON for LocalRuntime, repeatable")
    parser.add_argument("--limit", type=float, default=1140.0, help="seconds for all of it; what is left out is named")
    parser.add_argument("--profile", action="store_true", help="kernel time table of ours, per workload")
    parser.add_argument("--tiny", action="store_true", help="small sizes of W7, W8 and idle: to try the driver")
    parser.add_argument("--out", type=Path, default=PAGE, help="where to write, without suffix")
    parser.add_argument("--render", nargs="+", type=Path, help="makes the page of JSON files, runs nothing")
    parser.add_argument("--part", choices=tuple(PARTS), help=argparse.SUPPRESS)
    parser.add_argument("--deadline", type=float, help=argparse.SUPPRESS)
    return parser.parse_args()


def selection(options: argparse.Namespace) -> dict[str, list[str]]:
    """Part → the workloads to run.

    Raises:
        SystemExit: a name that is neither.
    """
    names = [name for name in options.only.split(",") if name]
    parts = [name for name in names if name in PARTS]
    parts += [name for name in ABLATED if "ablations" in names and name not in parts]
    known = {row.workload for row in ROWS}
    wanted = [name for name in names if name in known]
    if unknown := set(names) - set(parts) - known - {"ablations"}:
        raise SystemExit(
            f"--only: {', '.join(sorted(unknown))} is no workload ({', '.join(sorted(known))}) and no part"
        )
    chosen = {part: [w for w in WORKLOADS[part] if not wanted or w in wanted] for part in parts or PARTS}
    return {part: list(found) for part, found in chosen.items() if found}


def main() -> None:
    """Runs the parts one after another and writes after each."""
    options = arguments()
    if options.render:
        run = merged([json.loads(path.read_text(encoding="utf-8")) for path in options.render])
        write(run, options.out)
        print(markdown(run))
        return
    if not options.model:
        raise SystemExit("--model: a folder with config and tokenizer is needed")
    if options.part:
        run_part(options)
        return
    deadline = time.time() + options.limit
    run: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), **surroundings(), "parts": {}}
    for part in selection(options):
        began = time.time()
        run["parts"][part] = in_process(part, deadline)
        write(run, options.out)
        print(f"# {PARTS[part]}: {time.time() - began:.0f} s", flush=True)
    print(markdown(run))


def in_process(part: str, deadline: float) -> dict[str, Any]:
    """What a part recorded, run as a process that ends at the deadline at the latest."""
    if time.time() > deadline - 20:
        return {"missing": "no time was left"}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "part"
        command = [sys.executable, __file__, *sys.argv[1:], "--part", part, "--deadline", str(deadline)]
        try:
            done = subprocess.run([*command, "--out", str(out)], timeout=max(deadline - time.time(), 1.0) + 45)
            ended = "" if done.returncode == 0 else f"the process ended with {done.returncode}"
        except subprocess.TimeoutExpired:
            ended = "the process was stopped: no time was left"
        file = out.with_suffix(".json")
        recorded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if ended:
        recorded.setdefault("failed", {})["the rest"] = ended
        recorded.setdefault("lines", [])
    return recorded


def run_part(options: argparse.Namespace) -> None:
    """One part, in this process; writes its record after every workload, so that a crash costs only the rest."""
    from gpu_engines import MissingError, make_engine

    part, out = options.part, options.out.with_suffix(".json")
    record: dict[str, Any] = {"lines": [], "failed": {}, "notes": [], "profile": {}}
    extra = {key: parsed(value) for key, _, value in (entry.partition("=") for entry in options.opt)}
    workloads = load(options.workloads)
    try:
        engine = make_engine(part, options.model, memory=options.mem, options=extra, tiny=options.tiny)
    except MissingError as error:
        out.write_text(json.dumps({"missing": str(error)}), encoding="utf-8")
        print(f"# {PARTS[part]}: not measured: {error}", flush=True)
        return
    engine.has_schema = engine.has_schema and part in WITH_SCHEMA
    record["notes"] = notes(part, engine)
    reps = options.reps if part == "ours" else 1
    for name in selection(options)[part]:
        if options.deadline and time.time() > options.deadline - 15:
            record["failed"][name] = "not run: no time was left"
            continue
        began = time.perf_counter()
        try:
            for line in lines_of(name, engine, workloads, reps, tiny=options.tiny):
                print(json.dumps(line), flush=True)
                record["lines"].append(line)
        except LookupError as error:
            record["failed"][name] = str(error)
        except Exception as error:
            traceback.print_exc()
            record["failed"][name] = f"{type(error).__name__}: {error}"[:300]
        print(f"# {part} {name}: {time.perf_counter() - began:.1f} s with its warm-up", flush=True)
        out.write_text(json.dumps(record), encoding="utf-8")
    if options.profile and part == "ours":
        profile_all(options, engine, workloads, record, out)
    engine.close()


def lines_of(
    name: str, engine: Any, workloads: ModuleType | None, reps: int, *, tiny: bool
) -> Iterator[dict[str, Any]]:
    """The lines of one workload.

    Raises:
        LookupError: nothing here runs it.
    """
    from gpu_own import FULL, OWN, TINY

    if name in OWN:
        engine.flush()
        yield from OWN[name](engine, TINY if tiny else FULL, reps)
        return
    if workloads is None:
        raise LookupError("not run: no workload file was given")
    said: list[dict[str, Any]] = []
    workloads.emit = said.append  # the file's functions look it up among its names
    try:
        workloads.WL[name](engine, reps)
    finally:
        yield from said


def profile_all(
    options: argparse.Namespace, engine: Any, workloads: ModuleType | None, record: dict[str, Any], out: Path
) -> None:
    """The kernel table of the longest call of every workload."""
    from gpu_profile import Watched, table

    for name in selection(options)["ours"]:
        if name in ("W8", "idle"):  # W8 does not go through `gen`; idle has a profiler of its own
            continue
        if options.deadline and time.time() > options.deadline - 30:
            record["notes"].append(f"no kernel table of {name}: no time was left")
            continue
        watched = Watched(engine)
        try:
            list(lines_of(name, watched, workloads, 1, tiny=options.tiny))
        except Exception as error:
            record["notes"].append(f"no kernel table of {name}: {type(error).__name__}: {error}"[:300])
        record["profile"] |= {f"{name}{kind}": table(seen) for kind, seen in watched.longest.items()}
        out.write_text(json.dumps(record), encoding="utf-8")


def notes(part: str, engine: Any) -> list[str]:
    """What a reader must know about this part."""
    if part == "transformers":
        return [f"version {engine.version}, attention {engine.attention}"]
    from radicel.runtime.engine_config import EngineConfig

    if part == "serial" and not hasattr(EngineConfig(), "overlap"):
        return ["this version has no overlap of steps, so that nothing is off here"]
    return []


def load(path: Path | None) -> ModuleType | None:
    """The workload file as a module."""
    if path is None:
        return None
    spec = importlib.util.spec_from_file_location("workloads", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise SystemExit(f"--workloads: {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def merged(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """One run of several: of each part the workloads of the later ones replace those of the earlier."""
    result = {**runs[0], "parts": {}}
    for run in runs:
        for part, record in run["parts"].items():
            before = result["parts"].get(part)
            if before is None or "lines" not in before:
                result["parts"][part] = record
            elif "lines" in record:
                new = {line["workload"] for line in record["lines"]}
                kept = [line for line in before["lines"] if line["workload"] not in new]
                failed = {name: why for name, why in before["failed"].items() if name not in new}
                result["parts"][part] = {
                    "lines": kept + record["lines"],
                    "failed": {**failed, **record["failed"]},
                    "notes": list(dict.fromkeys([*before["notes"], *record["notes"]])),
                    "profile": {**before["profile"], **record["profile"]},
                }
    return result


def write(run: dict[str, Any], out: Path) -> None:
    """The JSON and the page made from it."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix(".json").write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")
    out.with_suffix(".md").write_text(markdown(run), encoding="utf-8")


def surroundings() -> dict[str, Any]:
    """The device and the versions."""
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"no GPU, {platform.machine()}"
    found = {"python": platform.python_version()}
    for name in VERSIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"device": device, "versions": found}


def parsed(text: str) -> Any:
    """JSON, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
