"""Rotary position embedding: what a config says of it, and the tables of cosines and sines.

In: a config's rope parameters, the longest context. Out: a `RopeConfig`, then tables on the device. Kinds whose
frequencies depend on how long a text gets ("longrope") choose them once, from the model's context length: the length
of a text is not known while it is written, and keys in the cache must not turn with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import ModelError, UnsupportedModelError

__all__ = ["NO_ROPE", "ROPE_KINDS", "RopeConfig", "halves_in_the_middle", "read_rope", "rope_tables"]

Tensor = torch.Tensor

ROPE_KINDS = ("default", "linear", "dynamic", "llama3", "longrope", "yarn")


@dataclass(frozen=True)
class RopeConfig:
    """How positions turn into angles.

    Attributes:
        kind: one of `ROPE_KINDS`, or "none": positions change nothing.
        theta: base of the frequencies.
        factor: by how much long wavelengths are stretched ("linear": all of them).
        low_freq_factor, high_freq_factor: the borders of the stretch ("llama3"; "yarn": its slow and fast beta).
        original_context: longest text of the training before the stretch.
        dim: how many numbers of a head are turned, from its first; 0 for all.
        short_factors, long_factors: what divides each frequency ("longrope"), in contexts up to the original one,
            and beyond.
        amplitude: factor of cosines and sines ("longrope", "yarn").
        truncate: whether the borders are rounded to whole pairs ("yarn").
    """

    kind: str = "default"
    theta: float = 10000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192
    dim: int = 0
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    amplitude: float = 1.0
    truncate: bool = True


NO_ROPE = RopeConfig("none")


def read_rope(params: Mapping[str, Any] | None, *, context: int, head_dim: int, architecture: str) -> RopeConfig:
    """From the rope parameters of a transformers config; `context` is its `max_position_embeddings`.

    Raises:
        UnsupportedModelError: a kind that we do not compute.
        ModelError: factors that do not fit the head.
    """
    rope = dict(params or {})
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ROPE_KINDS:
        known = ", ".join(ROPE_KINDS)
        raise UnsupportedModelError(f"{architecture}: rotary embedding {rope!r} is not supported; known types: {known}")
    original = int(rope.get("original_max_position_embeddings") or context)
    factor = float(rope.get("factor") or (context / original if kind in ("longrope", "yarn") else 1.0))
    dim = int(head_dim * (rope.get("partial_rotary_factor") or 1.0))
    short, long = (tuple(map(float, rope.get(name) or ())) for name in ("short_factor", "long_factor"))
    if dim % 2 or (kind == "longrope" and not len(short) == len(long) == dim // 2):
        raise ModelError(f"{architecture}: rotary embedding {rope!r} does not fit a head of {head_dim} numbers")
    yarn = kind == "yarn"
    return RopeConfig(
        # "dynamic" (NTK) stretches beyond max_position_embeddings, which no context of ours exceeds.
        kind="default" if kind == "dynamic" else kind,
        theta=float(rope.get("rope_theta", 10000.0)),
        factor=factor,
        low_freq_factor=float(rope.get("beta_slow") or 1.0) if yarn else float(rope.get("low_freq_factor", 1.0)),
        high_freq_factor=float(rope.get("beta_fast") or 32.0) if yarn else float(rope.get("high_freq_factor", 4.0)),
        original_context=original,
        dim=0 if dim == head_dim else dim,
        short_factors=short,
        long_factors=long,
        amplitude=_amplitude(rope, kind, factor, original),
        truncate=bool(rope.get("truncate", True)),
    )


def rope_tables(
    rope: RopeConfig, head_dim: int, positions: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of every position, [positions, head_dim] each, for `kernels.reference.rotary_store`.

    The angles are computed in float32 whatever the model's dtype: a bfloat16 angle would be off by whole turns. Where
    only part of a head is turned, the first pairs are (see `halves_in_the_middle`), and the others stay as they are.
    """
    frequencies = _frequencies(rope, rope.dim or head_dim, positions)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    cos, sin = torch.ones(positions, head_dim // 2), torch.zeros(positions, head_dim // 2)
    cos[:, : len(frequencies)] = angles.cos() * rope.amplitude
    sin[:, : len(frequencies)] = angles.sin() * rope.amplitude
    return (
        torch.cat((cos, cos), -1).to(device, dtype),
        torch.cat((-sin, sin), -1).to(device, dtype),
    )


def halves_in_the_middle(head_dim: int, turned: int) -> list[int]:
    """The order of a head's numbers in which those that are turned together lie half a head apart.

    A checkpoint that turns the first `turned` numbers pairs i with i + turned/2; `rotary_store` pairs i with
    i + head_dim/2. Queries and keys in the same new order have the same products.
    """
    pair, half = turned // 2, head_dim // 2
    rest = list(range(turned, head_dim))
    first, second = rest[: half - pair], rest[half - pair :]
    return [*range(pair), *first, *range(pair, turned), *second]


def _frequencies(rope: RopeConfig, dim: int, context: int) -> Tensor:
    """float32 [dim / 2], radians per position of each pair."""
    if rope.kind == "none":
        return torch.empty(0)
    waves = rope.theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    plain = 1.0 / waves
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "llama3":
        return _llama3(rope, plain)
    if rope.kind == "longrope":
        factors = rope.long_factors if context > rope.original_context else rope.short_factors
        return 1.0 / (torch.tensor(factors, dtype=torch.float32) * waves)
    if rope.kind == "yarn":
        return _yarn(rope, waves, dim)
    return plain


def _llama3(rope: RopeConfig, plain: Tensor) -> Tensor:
    """Llama 3.1: wavelengths beyond the original context are stretched, short ones kept, those between blended."""
    waves = 2 * math.pi / plain
    longest_kept = rope.original_context / rope.high_freq_factor
    shortest_cut = rope.original_context / rope.low_freq_factor
    share = (rope.original_context / waves - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - share) * plain / rope.factor + share * plain
    stretched = torch.where(waves > shortest_cut, plain / rope.factor, plain)
    return torch.where((waves >= longest_kept) & (waves <= shortest_cut), blended, stretched)


def _yarn(rope: RopeConfig, waves: Tensor, dim: int) -> Tensor:
    """YaRN (Peng et al. 2023): pairs that turn often in the original context are kept, slow ones stretched."""

    def pair_of(turns: float) -> float:
        return dim * math.log(rope.original_context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair_of(rope.high_freq_factor), pair_of(rope.low_freq_factor)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = (torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low if high != low else 0.001)
    kept = 1 - ramp.clamp(0, 1)
    return 1.0 / (rope.factor * waves) * (1 - kept) + 1.0 / waves * kept


def _amplitude(rope: Mapping[str, Any], kind: str, factor: float, original: int) -> float:
    if kind not in ("longrope", "yarn"):
        return 1.0
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    if factor <= 1:
        return 1.0
    if kind == "longrope":
        return math.sqrt(1 + math.log(factor) / math.log(original))
    one, all_dims = rope.get("mscale"), rope.get("mscale_all_dim")
    if one and all_dims:
        return (0.1 * float(one) * math.log(factor) + 1) / (0.1 * float(all_dims) * math.log(factor) + 1)
    return 0.1 * math.log(factor) + 1
