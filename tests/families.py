"""Tiny random models of more families of language models: hybrids, mixtures of experts, and variants of a Llama.

`tests/architectures.py` has those that every test of architectures runs over; these are compiled and compared once
for each method.
"""

from __future__ import annotations

from typing import Any

from tests.architectures import WINDOW, Architecture, _decoder
from tests.models import VOCAB_SIZE

_TWO_KINDS = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
_SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_chunk_size": 4}
_DELTA = {
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
_LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}


def _family(name: str, model_type: str, features: str, num_sites: int, **options: Any) -> Architecture:
    return Architecture(name, model_type, _decoder(**options), features, num_sites)


def _gpt(name: str, model_type: str, features: str, num_sites: int, **options: Any) -> Architecture:
    sizes = {"vocab_size": VOCAB_SIZE, "n_embd": 32, "n_inner": 48, "n_layer": 1, "n_head": 4, "n_positions": 64}
    return Architecture(name, model_type, {**sizes, **_SPECIAL, **options}, features, num_sites)


DENSE = (
    _family("Qwen2.5", "qwen2", "q/k/v biases", 7),
    _family("Gemma", "gemma", "norms that add 1, tied embeddings", 7, head_dim=12),
    _family("Gemma 4", "gemma4_text", "embeddings for each layer, norms of values, scaled blocks", 19,
            **_TWO_KINDS, head_dim=12, global_head_dim=12, vocab_size_per_layer_input=VOCAB_SIZE,
            hidden_size_per_layer_input=8, num_kv_shared_layers=0),
    _family("Phi", "phi", "parallel residual, partial RoPE, biases, LayerNorm", 6, partial_rotary_factor=0.5),
    _family("Ministral", "ministral", "local and global attention", 14, **_TWO_KINDS, head_dim=8),
    _family("Ministral 3", "ministral3", "queries scaled by position", 7, head_dim=8),
    _family("OLMo", "olmo", "LayerNorm without weights", 7),
    _family("OLMo 2", "olmo2", "norms after each part, q/k norms", 7),
    _family("OLMo 3", "olmo3", "the same with local and global attention", 14, **_TWO_KINDS),
    _family("EXAONE 4", "exaone4", "norms after each part, global layers without RoPE", 14, **_TWO_KINDS),
    _family("Cohere", "cohere", "parallel residual, RoPE over pairs, LayerNorm, scaled logits", 7),
    _family("Cohere 2", "cohere2", "the same with local and global attention", 14, **_TWO_KINDS),
    _family("ERNIE 4.5", "ernie4_5", "RoPE over pairs", 7, head_dim=8),
    _family("GLM", "glm", "partial RoPE over pairs, fused gate_up", 6, head_dim=8),
    _family("GLM 4", "glm4", "the same with norms around each part", 6, head_dim=8),
    _family("Helium", "helium", "RoPE over pairs", 7, head_dim=8),
    _family("Hunyuan", "hunyuan_v1_dense", "q/k norms after RoPE", 7, head_dim=8),
    _family("StableLM", "stablelm", "partial RoPE, LayerNorm", 7, partial_rotary_factor=0.5),
    _family("StarCoder 2", "starcoder2", "biases, LayerNorm, GELU without a gate", 6, use_bias=True),
    _family("Nemotron", "nemotron", "squared ReLU, LayerNorm that adds 1, partial RoPE", 6, partial_rotary_factor=0.5),
    _family("NanoChat", "nanochat", "squared ReLU, norms without weights, soft cap", 6),
    _family("Arcee", "arcee", "squared ReLU", 6, head_dim=8),
    _family("Persimmon", "persimmon", "qkv fused by head, squared ReLU", 4, partial_rotary_factor=0.5),
    _family("Seed-OSS", "seed_oss", "q/k/v biases", 7, head_dim=8),
    _family("InternLM 3", "internlm3", "biases by option", 7, head_dim=8),
    _family("VaultGemma", "vaultgemma", "Gemma 2 without norms after parts", 14, **_TWO_KINDS, head_dim=12),
    _gpt("GPT-J", "gptj", "parallel residual, RoPE over pairs", 6, rotary_dim=4),
    _gpt("CodeGen", "codegen", "the same with fused qkv", 4, rotary_dim=4, n_ctx=64),
)  # fmt: skip
HYBRID = (
    _family("LFM2", "lfm2", "short convolutions among attention", 12,
            num_hidden_layers=2, layer_types=["conv", "full_attention"], block_ff_dim=48,
            block_auto_adjust_ff_dim=False),
    _family("Granite 4", "granitemoehybrid", "Mamba 2 among attention", 10,
            num_hidden_layers=2, layer_types=["mamba", "attention"], num_local_experts=0, shared_intermediate_size=48,
            mamba_n_groups=1, mamba_expand=2, **_MAMBA),
    _family("Bamba", "bamba", "Mamba 2 among attention", 12,
            num_hidden_layers=2, attn_layer_indices=[1], mamba_n_groups=1, mamba_expand=2, **_MAMBA),
    _family("Falcon-H1", "falcon_h1", "Mamba 2 beside attention, multipliers", 9,
            mamba_d_ssm=32, **{**_MAMBA, "mamba_n_heads": 4}),
    _family("Qwen3.5", "qwen3_5_text", "gated delta rule among gated attention", 15, **_DELTA),
    Architecture("Mamba 2", "mamba2",
                 {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "num_hidden_layers": 1, "num_heads": 8, "head_dim": 8,
                  "state_size": 8, "n_groups": 1, "expand": 2, "chunk_size": 4, **_SPECIAL}, "no attention", 2),
)  # fmt: skip
# Routers choose outside the delegate, so each such layer splits it.
EXPERTS = (
    _family("Qwen3 MoE", "qwen3_moe", "experts", 4, head_dim=8, moe_intermediate_size=16, **_EXPERTS),
    _family("OLMoE", "olmoe", "experts", 4, **_EXPERTS),
    _family("Granite MoE", "granitemoe", "experts", 4, **_LOCAL_EXPERTS),
    _family("Mixtral", "mixtral", "experts", 4, head_dim=8, **_LOCAL_EXPERTS),
    _family("ERNIE 4.5 MoE", "ernie4_5_moe", "experts, one of them shared", 7,
            moe_num_experts=4, moe_k=2, moe_intermediate_size=16, moe_layer_start_index=0, moe_num_shared_experts=1),
    _family("Qwen3-Next", "qwen3_next", "experts, gated delta rule among attention", 15,
            shared_expert_intermediate_size=16, moe_intermediate_size=16, **_EXPERTS, **_DELTA),
)  # fmt: skip
FAMILIES = (*DENSE, *HYBRID, *EXPERTS)
_GEMMA_3N = {
    **_TWO_KINDS,
    "head_dim": 12,
    "vocab_size_per_layer_input": VOCAB_SIZE,
    "hidden_size_per_layer_input": 8,
    "laurel_rank": 8,
    "num_kv_shared_layers": 0,
    "intermediate_size": [48, 48],
    "activation_sparsity_pattern": [0.5, 0.0],
}
_LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
    "v_head_dim": 8,
}  # fmt: skip
_ROUTED = {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 16, "n_group": 1,
    "topk_group": 1,
}  # fmt: skip
# These have ops without a derivative here, or attention that no pass knows; they train by measured losses.
MEASURED = (
    _family("Gemma 3n", "gemma3n_text", "alternating updates, low-rank residuals, sparse activations", 33, **_GEMMA_3N),
    _family("MiniCPM 3", "minicpm3", "latent attention", 8, **_LATENT),
    _family("DeepSeek V3", "deepseek_v3", "latent attention, experts", 8,
            num_hidden_layers=1, first_k_dense_replace=1, **_LATENT, **_ROUTED),
    _family("GLM 4 MoE", "glm4_moe", "experts", 7, head_dim=8, first_k_dense_replace=0, **_ROUTED),
    Architecture("BLOOM", "bloom", {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "n_layer": 1, "n_head": 4, **_SPECIAL},
                 "ALiBi, qkv fused by head", 4),
    Architecture("MPT", "mpt", {"vocab_size": VOCAB_SIZE, "d_model": 32, "n_heads": 4, "n_layers": 1, "max_seq_len": 64,
                                **_SPECIAL}, "ALiBi, fused qkv", 4),
    Architecture("XGLM", "xglm", {"vocab_size": VOCAB_SIZE, "d_model": 32, "ffn_dim": 48, "num_layers": 1,
                                  "attention_heads": 4, "max_position_embeddings": 64, **_SPECIAL},
                 "sinusoidal positions", 6),
    _family("DiffLlama", "diffllama", "differences of attentions", 7),
)  # fmt: skip


def family(name: str) -> Architecture:
    """The family called `name`."""
    return next(each for each in (*FAMILIES, *MEASURED) if each.name == name)
