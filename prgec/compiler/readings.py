"""Inputs of a graph's layers over a few prompts of the data.

Letters: D width of a layer's input, n tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from prgec.compiler.exact_run import ExactRun
from prgec.compiler.options import CompileOptions
from prgec.compiler.plan.rounding import MAX_TOKENS
from prgec.core.contract.names import IGNORE_TARGET
from prgec.core.contract.tokenizer import Tokenizer
from prgec.core.data.dataset import load_dataset
from prgec.core.data.encode import encode_item, prompt_ids
from prgec.core.data.task import Example, Item
from prgec.passes.fixed_point import rounded
from prgec.passes.program import GraphProgram
from prgec.passes.weights import layer_name

MAX_PROMPTS = 64
# Tokens of the batches that run together; each holds its activations meanwhile.
_TOKENS_TOGETHER = 4096


def prompts_of(options: CompileOptions, tokenizer: Tokenizer) -> list[list[int]]:
    """Return the ids of up to 64 prompts, evenly spaced over all items; nothing of an answer is read.

    Conversations and documents have no prompt: they are read whole, as far as a row goes.
    """
    datasets = (
        load_dataset(Path(path), options.task, columns=options.columns, takes_feedback=True) for path in options.data
    )
    parts = [dataset.examples for dataset in datasets]
    chosen = _evenly(range(sum(map(len, parts))), MAX_PROMPTS)
    return [_ids(_item_at(parts, place), tokenizer)[-options.seq_len :] for place in chosen]


def inputs_over(
    program: GraphProgram, layers: Mapping[str, Node], prompts: Sequence[Sequence[int]], max_tokens: int
) -> dict[str, Tensor]:
    """Return what each layer reads over the prompts, f32[n, D]; layers that read one thing have one tensor.

    Rows are rounded as the layer's product rounds them: what was left of them differs between processors. The 18 bits
    that stay fit into f32.

    Args:
        program: Graph with the three inputs of a row.
        layers: Node that each layer reads, by any name.
        prompts: Token ids of each.
        max_tokens: Largest n: of more tokens, evenly spaced ones are kept.
    """
    inputs: dict[Node, list[Tensor]] = {source: [] for source in layers.values()}
    # Logits after the last layer take more memory than all before, and nothing reads them.
    last = next((node for node in reversed(program.graph.nodes) if node in inputs), None)
    run = ExactRun(program.module)
    for batches in _groups(list(_batches(program, prompts, max_tokens))):
        with torch.no_grad():
            for node, place, value in run.together([each.inputs for each in batches], last):
                if node in inputs:
                    inputs[node].append(rounded(batches[place].kept(value)).to(torch.float32))
    # One after the other, so that parts and wholes of all layers are not held together.
    joined = {source: torch.cat(inputs.pop(source)) for source in list(inputs)}
    return {name: joined[source] for name, source in layers.items()}


def readings_of(program: GraphProgram, prompts: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """Return what every layer with a weight of the checkpoint reads, as `inputs_over` does, by the layer's path."""
    layers: dict[str, Node] = {}
    for node in program.calls(torch.ops.aten.linear.default):
        name, source = layer_name(node), node.args[0]
        if name and isinstance(source, Node):
            layers[name] = source
    return inputs_over(program, layers, prompts, MAX_TOKENS)


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """Inputs of one run.

    Attributes:
        tokens_NT: Right-padded prompts, rows of zeros after the last one.
        label_pos_NK: The last positions of each prompt.
        rows: Row of each token to keep.
        positions: Its position there.
        num_prompts: Rows that are prompts.
    """

    tokens_NT: Tensor
    label_pos_NK: Tensor
    rows: list[int]
    positions: list[int]
    num_prompts: int

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Arguments of the graph; there are no answers."""
        return self.tokens_NT, self.label_pos_NK, torch.full_like(self.label_pos_NK, IGNORE_TARGET)

    def kept(self, value: Tensor) -> Tensor:
        """Those of the chosen tokens; for an output layer, which is read at label positions alone, all of these."""
        num_rows, length = self.tokens_NT.shape
        by_row = value.reshape(num_rows, -1, value.shape[-1])
        if by_row.shape[1] != length:
            return by_row[: self.num_prompts].flatten(0, 1)
        return by_row[self.rows, self.positions]


def _groups(batches: Sequence[_Batch]) -> Iterator[Sequence[_Batch]]:
    """Batches that run together: as many as the memory of activations admits."""
    count = max(1, _TOKENS_TOGETHER // batches[0].tokens_NT.numel()) if batches else 1
    return (batches[first : first + count] for first in range(0, len(batches), count))


def _batches(program: GraphProgram, prompts: Sequence[Sequence[int]], max_tokens: int) -> Iterator[_Batch]:
    """As many prompts at once as the graph has rows, each as long as the graph takes."""
    chosen = _evenly([(p, t) for p, ids in enumerate(prompts) for t in range(len(ids))], max_tokens)
    tokens, label_pos = (node.meta["val"].shape for node in program.placeholders()[:2])
    num_rows, num_labels = int(tokens[0]), int(label_pos[1])
    length = int(tokens[1]) if isinstance(tokens[1], int) else max(num_labels + 1, *(len(ids) for ids in prompts))
    for first in range(0, len(prompts), num_rows):
        part = prompts[first : first + num_rows]
        tokens_NT = torch.zeros(num_rows, length, dtype=torch.int64)
        label_pos_NK = torch.zeros(num_rows, num_labels, dtype=torch.int64)
        for row, ids in enumerate(part):
            tokens_NT[row, : len(ids)] = torch.tensor(ids)
            label_pos_NK[row] = torch.arange(len(ids) - num_labels, len(ids)).clamp(min=0)
        here = [(p - first, t) for p, t in chosen if first <= p < first + num_rows]
        yield _Batch(
            tokens_NT=tokens_NT,
            label_pos_NK=label_pos_NK,
            rows=[row for row, _ in here],
            positions=[t for _, t in here],
            num_prompts=len(part),
        )


def _item_at(parts: Sequence[Sequence[Item]], place: int) -> Item:
    """Return an item of all parts together."""
    for part in parts:
        if place < len(part):
            return part[place]
        place -= len(part)
    raise IndexError(place)


def _ids(item: Item, tokenizer: Tokenizer) -> list[int]:
    return (
        prompt_ids(item, tokenizer) if isinstance(item, Example) else list(encode_item(item, tokenizer)[-1].row.tokens)
    )


def _evenly(items: Sequence[Any], count: int) -> list[Any]:
    """At most `count` of the items, at equal distances, the first one among them."""
    return [items[n * len(items) // count] for n in range(count)] if len(items) > count else list(items)
