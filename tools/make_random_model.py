"""Write a checkpoint with a real model's shapes and random weights, for measurements that need no knowledge.

    python tools/make_random_model.py tinyllama -o DIR              # 1.1B parameters, 2.2 GB of bf16
    python tools/make_random_model.py tinyllama -o DIR --layers 2   # the same widths, two decoder layers

The folder has the Hugging Face layout: config.json, sharded safetensors with an index, tokenizer.model. Weights are
made one tensor at a time and written one decoder layer a shard, so memory stays at one shard whatever the depth.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import sentencepiece
import torch
from safetensors.torch import save_file

STD = 0.02
DTYPE = torch.bfloat16
TOKENIZER_VOCAB = 512
_WORDS = (
    "the a an film story was is of and in that it with great dull bright slow quick lovely awful one two three people "
    "city river night morning music plot acting question answer yes no maybe because although never always"
).split()


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama: everything config.json says that decides how much work a step is."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int = 2048


SHAPES = {
    "tinyllama": Shape(
        hidden_size=2048,
        num_hidden_layers=22,
        num_attention_heads=32,
        num_key_value_heads=4,
        intermediate_size=5632,
        vocab_size=32000,
    )
}


def main() -> None:
    """Parse the command line and write what it asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES, help="whose sizes to use")
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder to write, created if missing")
    parser.add_argument("--layers", type=int, help="decoder layers, instead of the shape's own number")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights")
    options = parser.parse_args()
    if options.layers is not None and options.layers < 1:
        parser.error(f"--layers is {options.layers}; expected at least 1")
    shape = SHAPES[options.shape]
    shape = replace(shape, num_hidden_layers=options.layers or shape.num_hidden_layers)
    num_bytes = write_checkpoint(shape, options.out, options.seed)
    print(f"{options.out}: {shape.num_hidden_layers} layers, {num_bytes / 1e9:.2f} GB of weights")


def write_checkpoint(shape: Shape, folder: Path, seed: int) -> int:
    """Write configuration, weights and tokenizer; return the bytes of the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    # A shallower model written over a deeper one would leave shards that no index names.
    for stale in folder.glob("*.safetensors"):
        stale.unlink()
    (folder / "config.json").write_text(json.dumps(config(shape), indent=2) + "\n", encoding="ascii")
    write_tokenizer(folder)
    return _write_weights(shape, folder, seed)


def config(shape: Shape) -> dict[str, object]:
    """config.json of a Llama of this shape."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "intermediate_size": shape.intermediate_size,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.max_position_embeddings,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "initializer_range": STD,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def shards(shape: Shape) -> Iterator[dict[str, tuple[int, ...]]]:
    """Shapes by name: embedding, each decoder layer, then final norm and head."""
    width, inner = shape.hidden_size, shape.intermediate_size
    narrow = width // shape.num_attention_heads * shape.num_key_value_heads
    yield {"model.embed_tokens.weight": (shape.vocab_size, width)}
    for index in range(shape.num_hidden_layers):
        attention, mlp = f"model.layers.{index}.self_attn", f"model.layers.{index}.mlp"
        yield {
            f"{attention}.q_proj.weight": (width, width),
            f"{attention}.k_proj.weight": (narrow, width),
            f"{attention}.v_proj.weight": (narrow, width),
            f"{attention}.o_proj.weight": (width, width),
            f"{mlp}.gate_proj.weight": (inner, width),
            f"{mlp}.up_proj.weight": (inner, width),
            f"{mlp}.down_proj.weight": (width, inner),
            f"model.layers.{index}.input_layernorm.weight": (width,),
            f"model.layers.{index}.post_attention_layernorm.weight": (width,),
        }
    yield {"model.norm.weight": (width,), "lm_head.weight": (shape.vocab_size, width)}


def write_tokenizer(folder: Path) -> None:
    """Train a small sentencepiece model on generated sentences and write tokenizer.model."""
    rng = random.Random(0)
    sentences = (" ".join(rng.choices(_WORDS, k=rng.randint(4, 14))) for _ in range(500))
    with (folder / "tokenizer.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=sentences,
            model_writer=file,
            model_type="bpe",
            vocab_size=TOKENIZER_VOCAB,
            hard_vocab_limit=False,
            byte_fallback=True,
            pad_id=-1,
            num_threads=1,
            minloglevel=2,
        )


def _write_weights(shape: Shape, folder: Path, seed: int) -> int:
    generator = torch.Generator().manual_seed(seed)
    count, total, weight_map = shape.num_hidden_layers + 2, 0, {}
    for number, sizes in enumerate(shards(shape), start=1):
        name = f"model-{number:05d}-of-{count:05d}.safetensors"
        tensors = {key: _weight(size, generator) for key, size in sizes.items()}
        save_file(tensors, folder / name, metadata={"format": "pt"})
        total += sum(tensor.nbytes for tensor in tensors.values())
        weight_map.update(dict.fromkeys(tensors, name))
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="ascii")
    return total


def _weight(size: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Norms are ones, as after initialisation; everything else is normal."""
    if len(size) == 1:
        return torch.ones(size, dtype=DTYPE)
    return torch.empty(size, dtype=DTYPE).normal_(0.0, STD, generator=generator)


if __name__ == "__main__":
    main()
