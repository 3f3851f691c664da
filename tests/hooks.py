"""Outputs of the blocks of an untouched transformers model, caught by forward hooks: the oracle of `emit`.

transformers' own `hidden_states[-1]` comes after the final norm, so it is not an oracle of the last block.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The blocks of a decoder or encoder: its longest list of as many modules as the configuration has layers."""
    lists = [each for each in model.modules() if isinstance(each, nn.ModuleList)]
    (found,) = [each for each in lists if len(each) == model.config.num_hidden_layers]
    return list(found)


def hooked(model: nn.Module, tokens: Tensor, label_pos: Tensor) -> tuple[Tensor, Tensor]:
    """Run a causal language model row by row.

    Returns:
        The blocks' outputs f32[B, L, K, D] and the logits f32[B, K, V], both at the label positions.
    """
    acts, logits = [], []
    for row, positions in zip(tokens, label_pos, strict=True):
        caught, logits_TV = _caught(model, row)
        acts.append(torch.stack([output[positions] for output in caught]))
        logits.append(logits_TV[positions])
    return torch.stack(acts), torch.stack(logits)


def _caught(model: nn.Module, row: Tensor) -> tuple[list[Tensor], Tensor]:
    """The output of each block at every position of one row, f32[T, D], and the logits f32[T, V]."""
    caught: list[Tensor] = []
    handles = [block.register_forward_hook(lambda m, i, o: caught.append(first_of(o)[0])) for block in blocks_of(model)]
    with torch.no_grad():
        logits: Tensor = model(input_ids=row.unsqueeze(0)).logits[0]
    for handle in handles:
        handle.remove()
    return caught, logits


def first_of(output: object) -> Tensor:
    """The result of a module, or the first of several."""
    value = output[0] if isinstance(output, tuple) else output
    assert isinstance(value, Tensor)
    return value
