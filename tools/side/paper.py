"""The paper's tables as far as shapes say them: bytes, link times and operations, with the paper's own figures beside.

Yang et al., "PAE MobiLLM", Tables 1 to 3. Their batch is 8 rows of 256 tokens in f16; MRPC counts 5,801 pairs there and
DialogSum 13,460, which is what their figures by batch and by epoch divide to, with 1,024 MB to the GB.

Letters: L blocks, K label positions, D width, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

BATCH, TOKENS, F16, EPOCHS = 8, 256, 2, 20
MEGA, GIGA, PETA = 1e6, 1.024e9, 1e15
MRPC_ROWS, DIALOGSUM_ROWS = 5801, 13460
# Tokens of a summary in a batch of the paper's: 24.1 MB are 30.65 label tokens a row.
SUMMARY_TOKENS = 30.65


@dataclass(frozen=True)
class Column:
    """A task on a model, with the paper's Table 1: MB a batch and GB an epoch, of PAE, MobiLLM and split learning."""

    name: str
    blocks: int
    width: int
    labels: float
    rows: int
    pae: tuple[float, float]
    mobillm: tuple[float, float]
    split: tuple[float, float]

    def bytes_a_batch(self) -> dict[str, float]:
        """Bytes that travel for a batch: label tokens, all tokens, or two borders there and back."""
        every = BATCH * TOKENS * self.width * F16
        return {
            "PAE": BATCH * self.labels * self.blocks * self.width * F16,
            "MobiLLM": every * self.blocks,
            "split learning": every * 4.0,
        }


COLUMNS = (
    Column("MRPC, OPT-1.3B", 24, 2048, 1, MRPC_ROWS, (0.78, 0.55), (200.4, 141.7), (33.4, 23.6)),
    Column("DialogSum, OPT-1.3B", 24, 2048, SUMMARY_TOKENS, DIALOGSUM_ROWS, (24.1, 39.5), (200.4, 329.2), (33.4, 54.8)),
    Column("MRPC, RoBERTa-large", 24, 1024, 1, MRPC_ROWS, (0.39, 0.28), (100.6, 71.2), (16.8, 11.9)),
    Column("MRPC, RoBERTa-base", 12, 768, 1, MRPC_ROWS, (0.15, 0.10), (37.7, 26.7), (12.5, 8.8)),
)


def traffic() -> list[str]:
    """Table 1: what travels, computed, and in brackets what the paper says."""
    lines = ["| task, model | method | MB a batch (paper) | GB an epoch (paper) | GB in all |", "|---|---|---|---|---|"]
    for column in COLUMNS:
        said = {"PAE": column.pae, "MobiLLM": column.mobillm, "split learning": column.split}
        for method, size in column.bytes_a_batch().items():
            batch, epoch = said[method]
            total = size * column.rows / BATCH
            times = 1 if method == "PAE" else EPOCHS
            lines.append(
                f"| {column.name} | {method} | {size / MEGA:,.3f} ({batch:g}) | {total / GIGA:,.2f} ({epoch:g}) | "
                f"{times * total / GIGA:,.2f} |"
            )
    return lines


def link_times(mbps: float, seconds_of_emit: float) -> list[str]:
    """Table 3: seconds that a batch is under way, and the paper's."""
    column = COLUMNS[0]
    said = {"PAE": 0.10, "MobiLLM": 26.72, "split learning": 4.45}
    lines = [f"| SST-2, OPT-1.3B at {mbps:g} Mbps | s a batch | the paper |", "|---|---|---|"]
    for method, size in column.bytes_a_batch().items():
        lines.append(f"| {method} | {8 * size / mbps / 1e6:.2f} | {said[method]:.2f} |")
    return [*lines, "", f"Here a batch of 8 rows of the task above is emitted in {seconds_of_emit * 1e3:.1f} ms."]


def operations() -> list[str]:
    """Table 2: operations on the device for an epoch of MRPC on OPT-1.3B, by torch's counter, and the paper's."""
    forward, full, biases = _counted()
    epoch = MRPC_ROWS / BATCH / PETA
    blocks = COLUMNS[0].blocks
    rows = (
        ("all weights, on the device", full, 28.5),
        ("biases, on the device (BitFit)", biases, 18.4),
        ("all weights, split: 2 blocks on the device", full * 2 / blocks, 2.4),
        ("biases, split", biases * 2 / blocks, 1.5),
        ("MobiLLM: a forward, every epoch", forward, 9.5),
        ("PAE: a forward, once", forward, 9.5),
    )
    lines = ["| method | PFLOP an epoch | of PAE | the paper | of PAE |", "|---|---|---|---|---|"]
    for name, count, paper in rows:
        lines.append(f"| {name} | {count * epoch:.2f} | {count / forward:.2f} | {paper:g} | {paper / 9.5:.2f} |")
    return lines


def _counted() -> tuple[float, float, float]:
    """Operations of a batch: forward, and with the backward of all weights, or of biases."""
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(
        hidden_size=2048, num_hidden_layers=24, ffn_dim=8192, num_attention_heads=32, word_embed_proj_dim=2048
    )
    with torch.device("meta"):
        model = OPTForCausalLM(config)
        tokens = torch.zeros(BATCH, TOKENS, dtype=torch.int64)
    counts = []
    for trained in ("", "weight", "bias"):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(bool(trained) and (trained == "weight" or name.endswith(trained)))
        counter = FlopCounterMode(display=False)
        with counter:
            loss = model.model(input_ids=tokens, attention_mask=None, use_cache=False).last_hidden_state.sum()
            if trained:
                loss.backward()
        counts.append(float(counter.get_total_flops()))
    forward, full, biases = counts
    return forward, full, biases
