"""The manifest of a program, checked type by type.

Letters: q queries, B examples a step, N = 2qB rows, T tokens, K label positions, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any

from prgec.core.contract.fields import Rule, check_fields
from prgec.core.contract.names import (
    CONTRACT_VERSION,
    DEFAULT_RATE,
    GRADIENT_CONTRACT_VERSION,
    HOST_STATE,
    METHODS,
    OPTIMIZERS,
    PREFIX_MODES,
    SIDE,
    SIDE_CONTRACT_VERSION,
    STATE_ACCESS,
    STATE_MODES,
    STATE_SUFFIX,
    UPDATE_NUMBERS,
)
from prgec.errors import ProgramError

# Bounds no program comes near; a manifest beyond them is damaged or made to exhaust memory.
_MOST_QUERIES, _MOST, _WIDEST = 1 << 16, 1 << 20, 1 << 31
_MOST_ELEMENTS = 1 << 31


@dataclass(frozen=True)
class Site:
    """One Linear layer that carries a LoRA-FA branch."""

    name: Annotated[str, Rule("Module path in the Hugging Face model, e.g. `model.layers.0.self_attn.q_proj`.")]
    index: Annotated[
        int, Rule("Position in the noise counter; unique and stable within a program.", high=(1 << 32) - 1)
    ]
    in_features: Annotated[int, Rule("Width of the layer's input.", low=1, high=_WIDEST)]
    out_features: Annotated[int, Rule("Width of the layer's output.", low=1, high=_WIDEST)]

    @property
    def state_name(self) -> str:
        """Fully qualified name of the trainable buffer."""
        return self.name + STATE_SUFFIX


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The manifest of a program; stored as JSON in the constant method `prgec_manifest`.

    Fields without a default must be there (docs/reference/manifest.md has them as a table).
    """

    model: Annotated[str, Rule("Checkpoint the program came from (folder name or hub id; never an absolute path).")]
    architecture: Annotated[str, Rule("Hugging Face architecture class name.")]
    backend: Annotated[str, Rule("Row of the backend table that lowered it.")]
    q: Annotated[int, Rule("Queries a step.", low=1, high=_MOST_QUERIES)]
    batch_size: Annotated[int, Rule("B, examples a step.", low=1, high=_MOST)]
    seq_len: Annotated[int, Rule("T, the compiled maximum number of tokens.", low=1, high=_MOST)]
    dynamic_seq_len: Annotated[bool, Rule("Whether any T from 2 to `seq_len` is accepted.")]
    num_labels: Annotated[int, Rule("K, label positions a row.", low=1, high=_MOST)]
    vocab_size: Annotated[int, Rule("V.", low=1, high=_WIDEST)]
    rank: Annotated[int, Rule("r of every site.", low=1, high=_MOST)]
    alpha: Annotated[float, Rule("LoRA alpha; the branch is scaled by alpha / rank.")]
    a_seed: Annotated[int, Rule("Seed the frozen A matrices were drawn from (`prgec.runtime_ops.lora_a`).")]
    state: Annotated[
        str,
        Rule(
            "`seeded` (one master per site), `dual` (2q copies per site, the paper's Algorithm 2) or `host` "
            "(nothing of it: the host keeps it and passes it in).",
            choices=STATE_MODES,
        ),
    ]
    quantize: Annotated[str, Rule("Scheme of the frozen weights, `none` for f32.")]
    # Trained layers in the order of their noise index; each is checked by its own rules.
    sites: tuple[Site, ...]
    pipeline: Annotated[str, Rule("Text of the pass pipeline that built the graph.")]
    base_sha256: Annotated[str, Rule("Hash over the names and bytes of the checkpoint's weights.")]
    versions: Annotated[
        dict[str, str],
        Rule(
            "Versions of prgec, torch, executorch, torchao and transformers at compile time, and of the backend's "
            "own compiler, if it has one."
        ),
    ] = field(default_factory=dict)
    pad_token_id: Annotated[int, Rule("Token used to right-pad rows.", high=_WIDEST)] = 0
    quantize_embedding: Annotated[int, Rule("Bits of the embedding table, 0 for f32.", high=8)] = 0
    prefix: Annotated[
        str,
        Rule(
            "How the blocks before the first trained one run: `none` (with all N rows), `shared` (with B rows, "
            "repeated for every replica) or `method` (the same, as a method of its own whose results can be "
            "kept).",
            choices=PREFIX_MODES,
        ),
    ] = "none"
    hidden_size: Annotated[
        int, Rule("D of the prefix's result, or of what `emit` returns; 0 without either.", high=_MOST)
    ] = 0
    state_access: Annotated[
        str,
        Rule(
            "How a host reads the state: as `buffers` that it may also write, or as further `outputs` of "
            "`forward`, one master a site, of a program that keeps its state to itself and has no `apply`; or not "
            "at all, where the host keeps it and it is among the `inputs`.",
            choices=STATE_ACCESS,
        ),
    ] = "buffers"
    data_sha256: Annotated[
        str, Rule("Fingerprint of the file of weights beside the program (`prgec.core.contract.ptd`); empty for none.")
    ] = ""
    generate: Annotated[bool, Rule("Whether there is a `next_tokens` method.")] = False
    a_sha256: Annotated[
        str, Rule("Hash of the frozen A matrices where they are not drawn from `a_seed` but were given; else empty.")
    ] = ""
    soc: Annotated[str, Rule("Chip it was compiled for; empty where that makes no difference.")] = ""
    prefix_sha256: Annotated[
        str, Rule("Hash of everything results of the `prefix` method depend on besides the tokens; empty without one.")
    ] = ""
    config: Annotated[str, Rule("Text of the TOML file with which `prgec compile -c` makes the program again.")] = ""
    method: Annotated[
        str,
        Rule(
            "How it trains: `prge` by measured losses (contract 1), `exact` or `shortcut` by gradients it "
            "computes itself (contract 2); `side` not at all, a network beside it does (contract 3). But for "
            "`prge`, q is 1 and a call takes B rows.",
            choices=METHODS,
        ),
    ] = "prge"
    optimizer: Annotated[
        str, Rule("Rule by which it applies gradients; empty where it computes none.", choices=("", *OPTIMIZERS))
    ] = ""
    accumulates: Annotated[bool, Rule("Whether a step may be several calls, whose gradients are averaged.")] = False
    label_weights: Annotated[
        bool, Rule("Whether `forward` takes what each label counts in the loss that it differentiates.")
    ] = False
    planned_bytes: Annotated[
        int,
        Rule(
            "Memory that training takes in the C++ driver and no file backs, as planned when it was compiled; 0 "
            "where nobody planned it."
        ),
    ] = 0
    has_checksums: Annotated[
        bool, Rule("Whether a table of checksums follows the program (`prgec.core.contract.checksums`).")
    ] = False
    num_blocks: Annotated[
        int, Rule("L, blocks whose outputs `emit` returns; 0 but for `side`.", high=_MOST_QUERIES)
    ] = 0
    update: Annotated[
        dict[str, float],
        Rule("Numbers of the optimiser (`names.UPDATE_NUMBERS`) where the host takes its steps; else empty."),
    ] = field(default_factory=dict)
    context: Annotated[
        int, Rule("C, positions of the cache of the `extend` method; 0 where there is none.", high=_MOST)
    ] = 0
    lr: Annotated[float, Rule("Learning rate of a run that names none.")] = DEFAULT_RATE
    answers: Annotated[
        tuple[str, ...],
        Rule("Choices of an answer where the data it was compiled for gave them, and not a task; else empty."),
    ] = ()
    prompts_sha256: Annotated[
        str,
        Rule(
            "Hash of the tokens of the prompts that weights were rounded or A calibrated by; empty where no data "
            "decided anything."
        ),
    ] = ""
    rollouts: Annotated[
        int, Rule("R, texts that the `decode` method continues at once; 0 where there is none.", high=_MOST)
    ] = 0

    @property
    def has_gradients(self) -> bool:
        """Whether it computes gradients and updates itself in the same call."""
        return self.method not in ("prge", SIDE)

    @property
    def emits(self) -> bool:
        """Whether it trains nothing and emits what a side network learns from."""
        return self.method == SIDE

    @property
    def contract_version(self) -> int:
        """Version of the contract that a driver has to speak."""
        if self.emits:
            return SIDE_CONTRACT_VERSION
        return GRADIENT_CONTRACT_VERSION if self.has_gradients else CONTRACT_VERSION

    @property
    def step_text(self) -> str:
        """How a step is made, for people: `q=4 B=4`, `exact by norm B=16`, or `side B=4`."""
        if self.emits:
            return f"{self.method} B={self.batch_size}"
        how = f"{self.method} by {self.optimizer}" if self.has_gradients else f"q={self.q}"
        return f"{how} B={self.batch_size}"

    @property
    def num_distinct_rows(self) -> int:
        """Different rows one evaluation call can hold: N, or B where replicas share a prefix."""
        return self.num_rows if self.prefix == "none" else self.batch_size

    @property
    def num_rows(self) -> int:
        """The rows of one forward call: N = 2qB where losses are measured, else B."""
        return 2 * self.q * self.batch_size if self.method == "prge" else self.batch_size

    def to_json(self) -> str:
        """Serialise with sorted keys, so that equal manifests are equal bytes."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Parse and check a manifest.

        Raises:
            ProgramError: If the text is not a manifest of this contract version.
        """
        try:
            raw = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ProgramError("the program's manifest is not valid JSON", hint="compile the program again") from error
        return cls._from_dict(raw)

    @classmethod
    def _from_dict(cls, raw: Any) -> Manifest:
        known = {f.name for f in fields(cls)}
        try:
            sites = tuple(Site(**site) for site in raw["sites"])
            told = {name: value for name, value in raw.items() if name in known}
            if isinstance(told.get("answers"), list):
                told["answers"] = tuple(told["answers"])
            manifest = cls(**{**told, "sites": sites})
        except (TypeError, KeyError, AttributeError) as error:
            raise ProgramError(f"the program's manifest lacks a field: {error}", hint="compile it again") from error
        manifest._check()
        return manifest

    def _check(self) -> None:
        for each in (self, *self.sites):
            check_fields(each)
        if len({site.name for site in self.sites}) != len(self.sites):
            raise ProgramError("the program's manifest names a site twice")
        for is_right, names in self._agreements():
            if not is_right:
                held = " and ".join(f"{name} = {getattr(self, name)!r}" for name in names)
                raise ProgramError(f"the program's manifest has {held}, which do not go together")
        widest = max((max(site.in_features, site.out_features) for site in self.sites), default=1)
        if max(self.num_rows * max(self.seq_len, self.num_labels), widest * self.rank) > _MOST_ELEMENTS:
            raise ProgramError("the program's manifest has more rows, or wider sites, than any program can hold")

    def _agreements(self) -> Iterator[tuple[bool, tuple[str, ...]]]:
        """Yield what fields require of each other, and their names."""
        is_hosts = self.state == HOST_STATE
        yield is_hosts == (self.state_access == "inputs"), ("state", "state_access")
        yield self.state != "dual" or self.method == "prge", ("state", "method")
        yield (self.optimizer in OPTIMIZERS) == self.has_gradients, ("method", "optimizer")
        yield self.method == "prge" or self.q == 1, ("method", "q")
        yield self.has_gradients or not self.accumulates, ("method", "accumulates")
        yield self.has_gradients or not self.label_weights, ("method", "label_weights")
        yield self.prefix != "method" or self.hidden_size > 0, ("prefix", "hidden_size")
        yield not self.emits or self.hidden_size > 0, ("method", "hidden_size")
        yield not self.emits or self.num_blocks > 0, ("method", "num_blocks")
        # A host that has the gradients needs the numbers of the optimiser to make a step of them.
        expected = set(UPDATE_NUMBERS) if is_hosts and self.has_gradients else set()
        yield set(self.update) == expected, ("state", "method", "update")
        yield self.lr >= 0, ("lr",)
