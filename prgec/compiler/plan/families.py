"""The shape of a block by `model_type`, beyond the numbers of config.json: one row a family."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Family:
    """How the blocks of one `model_type` are built.

    Attributes:
        norm: `rms` or `layer`.
        is_gated: Whether the MLP multiplies a gate with what goes up.
        activation: Where config.json names none.
        rotary: Share of a head that is rotated; 0 for learned positions.
        is_tied: Whether the head is the embedding where config.json does not say.
        has_post_norms: Whether attention and MLP are normalised once more after their last layer.
        has_qk_norms: Whether queries and keys are normalised.
        fused: Layers that are one in the checkpoint, as the names of their parts.
        is_fused_by_head: Whether a fused layer has the three of one head after those of another.
        is_parallel: Whether attention and MLP read the same stream; config.json may say otherwise.
        has_groups: Whether there may be fewer key heads than query heads.
        keys: Names config.json has for what others call by the first name.
    """

    norm: str = "rms"
    is_gated: bool = True
    activation: str = "silu"
    rotary: float = 1.0
    is_tied: bool = False
    has_post_norms: bool = False
    has_qk_norms: bool = False
    fused: tuple[tuple[str, ...], ...] = ()
    is_fused_by_head: bool = False
    is_parallel: bool = False
    has_groups: bool = True
    keys: tuple[tuple[str, str], ...] = ()


QKV = ("q", "k", "v")
GATE_UP = ("gate", "up")
_GPT2_KEYS = (
    ("hidden_size", "n_embd"),
    ("num_hidden_layers", "n_layer"),
    ("num_attention_heads", "n_head"),
    ("intermediate_size", "n_inner"),
    ("max_position_embeddings", "n_positions"),
)

FAMILIES: dict[str, Family] = {
    "llama": Family(),
    "mistral": Family(),
    "granite": Family(),
    "qwen2": Family(),
    "smollm3": Family(is_tied=True),
    "qwen3": Family(has_qk_norms=True),
    "phi3": Family(fused=(QKV, GATE_UP)),
    "gemma": Family(activation="gelu_pytorch_tanh", is_tied=True),
    "gemma2": Family(activation="gelu_pytorch_tanh", is_tied=True, has_post_norms=True),
    "gemma3_text": Family(activation="gelu_pytorch_tanh", is_tied=True, has_post_norms=True, has_qk_norms=True),
    "opt": Family(
        norm="layer",
        is_gated=False,
        activation="relu",
        rotary=0.0,
        is_tied=True,
        has_groups=False,
        keys=(("intermediate_size", "ffn_dim"),),
    ),
    "gpt2": Family(
        norm="layer",
        is_gated=False,
        activation="gelu_new",
        rotary=0.0,
        is_tied=True,
        has_groups=False,
        fused=(QKV,),
        keys=_GPT2_KEYS,
    ),
    "gpt_neox": Family(
        norm="layer",
        is_gated=False,
        activation="gelu",
        rotary=0.25,
        fused=(QKV,),
        is_fused_by_head=True,
        is_parallel=True,
        has_groups=False,
    ),
}
