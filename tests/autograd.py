"""Gradients of LoRA-FA on an unmodified Hugging Face model, by PyTorch's autograd: what a compiled program must find.

Branches are forward hooks on the model's own layers. Nothing is shared with the compiler but `lora_a`, which defines
the random numbers of A.

Letters: B examples, T tokens, K label positions, V vocabulary, D input width, O output width, r rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prgec.runtime_ops.lora import lora_a

IGNORED = -100


@dataclass(frozen=True)
class Stream:
    """How an architecture's blocks write to the residual stream.

    Attributes:
        blocks: Module path of the blocks.
        written_by: Layer that writes -> module whose output is added: the layer itself, or the norm after it.
    """

    blocks: str
    written_by: Mapping[str, str]

    def written_below(self, block: int) -> dict[str, str]:
        """Return the same by whole paths, for all blocks below one."""
        return {
            f"{self.blocks}.{n}.{layer}": f"{self.blocks}.{n}.{module}"
            for n in range(block)
            for layer, module in self.written_by.items()
        }


_LLAMA = Stream("model.layers", {"self_attn.o_proj": "self_attn.o_proj", "mlp.down_proj": "mlp.down_proj"})
_GEMMA = Stream(
    "model.layers", {"self_attn.o_proj": "post_attention_layernorm", "mlp.down_proj": "post_feedforward_layernorm"}
)
_GPT_J = Stream("transformer.h", {"attn.out_proj": "attn.out_proj", "mlp.fc_out": "mlp.fc_out"})
# By `model_type`.
STREAMS = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "phi3", "smollm3", "granite"), _LLAMA),
    **dict.fromkeys(("gemma", "ministral", "ministral3", "olmo", "cohere", "cohere2", "ernie4_5", "glm"), _LLAMA),
    **dict.fromkeys(("helium", "hunyuan_v1_dense", "stablelm", "nemotron", "nanochat", "arcee"), _LLAMA),
    **dict.fromkeys(("seed_oss", "internlm3", "vaultgemma"), _LLAMA),
    **dict.fromkeys(("gemma2", "gemma3_text", "olmo2", "olmo3", "exaone4"), _GEMMA),
    **dict.fromkeys(("gptj", "codegen"), _GPT_J),
    "glm4": Stream(
        "model.layers", {"self_attn.o_proj": "post_self_attn_layernorm", "mlp.down_proj": "post_mlp_layernorm"}
    ),
    "starcoder2": Stream("model.layers", {"self_attn.o_proj": "self_attn.o_proj", "mlp.c_proj": "mlp.c_proj"}),
    "phi": Stream("model.layers", {"self_attn.dense": "self_attn.dense", "mlp.fc2": "mlp.fc2"}),
    "persimmon": Stream(
        "model.layers", {"self_attn.dense": "self_attn.dense", "mlp.dense_4h_to_h": "mlp.dense_4h_to_h"}
    ),
    "lfm2": Stream(
        "model.layers",
        {
            "conv.out_proj": "conv.out_proj",
            "self_attn.out_proj": "self_attn.out_proj",
            "feed_forward.w2": "feed_forward.w2",
        },
    ),
    "granitemoehybrid": Stream(
        "model.layers",
        {
            "mamba.out_proj": "mamba.out_proj",
            "self_attn.o_proj": "self_attn.o_proj",
            "shared_mlp.output_linear": "shared_mlp.output_linear",
        },
    ),
    "qwen3_5_text": Stream(
        "model.layers",
        {
            "linear_attn.out_proj": "linear_attn.out_proj",
            "self_attn.o_proj": "self_attn.o_proj",
            "mlp.down_proj": "mlp.down_proj",
        },
    ),
    "opt": Stream("model.decoder.layers", {"self_attn.out_proj": "self_attn.out_proj", "fc2": "fc2"}),
    "gpt2": Stream("transformer.h", {"attn.c_proj": "attn.c_proj", "mlp.c_proj": "mlp.c_proj"}),
    "gpt_neox": Stream(
        "gpt_neox.layers", {"attention.dense": "attention.dense", "mlp.dense_4h_to_h": "mlp.dense_4h_to_h"}
    ),
}


class LoraFa:
    """A model whose layers have branches, B being all that has a gradient.

    Args:
        model: Hugging Face causal LM, which gets hooks.
        b_RO_of: B by module path; the position is the index of the site's A.
        alpha: Branches are scaled by alpha / r.
        a_seed: Seed of the frozen A matrices.
    """

    def __init__(self, model: nn.Module, b_RO_of: Mapping[str, Tensor], *, alpha: float, a_seed: int) -> None:
        self.model = model.requires_grad_(False)
        self.leaves = {name: b_RO.clone().requires_grad_() for name, b_RO in b_RO_of.items()}
        self.seen: dict[str, Tensor] = {}
        for index, (name, leaf) in enumerate(self.leaves.items()):
            layer = model.get_submodule(name)
            a_RD = lora_a(a_seed, index, leaf.shape[0], _in_features(layer)) * (alpha / leaf.shape[0])
            layer.register_forward_hook(_branch(a_RD, leaf))

    def losses(self, tokens_BT: Tensor, label_pos_BK: Tensor, targets_BK: Tensor) -> Tensor:
        """Mean negative log-likelihood of each row's targets that count; 0 for a row without any: f32[B]."""
        logits_BTV: Any = self.model(input_ids=tokens_BT, use_cache=False).logits
        losses = []
        for logits_TV, positions, targets in zip(logits_BTV, label_pos_BK, targets_BK, strict=True):
            counts = targets != IGNORED
            nll = F.cross_entropy(logits_TV[positions][counts], targets[counts], reduction="sum")
            losses.append(nll / max(1, int(counts.sum())))
        return torch.stack(losses)

    def gradients(self, rows: Sequence[Tensor]) -> dict[str, Tensor]:
        """Gradient of the mean loss by the B of every site."""
        found = torch.autograd.grad(self.losses(*rows).mean(), list(self.leaves.values()))
        return dict(zip(self.leaves, found, strict=True))

    def handed_down(self, rows: Sequence[Tensor], block: str, written_by: Mapping[str, str]) -> dict[str, Tensor]:
        """Gradients of sites below a block, as if each wrote to the stream that enters the block and to nothing else.

        Args:
            rows: Tokens, label positions and targets.
            block: Module path of the block.
            written_by: Site -> module path whose output is added to the stream: the site, or the norm after it.
        """
        if block not in self.seen:
            self._watch(block, written_by.values())
        (stream_gradient,) = torch.autograd.grad(self.losses(*rows).mean(), self.seen[block], retain_graph=True)
        # Granite's blocks multiply what they add.
        stream_gradient = stream_gradient * getattr(self.model.config, "residual_multiplier", 1.0)
        found = {}
        for site, module in written_by.items():
            # OPT writes rows of all examples one below the other.
            written = self.seen[module]
            (found[site],) = torch.autograd.grad(
                written, self.leaves[site], stream_gradient.reshape(written.shape), retain_graph=True
            )
        return found

    def _watch(self, block: str, modules: Any) -> None:
        """Remember what enters a block and what leaves modules, at the next call."""

        def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.seen[block] = args[0] if args else kwargs["hidden_states"]

        def leave(name: str) -> Any:
            return lambda _module, _args, output: self.seen.__setitem__(name, output)

        self.model.get_submodule(block).register_forward_pre_hook(enter, with_kwargs=True)
        for name in modules:
            self.model.get_submodule(name).register_forward_hook(leave(name))


def _branch(a_RD: Tensor, b_RO: Tensor) -> Any:
    return lambda _module, args, output: output + args[0] @ a_RD.T @ b_RO


def _in_features(layer: nn.Module) -> int:
    """GPT-2's Conv1D holds its weight as [D, O]."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return int(weight.shape[1] if isinstance(layer, nn.Linear) else weight.shape[0])
