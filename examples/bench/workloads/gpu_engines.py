"""The engines that the GPU benchmark drives: Radicel with things on or off, and transformers' continuous batching.

In: a model folder (config and tokenizer; weights are random) and options. Out: what the workload file asks of an
engine: `gen`, `flush`, `name`, `version`, `has_schema`, `has_cache`.
"""

from __future__ import annotations

import importlib
import inspect
import time
from typing import Any

import torch

__all__ = ["ABLATIONS", "MissingError", "Radicel", "TransformersPeer", "make_engine"]

Ids = list[int]

ABLATIONS: dict[str, dict[str, Any]] = {
    "ours": {},
    "flat": {"attention": "flat"},
    "eager": {"cuda_graphs": False},
    "serial": {"overlap": False},
    "uncached": {"prefix_cache": False},
}
"""Part → the keywords of `LocalRuntime` that make it."""


class MissingError(Exception):
    """An engine cannot run here; the message is the line for the page."""


class Radicel:
    """Our runtime with random weights. `has_schema` may be set to False: the constrained workload is left out then."""

    name = "radicel"
    has_schema = True
    has_cache = True

    def __init__(self, model: str, **options: Any) -> None:
        import radicel
        from radicel.runtime import LocalRuntime

        self.version = getattr(radicel, "__version__", "0.1.0")
        self.runtime = LocalRuntime(model, load_format="dummy", **options)

    def gen(self, prompts: list[Ids], max_new: int, schema: dict[str, Any] | None = None) -> list[tuple[Ids, int]]:
        """For each prompt its output ids and how many prompt tokens came from the cache."""
        asked: dict[str, Any] = {"ignore_eos": True}
        if schema is not None:  # too long for the budget on purpose: cut, as the peers cut it
            asked = {"json_schema": schema, "on_budget": "truncate"}
        results = self.runtime.generate(prompts, temperature=0, max_tokens=max_new, **asked)
        return [(list(result.token_ids), result.meta.cached_tokens) for result in results]

    def flush(self) -> None:
        """Empties the prefix cache."""
        self.runtime.flush_cache()

    def close(self) -> None:
        """Ends it."""
        self.runtime.close()


class TransformersPeer:
    """transformers' continuous batching with the best attention that is installed, weights random.

    One manager serves every call, made and warmed up with the first, for the largest workload.
    """

    name = "transformers"
    has_schema = False
    has_cache = True
    ATTENTIONS = ("flash_attention_3", "flash_attention_2", "sdpa")
    LARGEST = (4096, 512, 256)
    """Longest prompt, longest output, most requests."""

    def __init__(self, model: str, *, device: str, dtype: str, memory: float) -> None:
        import transformers

        self.version = transformers.__version__
        self._memory = memory
        config = transformers.AutoConfig.from_pretrained(model)
        self._model, self.attention = self._load(transformers.AutoModelForCausalLM, config, device, dtype)
        if not hasattr(self._model, "init_continuous_batching"):
            raise MissingError(f"transformers {self.version} has no continuous batching")
        self._generation = transformers.GenerationConfig(max_new_tokens=16, do_sample=False, eos_token_id=-1)
        self._manager: Any = None

    def _load(self, auto: Any, config: Any, device: str, dtype: str) -> tuple[Any, str]:
        tried = []
        for name in self.ATTENTIONS:
            try:
                with torch.device(device):
                    made = auto.from_config(config, dtype=getattr(torch, dtype), attn_implementation=name)
                return made.eval(), name
            except (ImportError, ValueError, OSError) as error:
                tried.append(f"{name}: {str(error).splitlines()[0][:80]}")
        raise MissingError("; ".join(tried))

    def gen(self, prompts: list[Ids], max_new: int, schema: dict[str, Any] | None = None) -> list[tuple[Ids, None]]:
        """For each prompt its output ids; what came from the cache is not known."""
        manager = self._running()
        names = manager.add_requests(inputs=[list(ids) for ids in prompts], max_new_tokens=max_new)
        names = list(names) if names is not None else []
        done: dict[str, Any] = {}
        while len(done) < len(prompts):
            result = manager.get_result(timeout=1)
            if result is None:
                if not manager.is_running():
                    raise RuntimeError("transformers' generation thread ended before its requests")
            elif result.is_finished():
                done[result.request_id] = result
                if getattr(result, "error", None):
                    raise RuntimeError(f"a request of transformers failed: {result.error}")
        return [(list(done[name].generated_tokens), None) for name in (names or done)]

    def flush(self) -> None:
        """Nothing: its blocks cannot be dropped, and every repeat has prompts of its own."""

    def close(self) -> None:
        """Ends it."""
        if self._manager is not None:
            self._manager.stop(block=True, timeout=10)

    def _running(self) -> Any:
        if self._manager is None:
            options = _accepted(self._model.init_continuous_batching, self._options())
            self._manager = self._model.init_continuous_batching(generation_config=self._generation, **options)
            if hasattr(self._manager, "warmup"):
                with torch.no_grad():
                    self._manager.warmup()
            self._manager.start()
        return self._manager

    def _options(self) -> dict[str, Any]:
        """What newer versions take: how large the workload is, how much memory there is."""
        found: dict[str, Any] = {}
        package = "transformers.generation"
        hints = _attribute(f"{package}.continuous_batching.utils", "WorkloadHints")
        settings = _attribute(f"{package}.configuration_utils", "ContinuousBatchingConfig")
        if hints is not None:
            longest, new, requests = self.LARGEST
            found["workload_hints"] = hints(max_prompt_length=longest, max_generated_length=new, num_requests=requests)
        if settings is not None:
            sizes: dict[str, Any] = {"max_memory_percent": self._memory}
            if self._model.device.type == "cpu":  # where it cannot find out what fits
                sizes = {"num_blocks": 64, "block_size": 16, "max_batch_tokens": 256}
            found["continuous_batching_config"] = settings(**_accepted(settings, sizes))
        return found


def make_engine(part: str, model: str, *, memory: float, options: dict[str, Any], tiny: bool) -> Any:
    """The engine of a part.

    Raises:
        MissingError: it cannot run here, with the reason.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if part == "transformers":
        dtype = "float32" if device == "cpu" else "bfloat16"
        try:
            return TransformersPeer(model, device=device, dtype=dtype, memory=memory)
        except ImportError as error:
            raise MissingError(f"transformers cannot be imported: {error}") from error
    if part == "flat" and device == "cpu":
        raise MissingError("the Triton kernels need a GPU")
    settings: dict[str, Any] = {"memory_fraction": memory, **ABLATIONS[part], **options}
    if tiny:
        settings = {"kv_tokens": 20_000, **settings}
    began = time.perf_counter()
    engine = Radicel(model, **settings)
    loaded = time.perf_counter()
    engine.runtime.warm_up()
    print(f"# {part}: loaded in {loaded - began:.1f} s, warm in {time.perf_counter() - loaded:.1f} s", flush=True)
    return engine


def _accepted(call: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Those of the options that this version's call has."""
    return {name: value for name, value in options.items() if name in inspect.signature(call).parameters}


def _attribute(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
