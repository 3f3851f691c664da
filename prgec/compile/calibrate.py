"""Choose A from what each trained layer reads: the directions that hold most of its inputs over a few prompts.

Letters: r rank, D width of a layer's input, n tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import Interpreter, Node

from prgec.compile.options import CompileOptions
from prgec.contract.arrays import State
from prgec.contract.names import IGNORE_TARGET
from prgec.contract.tokenizer import Tokenizer
from prgec.data.dataset import load_dataset
from prgec.data.encode import encode_item
from prgec.data.task import Example, Item
from prgec.errors import UsageError
from prgec.passes.program import GraphProgram
from prgec.passes.sites import is_a

MAX_PROMPTS = 64
# Of all prompts together: a layer's Gram matrix has at most this many rows.
MAX_TOKENS = 1024
# What is left of a direction that rounding alone made, relative to the longest.
_NOTHING = 1e-10


def prompts_of(options: CompileOptions, tokenizer: Tokenizer) -> list[list[int]]:
    """Return the ids of up to 64 prompts, evenly spaced over all items; nothing of an answer is read.

    Conversations and documents have no prompt: they are read whole, as far as a row goes.
    """
    items = [item for path in options.data for item in load_dataset(Path(path), options.task).examples]
    chosen = _evenly(items, MAX_PROMPTS)
    return [_ids(item, tokenizer)[-options.seq_len :] for item in chosen]


def calibrated_a(program: GraphProgram, prompts: Sequence[Sequence[int]], rank: int) -> State:
    """Return A of every site, f32[r, D] by `<site>.lora_A`: the r principal directions of its inputs, longest first.

    Rows are orthonormal. A drawn A has rows of length 1 in root mean square too, so that alpha, learning rates and eps
    mean what they mean there. Directions are those of the inputs as they are, not of what is left without their mean:
    the gradient of B is a sum over inputs as they are.

    Args:
        program: Graph with sites, before anything is quantised.
        prompts: Token ids of each.
        rank: r.

    Raises:
        UsageError: If prompts have too few tokens to span r directions.
    """
    watch = _Watch(program)
    for batch in _batches(program, prompts):
        watch.read(batch)
    directions: dict[Node, Tensor] = {}
    found: State = {}
    for name, source in watch.sources.items():
        if source not in directions:
            directions[source] = _principal(torch.cat(watch.inputs[source]), rank, name)
        found[name] = directions[source].numpy()
    return found


@dataclass(frozen=True)
class _Batch:
    """Inputs of one run.

    Attributes:
        tokens_NT: Right-padded prompts, rows of zeros behind the last one.
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


class _Watch(Interpreter):
    """Runs a graph and keeps what its sites read.

    Attributes:
        sources: What each site reads, by the name of its A.
        inputs: Rows of what was read, f32[n, D], one tensor a batch.
    """

    def __init__(self, program: GraphProgram) -> None:
        super().__init__(program.module)
        self.sources: dict[str, Node] = {}
        for node in program.calls(torch.ops.aten.linear.default):
            source, weight = node.args[:2]
            if is_a(weight) and isinstance(source, Node):
                self.sources[str(weight.target)] = source
        self.inputs: dict[Node, list[Tensor]] = {source: [] for source in self.sources.values()}
        self._batch: _Batch | None = None

    def read(self, batch: _Batch) -> None:
        """Run a batch."""
        self._batch = batch
        with torch.no_grad():
            self.run(batch.tokens_NT, batch.label_pos_NK, torch.full_like(batch.label_pos_NK, IGNORE_TARGET))

    def run_node(self, n: Node) -> Any:
        """Keep what sites read."""
        result = super().run_node(n)
        if n in self.inputs:
            self.inputs[n].append(self._kept(result))
        return result

    def _kept(self, value: Tensor) -> Tensor:
        """Those of the chosen tokens; of an output layer, which is asked at label positions alone, all of these."""
        assert self._batch is not None
        num_rows, length = self._batch.tokens_NT.shape
        by_row = value.reshape(num_rows, -1, value.shape[-1])
        if by_row.shape[1] != length:
            return by_row[: self._batch.num_prompts].flatten(0, 1).clone()
        return by_row[self._batch.rows, self._batch.positions].clone()


def _batches(program: GraphProgram, prompts: Sequence[Sequence[int]]) -> Iterator[_Batch]:
    """As many prompts at once as the graph has rows, each as long as the graph takes."""
    chosen = _evenly([(p, t) for p, ids in enumerate(prompts) for t in range(len(ids))], MAX_TOKENS)
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
        yield _Batch(tokens_NT, label_pos_NK, [row for row, _ in here], [t for _, t in here], len(part))


def _principal(inputs_nD: Tensor, rank: int, name: str) -> Tensor:
    """The first r right singular vectors, f32[r, D], each with its largest element positive: one of two signs."""
    x = inputs_nD.to(torch.float64)
    is_wide = x.shape[0] < x.shape[1]
    squares, vectors = torch.linalg.eigh(x @ x.T if is_wide else x.T @ x)
    squares, vectors = squares.flip(0)[:rank], vectors.flip(1)[:, :rank]
    if len(squares) < rank or float(squares[-1]) <= _NOTHING * float(squares[0]):
        count = int((squares > _NOTHING * squares[0]).sum())
        raise UsageError(
            f"the prompts of --data span {count} directions of what {name.rpartition('.')[0]} reads; --rank is {rank}",
            hint="name data with more prompts, or lower --rank",
        )
    rows_rD = (x.T @ vectors / squares.sqrt() if is_wide else vectors).T
    largest = rows_rD.gather(1, rows_rD.abs().argmax(1, keepdim=True))
    directions: Tensor = (rows_rD * largest.sign()).to(torch.float32)
    return directions.contiguous()


def _ids(item: Item, tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode(item.prompt) if isinstance(item, Example) else list(encode_item(item, tokenizer).row.tokens)


def _evenly(items: Sequence[Any], count: int) -> list[Any]:
    """At most `count` of the items, at equal distances, the first one among them."""
    return [items[n * len(items) // count] for n in range(count)] if len(items) > count else list(items)
