"""Checkpoint names that families share, by part: a family's `WEIGHTS` puts together what it has.

In: nothing. Out: tables of checkpoint name → place, as `CausalLM.WEIGHTS` says. A bias or a head that a config does not
have drops its line, so that a part lists all that any family has.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["ATTENTION", "ENDS", "HEAD_NORMS", "MLP", "PRE_NORMS"]

ENDS: Mapping[str, str] = {
    "model.embed_tokens.weight": "embed",
    "model.norm.weight": "norm",
    "lm_head.weight": "lm_head",
}
PRE_NORMS: Mapping[str, str] = {
    "model.layers.{}.input_layernorm.weight": "layers.{}.input_norm",
    "model.layers.{}.post_attention_layernorm.weight": "layers.{}.post_norm",
}
ATTENTION: Mapping[str, str] = {
    "model.layers.{}.self_attn.q_proj.weight": "layers.{}.qkv[q]",
    "model.layers.{}.self_attn.k_proj.weight": "layers.{}.qkv[k]",
    "model.layers.{}.self_attn.v_proj.weight": "layers.{}.qkv[v]",
    "model.layers.{}.self_attn.o_proj.weight": "layers.{}.o",
    "model.layers.{}.self_attn.q_proj.bias": "layers.{}.qkv_bias[q]",
    "model.layers.{}.self_attn.k_proj.bias": "layers.{}.qkv_bias[k]",
    "model.layers.{}.self_attn.v_proj.bias": "layers.{}.qkv_bias[v]",
    "model.layers.{}.self_attn.o_proj.bias": "layers.{}.o_bias",
}
HEAD_NORMS: Mapping[str, str] = {
    "model.layers.{}.self_attn.q_norm.weight": "layers.{}.q_norm",
    "model.layers.{}.self_attn.k_norm.weight": "layers.{}.k_norm",
}
MLP: Mapping[str, str] = {
    "model.layers.{}.mlp.gate_proj.weight": "layers.{}.gate_up[gate]",
    "model.layers.{}.mlp.up_proj.weight": "layers.{}.gate_up[up]",
    "model.layers.{}.mlp.down_proj.weight": "layers.{}.down",
    "model.layers.{}.mlp.gate_proj.bias": "layers.{}.gate_up_bias[gate]",
    "model.layers.{}.mlp.up_proj.bias": "layers.{}.gate_up_bias[up]",
    "model.layers.{}.mlp.down_proj.bias": "layers.{}.down_bias",
}
