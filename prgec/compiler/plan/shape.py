"""The sizes of a model out of its config.json: everything memory and time depend on.

Letters: D width, I inner width of the MLP, H query heads, d width of a head, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from prgec.compiler.plan.families import FAMILIES, Family
from prgec.errors import CheckpointError

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_GELUS = {"gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu": "gelu"}
_MIXED = ("gemma2", "gemma3_text")
_MOST = 1 << 31


@dataclass(frozen=True)
class Linear:
    """One linear layer of a block, as the graph has it.

    Attributes:
        name: q, k, v, o, gate, up or down.
        inputs: Width of its input.
        outputs: Width of its output.
    """

    name: str
    inputs: int
    outputs: int

    @property
    def weights(self) -> int:
        """Elements of its matrix."""
        return self.inputs * self.outputs


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Sizes of a decoder; every block is like the others.

    Attributes:
        name: The user's name of it.
        model_type: As config.json has it.
        family: How its blocks are built.
        width: D.
        layers: Blocks.
        heads: Query heads.
        kv_heads: Key heads.
        head_width: d.
        inner: I.
        vocab: V.
        max_positions: Longest T; 0 for any.
        activation: silu, gelu, gelu_tanh or relu.
        is_tied: Whether the head is the embedding.
        window: Tokens that layers with a sliding window see, where other layers see all; else 0.
        weights: Parameters of the checkpoint; those of the shapes above where no weights are there to be counted.
        file_bytes: Bytes of the checkpoint's weights; 0 where there are none.
    """

    name: str
    model_type: str
    family: Family
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_width: int
    inner: int
    vocab: int
    max_positions: int
    activation: str
    is_tied: bool
    window: int
    weights: int = 0
    file_bytes: int = 0

    @property
    def linears(self) -> tuple[Linear, ...]:
        """The linear layers of a block, in the order they run, fused ones apart."""
        queries, keys = self.heads * self.head_width, self.kv_heads * self.head_width
        gate = (Linear("gate", self.width, self.inner),) if self.family.is_gated else ()
        return (
            Linear("q", self.width, queries),
            Linear("k", self.width, keys),
            Linear("v", self.width, keys),
            Linear("o", queries, self.width),
            *gate,
            Linear("up", self.width, self.inner),
            Linear("down", self.inner, self.width),
        )

    def linear(self, name: str) -> Linear:
        """The linear called `name`."""
        return next(each for each in self.linears if each.name == name)

    @property
    def block_weights(self) -> int:
        """Elements of the linear layers of a block."""
        return sum(each.weights for each in self.linears)

    @property
    def matrix_weights(self) -> int:
        """Elements of all linear layers, the head included."""
        return self.layers * self.block_weights + self.vocab * self.width

    def num_masks(self, seq_len: int) -> int:
        """Different attention masks at T tokens."""
        return 2 if 0 < self.window < seq_len else 1

    @property
    def table_weights(self) -> int:
        """Elements of the embedding of tokens, and of positions where these are learned."""
        positions = 0 if self.family.rotary else self.max_positions
        return (self.vocab + positions) * self.width

    @property
    def num_weights(self) -> int:
        """Parameters, those of norms and biases left out where no weights are there to be counted."""
        head = 0 if self.is_tied else self.vocab * self.width
        return self.weights or self.layers * self.block_weights + self.table_weights + head


def shape_of_config(config: Mapping[str, Any], name: str) -> ModelShape:
    """Return the sizes a config.json says.

    Args:
        config: Parsed; of a multimodal model, the language model's is taken.
        name: The user's name of the model.

    Raises:
        CheckpointError: If a size is missing or impossible, or the architecture is not modelled.
    """
    config = config.get("text_config") or config
    reader = _Reader(config, name, _family(config, name))
    width, heads = reader.size("hidden_size"), reader.size("num_attention_heads")
    inner = reader.size("intermediate_size", 4 * width if config.get("model_type") == "gpt2" else None)
    if config.get("word_embed_proj_dim", width) != width:
        raise CheckpointError(f"the plan of {name} would be wrong: its embedding has another width than its blocks")
    return ModelShape(
        name=name,
        model_type=str(config["model_type"]),
        family=reader.family,
        width=width,
        layers=reader.size("num_hidden_layers"),
        heads=heads,
        kv_heads=reader.size("num_key_value_heads", heads) if reader.family.has_groups else heads,
        head_width=reader.size("head_dim", max(1, width // heads)),
        inner=inner,
        vocab=reader.size("vocab_size"),
        max_positions=reader.size("max_position_embeddings", 0),
        activation=_activation(config, reader.family),
        is_tied=bool(config.get("tie_word_embeddings", reader.family.is_tied)),
        window=_window(config),
    )


@dataclass(frozen=True)
class _Reader:
    config: Mapping[str, Any]
    name: str
    family: Family

    def size(self, key: str, default: int | None = None) -> int:
        own_key = dict(self.family.keys).get(key, key)
        value = self.config.get(own_key)
        if value is None and default is not None:
            return default
        if value is None:
            raise CheckpointError(f"config.json of {self.name} has no {own_key}, which a plan needs")
        if type(value) is not int or not 0 < value < _MOST:
            raise CheckpointError(f"config.json of {self.name} has {own_key} = {value!r}; expected a positive integer")
        return value


def _family(config: Mapping[str, Any], name: str) -> Family:
    model_type = config.get("model_type")
    if not model_type:
        raise CheckpointError(f"config.json of {name} has no model_type, which a plan needs")
    if any((config.get(key) or 0) > 1 for key in _EXPERTS):
        raise CheckpointError(
            f"{name} is a mixture of experts: its routing and the experts a step touches are not modelled",
            hint="plan a dense model",
        )
    if model_type not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise CheckpointError(f"model_type {model_type!r} of {name} is not modelled", hint=f"known: {known}")
    family = FAMILIES[str(model_type)]
    rope = config.get("rope_parameters") or {}
    share = config.get("rotary_pct", rope.get("partial_rotary_factor") if isinstance(rope, Mapping) else None)
    if family.rotary and isinstance(share, int | float):
        family = replace(family, rotary=float(share))
    return replace(family, is_parallel=bool(config.get("use_parallel_residual", family.is_parallel)))


def _activation(config: Mapping[str, Any], family: Family) -> str:
    names = ("hidden_activation", "hidden_act", "activation_function")
    activation = next((str(config[key]) for key in names if config.get(key)), family.activation)
    return _GELUS.get(activation, activation)


def _window(config: Mapping[str, Any]) -> int:
    """Layers that see a window only have a mask of their own beside that of the others."""
    kinds = config.get("layer_types")
    # Gemma's older files do not list the kinds of their layers.
    is_mixed = len(set(map(str, kinds))) > 1 if isinstance(kinds, list) else str(config["model_type"]) in _MIXED
    window = config.get("sliding_window")
    return window if is_mixed and isinstance(window, int) else 0
