"""What a user asks the compiler for; imports nothing heavy, so that the command line can use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from prgec.backends import check_settings
from prgec.errors import UsageError

QUANTIZE_SCHEMES = ("none", "8da8w", "8da4w", "w8a16", "w4a16", "int8", "int4")
# Schemes that quantise weights only, and the bits of one.
WEIGHT_ONLY_BITS = {"int8": 8, "int4": 4}
DTYPES = ("auto", "f32", "bf16", "f16")
PREFIX_CHOICES = ("auto", "none", "shared", "method")
EMBEDDING_BITS = (0, 8, 4)
RNG_CHOICES = ("auto", "kernel", "decomposed")


@dataclass(frozen=True)
class CompileOptions:
    """One compilation.

    Attributes:
        model: Checkpoint folder, alias or hub id.
        output: The .pte to write.
        backend: Row of the backend table.
        settings: What that backend alone lets a user choose, by name (`prgec.backends.base.Setting`).
        q: Queries a step.
        batch_size: B, examples a step.
        seq_len: T, the largest number of tokens a row may have.
        num_labels: K, the largest number of tokens a completion may have.
        targets: Layers to train: last components of module paths, regular expressions, or `all-linear`.
        layers: Blocks to train: `all`, `last:K`, or indices and ranges.
        prefix: How blocks before the first trained one run: `none`, `shared`, `method`, or `auto`: `shared` wherever
            `layers` leaves such blocks.
        rank: LoRA rank r.
        alpha: LoRA alpha; the branch is scaled by alpha / rank.
        a_seed: Seed of the frozen A matrices.
        state: `seeded` or `dual`.
        quantize: Scheme of the frozen linear layers: `none`; `8da8w` or `8da4w` (activations too); `w8a16` or
            `w4a16` (weights only, for HTPs); `int8` or `int4` (weights only, for GPUs).
        dtype: What frozen linear layers multiply in: `f32`, `bf16`, `f16`, or `auto`: what suits the backend.
        group_size: Inputs that share a scale in 4-bit weights and in the embedding.
        quantize_embedding: Bits of the embedding table: 0 (f32), 8 or 4.
        rng: Where noise comes from: the prge kernels (`kernel`), ATen arithmetic (`decomposed`), or `auto`: kernels
            wherever the backend's runtime has them.
        passes: Pipeline text that replaces the default one.
        dump_passes: Folder for the graph after each pass.
        save_program: Where to save the exported graph before any pass, for `prgec opt`.
        static: Fix T at `seq_len` even where the backend could vary it.
        generate: Add the method `next_tokens`, with which a driver generates text.
        data: Data files that T and K must hold; where `seq_len` or `num_labels` is 0, they say it.
        task: Task the data files are read under.
        lora_a: Folder of a PEFT adapter whose A, layers, rank and alpha the program gets; None to draw A.
    """

    model: str
    output: Path
    backend: str = "xnnpack"
    settings: Mapping[str, str] = field(default_factory=dict)
    q: int = 4
    batch_size: int = 4
    seq_len: int = 128
    num_labels: int = 4
    targets: tuple[str, ...] = ("all-linear",)
    layers: tuple[str, ...] = ("all",)
    prefix: str = "auto"
    rank: int = 16
    alpha: float = 32.0
    a_seed: int = 0
    state: str = "seeded"
    quantize: str = "none"
    dtype: str = "auto"
    group_size: int = 32
    quantize_embedding: int = 0
    rng: str = "auto"
    passes: str | None = None
    dump_passes: Path | None = None
    save_program: Path | None = None
    static: bool = False
    generate: bool = False
    data: tuple[Path, ...] = ()
    task: str = "auto"
    lora_a: Path | None = None

    @property
    def num_rows(self) -> int:
        """N = 2qB."""
        return 2 * self.q * self.batch_size

    def check(self) -> None:
        """Check everything that needs no model.

        Raises:
            UsageError: On an impossible value.
        """
        sizes = [("--q", self.q), ("--batch-size", self.batch_size), ("--rank", self.rank)]
        if self.num_labels or not self.data:
            sizes.append(("--label-tokens", self.num_labels))
        for flag, value in sizes:
            if value < 1:
                raise UsageError(f"{flag} is {value}; expected at least 1")
        if self.seq_len < 4 and (self.seq_len or not self.data):
            raise UsageError(f"--seq-len is {self.seq_len}; expected at least 4")
        if self.num_labels >= self.seq_len > 0:
            raise UsageError(f"--label-tokens is {self.num_labels}; expected less than --seq-len {self.seq_len}")
        check_settings(self.backend, self.settings)
        if self.output.is_dir():
            raise UsageError("the output is a folder", where=self.output, hint="name a file: -o model.pte")
        if not self.output.parent.is_dir():
            raise UsageError("the folder of the output does not exist", where=self.output.parent)
