"""`LocalRuntime`: a model on this machine, as the backend a user holds.

In: requests of programs (`Backend`) or direct calls (`DirectCalls`). Out: futures, values, text as it appears.
It owns the parts and wires them: prompt → ids (`PromptEncoder`) → sequences → `Engine` → text (`TextStream`).
"""

from __future__ import annotations

import os
import random
import threading
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..backend import (
    GenerateRequest,
    Generation,
    GraphSession,
    Handle,
    OnText,
    PlannedRequest,
    PrefillRequest,
    Score,
    ScoreRequest,
)
from ..encode import PromptEncoder
from ..errors import BackendClosedError, ForkedProcessError, InvalidValueError
from ..prompt import EncodedPrompt, Prompt
from ..sampling import SamplingParams
from . import hub
from .assembly import (
    SequenceMaker,
    deadline_of,
    engine_config,
    make_runner,
    make_sinks,
    read_json,
    shut_down,
)
from .budget import check_budget
from .config import RuntimeConfig
from .defaults import model_defaults, resolve_sampling
from .direct import DirectCalls
from .encoded_ahead import PromptIds
from .engine import Engine
from .grammar import CompiledGrammar, GrammarCompiler
from .graph_session import Launch, LocalGraphSession
from .healing import Healer
from .inputs import PromptInput
from .request import ResolvedSampling, Sequence
from .results import Collector, generations, scores
from .stats import RuntimeStats
from .together import Together
from .token_buffer import IdList
from .tokenizer import Tokenizer
from .warm_up_bar import warm_up_bar

if TYPE_CHECKING:
    from ..constraint import Constraint

__all__ = ["LocalRuntime"]


