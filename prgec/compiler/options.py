"""The options of the compiler; imports nothing heavy, so that the command line can use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from prgec.backends import AUTO_ROUTE, BACKENDS, IN_PLACE, STOCK, all_settings
from prgec.core.config.option import Item, Option, argument, option, table_of
from prgec.core.config.toml_file import write_options
from prgec.core.contract.names import (
    CACHE_BITS,
    CHEAP,
    GPTQ,
    METHODS,
    OPTIMIZERS,
    QUANTIZER_GROUP,
    RECOMPUTATIONS,
    ROUNDINGS,
    STATE_MODES,
)
from prgec.core.contract.plugins import plugins_of
from prgec.core.data.columns import MAP_HELP
from prgec.core.data.records import NO_FILE
from prgec.core.data.tasks import AUTO_TASK, NO_EOS_HELP, TASK_HELP

QUANTIZE_SCHEMES = ("none", "8da8w", "8da4w", "w8a16", "w4a16", "int8", "int4")
AUTO_ROUNDING = "auto"
# Bits of the weights whose rounding is ours.
ROUNDED_BITS = {"8da8w": 8, "8da4w": 4, "w8a16": 8, "w4a16": 4}
# Schemes that quantise weights only, and the bits of one.
WEIGHT_ONLY_BITS = {"int8": 8, "int4": 4}
# Schemes that `--quantize 4` and `8` mean: the first that the backend has.
SCHEMES_BY_BITS = {"4": ("8da4w", "w4a16", "int4"), "8": ("8da8w", "w8a16", "int8")}
DTYPES = ("auto", "f32", "bf16", "f16")
PREFIX_CHOICES = ("auto", "none", "shared", "method")
EMBEDDING_BITS = (0, 8, 4)
RNG_CHOICES = ("auto", "kernel", "decomposed")
DEFAULT_OUTPUT = Path("model.pte")
# Values of --lora-a where A is not an adapter's.
CALIBRATED_A = "calibrated"


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """One compilation; each field's help says what it is.

    Those without help, and what help leaves out:

    Attributes:
        model: Checkpoint folder, alias or hub id.
        seq_len: T; 0 to have `data` say it.
        num_labels: K; 0 to have `data` say it.
        settings: Choices that the backend alone offers, by name (`prgec.backends.base.Setting`).
    """

    model: str = field(metadata=argument(is_place=True))
    method: str = option(
        "step",
        "prge",
        "How the program trains: by measured losses (prge), by its own gradient (exact), by the gradient of its last "
        "block, handed down the residual stream (shortcut), or not at all, with a side network beside it (side).",
        choices=METHODS,
        unset="exact on CPUs; prge on other backends and with --q, --state dual, --prefix shared or --passes",
    )
    optimizer: str = option(
        "step",
        "norm",
        "What exact and shortcut do with a gradient: steps of one length (norm), the same along a running mean "
        "(momentum), or AdamW.",
        choices=OPTIMIZERS,
        unset="adamw with exact, else norm",
    )
    clip_norm: float = option("step", 0.0, "Longest gradient of exact and shortcut; 0 for any.")
    weight_decay: float = option("step", 0.0, "Decoupled weight decay of exact and shortcut.")
    polyak: float | None = option(
        "step",
        None,
        "Shorten steps of exact and shortcut that aim to lower the loss by more than X times itself, so that one rate "
        "serves models of any size; 0: never.",
        metavar="X",
        unset="5 with adamw, whose steps aim at less than they seem to, else 0.2",
    )
    accumulate: bool = option(
        "step",
        False,
        "Let a step of exact and shortcut be several calls (prgec run --accumulate K), for a copy of the trained "
        "weights more.",
    )
    label_weights: bool = option(
        "step",
        False,
        "Let the host say what each label counts in the loss that exact and shortcut differentiate: weights of rows, "
        "and prgec run --objective.",
    )
    recompute: str = option(
        "step",
        CHEAP,
        "What the backward pass of exact computes again in place of keeping it: what costs little (cheap), or layers "
        "too, from the residual stream (layers), for a fraction of the memory and more time.",
        choices=RECOMPUTATIONS,
    )
    q: int = option("step", 4, "Queries (random directions) a step of prge.", unset="4")
    batch_size: int = option("step", 4, "Examples a step.")
    state: str = option(
        "step",
        "seeded",
        "Keeper of B: the program, as one master (seeded) or the paper's 2q copies (dual), or its driver (host) "
        "on a stock ExecuTorch.",
        choices=STATE_MODES,
    )
    rng: str = option(
        "step",
        "auto",
        "Noise from the prge kernels, or plain arithmetic for runtimes without them.",
        choices=RNG_CHOICES,
    )

    seq_len: int = option("rows", 128, "Most tokens a row may have.", unset="what --data needs, else 128")
    num_labels: int = option(
        "rows",
        4,
        "Most tokens a completion may have.",
        "--label-tokens",
        unset="what --data needs, else 4, or 32 with --rollouts",
    )
    data: tuple[Path, ...] = option(
        "rows", (), "Rows the program must hold; repeat for more files.", no_path=NO_FILE, is_kept=False
    )
    task: str = option("rows", AUTO_TASK, TASK_HELP, is_place=True, is_kept=False)
    columns: tuple[str, ...] = option(
        "rows", (), MAP_HELP, "--map", metavar="OURS=THEIRS", is_repeated=True, is_kept=False
    )
    answers: tuple[str, ...] = option(
        "rows",
        (),
        "An answer that rows choose from, leading space included; repeat for each.",
        "--candidate",
        metavar="TEXT",
        is_repeated=True,
        unset="what --data repeats",
    )
    no_eos: bool = option("rows", False, NO_EOS_HELP, is_kept=False)
    static: bool = option("rows", False, "Fix T at --seq-len even where the backend could vary it.")
    generate: bool = option(
        "rows", False, "Add the method that generates text, for F1 of answers and prgec predict --generate."
    )

    context: int = option(
        "rows", 0, "Add the method that generates with a cache of this many positions (with --generate).", metavar="C"
    )

    quantize_cache: int = option("rows", 0, "Bits of that cache; 0 keeps f32.", choices=CACHE_BITS)

    rollouts: int = option(
        "rows", 0, "Texts that it continues at once, each in a cache of its own (with --context).", metavar="R"
    )

    targets: tuple[str, ...] = option(
        "adapter", ("all-linear",), "Layers to train: names (q_proj,v_proj), regular expressions, or all-linear."
    )
    layers: tuple[str, ...] = option(
        "adapter", ("all",), "Blocks to train: all, last:K, or indices and ranges such as 0,4-7."
    )
    prefix: str = option(
        "adapter",
        "auto",
        "Blocks before the first trained one: with all rows (none), once per example (shared), or as a method whose "
        "results prgec run can keep (method). auto shares where --layers leaves any.",
        choices=PREFIX_CHOICES,
    )
    rank: int = option("adapter", 16, "LoRA rank.")
    alpha: float = option("adapter", 32.0, "LoRA alpha; the branch is scaled by alpha / rank.")
    a_seed: int = option("adapter", 0, "Seed of the frozen A matrices.")
    lora_a: Path | None = option(
        "adapter",
        None,
        "Take A, layers, rank and alpha from this PEFT adapter, so that prgec run --init-adapter can go on from it; or "
        "calibrated: A from what each layer reads in up to 64 prompts of --data.",
        metavar="DIR",
        words=(CALIBRATED_A,),
    )

    quantize: str = option(
        "weights",
        "none",
        "Frozen layers: int8 activations with int8 (8da8w) or grouped int4 (8da4w) weights; narrow weights alone on "
        "HTPs and in OpenVINO (w8a16, w4a16) and on GPUs (int8, int4).",
        choices=QUANTIZE_SCHEMES,
    )
    dtype: str = option(
        "weights", "auto", "What frozen layers multiply in; auto is f32, and 16 bits for GPUs and HTPs.", choices=DTYPES
    )
    rounding: str = option(
        "weights",
        AUTO_ROUNDING,
        "Round weights to the nearest value, or so that what layers compute over up to 64 prompts of --data changes "
        "least (gptq); auto is gptq for 4-bit weights where there is data.",
        choices=(AUTO_ROUNDING, *ROUNDINGS, *plugins_of(QUANTIZER_GROUP, ROUNDINGS)),
    )
    group_size: int = option("weights", 32, "Inputs that share a scale in 4-bit weights and in the embedding.")
    quantize_embedding: int = option("weights", 0, "Bits of the embedding table; 0 keeps f32.", choices=EMBEDDING_BITS)

    backend: str = option("target", "xnnpack", "Runtime that executes the program.", choices=tuple(BACKENDS))
    settings: Mapping[str, str] = field(default_factory=dict)
    lowering: str = option(
        "target",
        AUTO_ROUTE,
        "How graphs become a program: by edits in place, or by ExecuTorch's own traces (stock): slower, and a way out "
        "where the first refuses an op. auto is what the backend was tested with.",
        choices=(AUTO_ROUTE, IN_PLACE, STOCK),
        is_kept=False,
    )
    memory: str = option(
        "target",
        "",
        "Refuse a program whose training takes more than this, such as 4G: what the device can give.",
        metavar="SIZE",
        is_kept=False,
    )
    ignore_memory: bool = option(
        "target", False, "Go on where memory seems too small, here or on the device.", is_kept=False
    )

    output: Path = option("output", DEFAULT_OUTPUT, "File to write.", "--output", "-o", is_kept=False)
    force: bool = option("output", False, "Replace --output if it exists.", is_kept=False)
    passes: str | None = option("output", None, "Pipeline text that replaces the default one.")
    dump_passes: Path | None = option(
        "output", None, "Write the graph after each pass to DIR.", metavar="DIR", is_kept=False
    )
    save_program: Path | None = option(
        "output", None, "Save the traced graph as .pt2 for prgec opt.", metavar="FILE", is_kept=False
    )

    @property
    def is_calibrated(self) -> bool:
        """Whether A is chosen from prompts of the data."""
        return str(self.lora_a) == CALIBRATED_A

    @property
    def rounds_by_prompts(self) -> bool:
        """Whether weights are rounded by what layers compute over prompts of the data."""
        if self.rounding == AUTO_ROUNDING:
            return bool(self.data) and ROUNDED_BITS.get(self.quantize) == 4
        if self.rounding in ROUNDINGS:
            return self.rounding == GPTQ
        # Imported here: it brings torch, which reading options does not need.
        from prgec.passes.roundings import reads_inputs

        return reads_inputs(self.rounding)

    @property
    def num_rows(self) -> int:
        """N: 2qB where losses are measured, B where gradients are computed."""
        return 2 * self.q * self.batch_size if self.method == "prge" else self.batch_size


def compile_table() -> tuple[Item, ...]:
    """Return what a user can say of a compilation: the fields, and what single backends have besides."""
    settings = (
        Item(each.name, str, False, None, Option(section="target", help=each.help, metavar=each.metavar))
        for _, each in all_settings()
    )
    return (*table_of(CompileOptions), *settings)


def repeating_text(options: CompileOptions, model: str) -> str:
    """Return the TOML file that makes the same program again.

    Folders go by their names alone: a program contains nothing of the machine that compiled it.

    Args:
        options: With T and K as the data had it.
        model: The program's name of its checkpoint.
    """
    named = replace(options, model=model, lora_a=options.lora_a and Path(options.lora_a.resolve().name))
    remark = "prgec compile -c FILE makes this program again"
    return write_options({**vars(named), **named.settings}, compile_table(), folder=None, remark=remark)