class LocalRuntime(DirectCalls):
    """A model on this machine. A context manager and a `Backend`; used from many threads and event loops at once.

    Args:
        model: None (the embedded one), a name `radicel pull` knows, a Hugging Face folder, a `.gguf` file or a hub id.
        device: "auto" (the first GPU, else the CPU), "cpu", "cuda", "cuda:1".
        dtype: "auto" (float32 on a CPU, else the checkpoint's own), "float32", "bfloat16", "float16", "float64".
        memory_fraction: share of the device's free memory that weights and KV cache may take, in (0, 1].
        kv_tokens: tokens the KV pool holds; None: what fits.
        context_length: most tokens of prompt and output together; None: the model's own limit.
        max_running: most sequences in one step.
        prefill_chunk: most prompt tokens computed in one step, and 1/32 more where that ends a prompt.
        policy: order of admission: "prefix" (longest cached prefix first, with ageing) or "fcfs".
        prefix_cache: whether prefixes are shared and kept.
        leases: whether the cache looks ahead at what the requests of a batch will need; texts are the same without.
        cuda_graphs: whether decode steps are replayed as CUDA graphs where the device and this version can.
        overlap: whether CPU work of a step runs while the device computes.
        forced_runs: whether text that the grammar leaves no choice about enters as one run instead of a step a token.
        attention: "auto" or the name of an attention path (`runtime/attention/`).
        chat_template: Jinja text or a file of it; None: the tokenizer's own.
        template_kwargs: passed on to the chat template, e.g. `{"enable_thinking": False}`.
        seed: makes the seeds of requests that name none reproducible, in order of submission.
        trust_remote_code: whether the tokenizer's folder may run its own Python code.
        load_format: "auto", or "dummy" for random weights of the folder's config (benchmarks).
        weights: "auto" (as they are); "int4", on a CPU, rounds matrices to four bits (`dtype` "auto": bfloat16 then).
        check_invariants: whether every step ends with the engine's invariant checks (tests).
        deterministic: whether tokens and logprobs are the same bits whatever else runs (`docs/sampling.md`).

    Raises:
        ModelNotFoundError, UnsupportedModelError, WeightsError: the model cannot be found, run or read.
        InvalidValueError: a keyword's value, or a device that is not there.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        memory_fraction: float = 0.9,
        kv_tokens: int | None = None,
        context_length: int | None = None,
        max_running: int = 256,
        prefill_chunk: int = 8192,
        policy: str = "prefix",
        prefix_cache: bool = True,
        leases: bool = True,
        cuda_graphs: bool = True,
        overlap: bool = True,
        forced_runs: bool = True,
        attention: str = "auto",
        chat_template: str | Path | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        seed: int | None = None,
        trust_remote_code: bool = False,
        load_format: str = "auto",
        weights: str = "auto",
        check_invariants: bool = False,
        deterministic: bool = False,
    ) -> None:
        said = {k: v for k, v in locals().items() if k not in ("self", "template_kwargs", "__class__")}
        self.config = RuntimeConfig(**said, template_kwargs=dict(template_kwargs or {}))
        self._pid = os.getpid()
        self._closed = False
        self._lock = threading.Lock()
        self._seeds = random.Random(seed)
        folder = hub.resolve(self.config.model)
        self._generation_config = read_json(folder / "generation_config.json")
        self._defaults = model_defaults(self._generation_config)
        self._tokenizer = Tokenizer.load(folder, chat_template=chat_template, trust_remote_code=trust_remote_code)
        self._encoder = PromptEncoder(self._tokenizer, template_kwargs=self.config.template_kwargs)
        self._end_ids = self._tokenizer.eos_ids(self._generation_config)
        self._runner = make_runner(folder, self.config, self._tokenizer.vocab_size)
        self._grammars = GrammarCompiler(
            self._tokenizer.all_token_bytes(),
            vocab_size=self._runner.vocab_size,
            end_ids=self._end_ids,
            hf_tokenizer=self._tokenizer.hf,
            special_ids=frozenset(i for i in range(self._tokenizer.vocab_size) if self._tokenizer.is_special(i)),
            exact=deterministic,
        )
        self._ids = PromptIds(self._encoder, self._runner.vocab_size)
        self._healer = Healer(self._tokenizer, self._runner.vocab_size)
        self._engine = Engine(self._runner, engine_config(self.config))
        self._engine.start()
        # Runs once: at `close`, when the last reference goes, or at the interpreter's end.
        self._shut_down = weakref.finalize(self, shut_down, self._pid, self._engine, self._grammars, self._runner)

    # ── Backend ──────────────────────────────────────────────────────────────────────────────────────────────────

    def submit(self, request: GenerateRequest, on_text: OnText | None = None) -> Handle[list[Generation]]:
        """Starts a generation (`Backend.submit`)."""
        return self.submit_input(request.prompt, request.sampling, request.constraint, on_text)

    def submit_input(
        self,
        prompt: PromptInput,
        sampling: SamplingParams,
        constraint: Constraint | None = None,
        on_text: OnText | None = None,
        launch: Launch | None = None,
    ) -> Handle[list[Generation]]:
        """Starts a generation after a prompt in parts, or after ids taken as they are.

        Args:
            launch: takes its sequences instead of the engine.

        Raises:
            BackendClosedError, EngineDeadError, ForkedProcessError: it cannot run.
            ContextLengthError, SamplingError, ConstraintError, ChatTemplateError: the request is wrong. (A constraint
                that compiles slowly fails through the handle.)
        """
        self._check_alive()
        ids, reencoded = self._ids.of(prompt)
        fits = len(ids) < self._runner.context_length
        healed = self._healer.heal(prompt, ids, sampling) if fits else None
        room = self._runner.context_length - len(ids)
        check_budget(sampling, constraint, self._grammars.vocabulary, room=room, crossing=healed is not None)
        if healed is not None:
            ids = IdList.of(healed.ids)
            constraint = None if constraint is None else healed.constrained(constraint)
        samples = resolve_sampling(
            sampling,
            defaults=self._defaults,
            prompt_len=len(ids),
            context_length=self._runner.context_length,
            vocab_size=self._tokenizer.vocab_size,
            end_ids=self._end_ids,
            seed=self._next_seed(),
        )
        sinks = make_sinks(self._tokenizer, sampling, len(samples), on_text, ids, healed)
        collector = Collector(
            len(samples),
            lambda results: generations(
                results,
                sinks,
                prompt_tokens=len(ids),
                reencoded=reencoded,
                tokenizer=self._tokenizer,
                with_texts=bool(sampling.return_text_in_logprobs),
                with_top=bool(sampling.top_logprobs),
                with_logprobs=bool(sampling.logprobs),
            ),
        )
        healing = None if healed is None else (healed, self._healer)
        start = None if sampling.logprob_start_len is None else min(sampling.logprob_start_len, len(ids))
        make = SequenceMaker(ids, samples, collector, sinks, sampling, start, healing)
        launch = launch or self._start
        if constraint is None:
            launch(collector, make(None))
        else:
            self._start_compiled(constraint, collector, make, launch)
        return Handle(collector.future, collector.cancel)

    def together(self) -> Together:
        """Takes the sequences of many requests (`submit_input(launch=…)`), which then start together."""
        return Together(self._engine)

    def submit_score(self, request: ScoreRequest, launch: Launch | None = None) -> Handle[list[Score]]:
        """Starts a scoring (`Backend.submit_score`): one sequence per continuation, which share all but their ends."""
        self._check_alive()
        texts = request.continuations
        if not texts:
            raise InvalidValueError("score: no continuations were given; give at least one")
        wholes = self._encoder.encode_continuations(request.prompt, texts)
        ends = request.score_end or (False,) * len(texts)
        plans = [(list(ids), start, end) for (ids, start), end in zip(wholes, ends)]
        if request.unconditional:
            bos = self._bos_for_scoring()
            plans += [([bos, *ids[start:]], 1, False) for ids, start in wholes]
        collector: Collector[list[Score]] = Collector(
            len(plans), lambda results: scores(results, texts, wholes, unconditional=request.unconditional)
        )
        sequences = [self._score_sequence(*plan, request.sampling, collector) for plan in plans]
        (launch or self._start)(collector, sequences)
        return Handle(collector.future, collector.cancel)

    def submit_prefill(self, prompt: Prompt) -> Handle[int]:
        """Computes a prompt ahead (`Backend.submit_prefill`)."""
        return self._submit_prefill(PrefillRequest(prompt), self._start)

    def open_graph(self) -> GraphSession:
        """Begins a graph of requests (`GraphBackend.open_graph`)."""
        self._check_alive()
        return LocalGraphSession(self, self._engine)

    def begin(self, planned: PlannedRequest, launch: Launch) -> Handle[Any]:
        """Makes the sequences of one request of a graph; `launch` takes them."""
        request = planned.request
        if isinstance(request, GenerateRequest):
            return self.submit_input(request.prompt, request.sampling, request.constraint, planned.on_text, launch)
        if isinstance(request, ScoreRequest):
            return self.submit_score(request, launch)
        return self._submit_prefill(request, launch)

    def encode(self, prompt: Prompt) -> EncodedPrompt:
        """The ids that a request with this prompt starts from."""
        return self._ids.ahead(prompt)

    def render(self, prompt: Prompt) -> str:
        """The text that the model sees for this prompt, the template's markup included."""
        return self._encoder.render(prompt)

    def flush_cache(self) -> None:
        """Drops every cached prefix that no live request holds."""
        self._check_alive()
        self._engine.flush_cache()

    def warm_up(self) -> None:
        """Captures all CUDA graphs now, not each when a step first needs it; with a progress bar on a terminal."""
        self._check_alive()
        with warm_up_bar() as progress:
            self._engine.between_steps(lambda: self._runner.warm_up(progress))

    def close(self) -> None:
        """Ends the engine and frees the device's memory; requests in flight fail with `BackendClosedError`."""
        self._closed = True
        self._shut_down()

    # ── what a user looks at ─────────────────────────────────────────────────────────────────────────────────────

    @property
    def tokenizer(self) -> Any:
        """The transformers tokenizer."""
        return self._tokenizer.hf

    @property
    def max_running(self) -> int:
        """Most sequences in one step."""
        return self.config.max_running

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and output together."""
        return self._runner.context_length

    @cached_property
    def vocabulary(self) -> frozenset[bytes]:
        """What the tokens spell: for checks ahead of a run."""
        return frozenset(self._tokenizer.all_token_bytes())

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to a text; of a special token its spelling."""
        return self._tokenizer.token_bytes(token_id)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's keys and values in all layers."""
        return self._runner.kv_bytes_per_token

    def stats(self) -> RuntimeStats:
        """What the engine holds now and has done since the start; token counts, seconds, shares."""
        return self._engine.stats()

    def check(self) -> None:
        """Runs the engine's invariant checks between two steps; raises AssertionError naming the one that fails."""
        self._engine.check()

    def __enter__(self) -> LocalRuntime:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<LocalRuntime {self.config.model or 'embedded model'}{' closed' if self._closed else ''}>"

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _check_alive(self) -> None:
        if self._pid != os.getpid():
            raise ForkedProcessError(
                f"this runtime was made in process {self._pid} and is used in its child {os.getpid()}, without "
                "its threads; make one in the child, or start the child with the 'spawn' method"
            )
        if self._closed:
            raise BackendClosedError("this runtime was closed; make a new LocalRuntime")

    def _bos_for_scoring(self) -> int:
        bos = self._tokenizer.bos_id
        if bos is None:
            raise InvalidValueError(
                "unconditional_likelihood_normalized scores each choice with nothing before it, from a BOS token; this "
                "tokenizer has none. Use joint_likelihood or token_length_normalized"
            )
        return bos

    def _next_seed(self) -> int:
        with self._lock:
            return self._seeds.getrandbits(62)

    def _score_sequence(
        self, ids: list[int], start: int, end: bool, sampling: SamplingParams, collector: Collector[list[Score]]
    ) -> Sequence:
        return Sequence(
            ids,
            ResolvedSampling(max_tokens=0),
            collector,
            logprob_start=start,
            score_end_ids=self._end_ids if end else None,
            priority=sampling.priority or 0,
            deadline=deadline_of(sampling),
        )

    def _start(self, collector: Collector[Any], sequences: list[Sequence]) -> None:
        if collector.watch(sequences, self._engine.cancel):
            self._engine.submit(sequences)

    def _submit_prefill(self, request: PrefillRequest, launch: Launch) -> Handle[int]:
        self._check_alive()
        ids, _ = self._ids.of(request.prompt)
        collector: Collector[int] = Collector(1, lambda _: len(ids))
        priority, deadline = request.sampling.priority or 0, deadline_of(request.sampling)
        one = Sequence(ids, ResolvedSampling(max_tokens=0), collector, priority=priority, deadline=deadline)
        launch(collector, [one])
        return Handle(collector.future, collector.cancel)

    def _start_compiled(
        self, constraint: Constraint, collector: Collector[Any], make: SequenceMaker, launch: Launch
    ) -> None:
        """Submits once the grammar is there: at once for one in the cache, else from the compiler's thread."""
        compiling = self._grammars.submit(constraint)
        if compiling.done():
            launch(collector, make(compiling.result()))
            return

        def compiled(future: Future[CompiledGrammar]) -> None:
            try:
                launch(collector, make(future.result()))
            except Exception as error:
                collector.fail(error)

        compiling.add_done_callback(compiled)
