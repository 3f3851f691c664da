"""The manifest of a program, checked type by type.

Letters: q queries, B examples a step, N = 2qB rows, T tokens, K label positions, V vocabulary.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from prgec.core.contract.names import (
    DEFAULT_RATE,
    HOST_STATE,
    METHODS,
    OPTIMIZERS,
    PREFIX_MODES,
    SIDE,
    STATE_ACCESS,
    STATE_MODES,
    STATE_SUFFIX,
    UPDATE_NUMBERS,
)
from prgec.errors import ProgramError

# Bounds no program comes near; a manifest beyond them is damaged or made to exhaust memory.
_MAX_QUERIES, _MAX_SIZE, _MAX_WIDTH, _MAX_ELEMENTS = 1 << 16, 1 << 20, 1 << 31, 1 << 31


@dataclass(frozen=True)
class Site:
    """One Linear layer that carries a LoRA-FA branch.

    Attributes:
        name: Module path in the Hugging Face model, e.g. `model.layers.0.self_attn.q_proj`.
        index: Position in the noise counter; unique and stable within a program.
        in_features: Width of the layer's input.
        out_features: Width of the layer's output.
    """

    name: str
    index: int
    in_features: int
    out_features: int

    @property
    def state_name(self) -> str:
        """Fully qualified name of the trainable buffer."""
        return self.name + STATE_SUFFIX


@dataclass(frozen=True)
class Manifest:
    """The manifest of a program; stored as JSON in the constant method `prgec_manifest`.

    Attributes:
        model: Checkpoint the program came from (folder name or hub id; never an absolute path).
        architecture: Hugging Face architecture class name.
        backend: Row of the backend table that lowered it.
        q: Queries a step.
        batch_size: B, examples a step.
        seq_len: T, the compiled maximum number of tokens.
        dynamic_seq_len: Whether any T from 2 to `seq_len` is accepted.
        num_labels: K, label positions a row.
        vocab_size: V.
        rank: r of every site.
        alpha: LoRA alpha; the branch is scaled by alpha / rank.
        a_seed: Seed the frozen A matrices were drawn from (`prgec.runtime_ops.lora_a`).
        state: `seeded` (one master per site), `dual` (2q copies per site, the paper's Algorithm 2) or `host` (nothing
            of it: the host keeps it and passes it in).
        quantize: Scheme of the frozen weights, `none` for f32.
        quantize_embedding: Bits of the embedding table, 0 for f32.
        prefix: How the blocks before the first trained one run: `none` (with all N rows), `shared` (with B rows,
            repeated for every replica) or `method` (the same, as a method of its own whose results can be kept).
        hidden_size: D of the prefix's result, or of what `emit` returns; 0 without either.
        state_access: How a host reads the state: as `buffers` that it may also write, or as further `outputs` of
            `forward`, one master a site, of a program that keeps its state to itself and has no `apply`; or not at all,
            where the host keeps it and it is among the `inputs`.
        data_sha256: Fingerprint of the file of weights beside the program (`prgec.core.contract.ptd`); empty for none.
        generate: Whether there is a `next_tokens` method.
        context: C, positions of the cache of the `extend` method; 0 where there is none.
        rollouts: R, texts that the `decode` method continues at once; 0 where there is none.
        a_sha256: Hash of the frozen A matrices where they are not drawn from `a_seed` but were given; else empty.
        prompts_sha256: Hash of the tokens of the prompts that weights were rounded or A calibrated by; empty where no
            data decided anything.
        sites: Trained layers in the order of their noise index.
        pipeline: Text of the pass pipeline that built the graph.
        base_sha256: Hash over the names and bytes of the checkpoint's weights.
        versions: Versions of prgec, torch, executorch, torchao and transformers at compile time, and of the backend's
            own compiler, if it has one.
        pad_token_id: Token used to right-pad rows.
        soc: Chip it was compiled for; empty where that makes no difference.
        prefix_sha256: Hash of everything results of the `prefix` method depend on besides the tokens; empty without
            one, and in programs made before there was this field.
        config: Text of the TOML file with which `prgec compile -c` makes the program again; empty in programs made
            before there was this field.
        method: How it trains: `prge` by measured losses (contract 1), `exact` or `shortcut` by gradients it computes
            itself (contract 2); `side` not at all, a network beside it does (contract 3). But for `prge`, q is 1 and a
            call takes B rows.
        optimizer: Rule by which it applies gradients; empty where it computes none.
        accumulates: Whether a step may be several calls, whose gradients are averaged.
        label_weights: Whether `forward` takes what each label counts in the loss that it differentiates.
        update: Numbers of the optimiser (`names.UPDATE_NUMBERS`) where the host takes its steps; else empty.
        num_blocks: L, blocks whose outputs `emit` returns; 0 but for `side`.
        planned_bytes: Memory that training takes in the C++ driver and no file backs, as planned when it was
            compiled; 0 where nobody planned it.
        lr: Learning rate of a run that names none.
        answers: Choices of an answer where the data it was compiled for gave them, and not a task; else empty.
        has_checksums: Whether a table of checksums follows the program (`prgec.core.contract.checksums`); not so in
            programs made before there was one.
    """

    model: str
    architecture: str
    backend: str
    q: int
    batch_size: int
    seq_len: int
    dynamic_seq_len: bool
    num_labels: int
    vocab_size: int
    rank: int
    alpha: float
    a_seed: int
    state: str
    quantize: str
    sites: tuple[Site, ...]
    pipeline: str
    base_sha256: str
    versions: dict[str, str] = field(default_factory=dict)
    pad_token_id: int = 0
    quantize_embedding: int = 0
    prefix: str = "none"
    hidden_size: int = 0
    state_access: str = "buffers"
    data_sha256: str = ""
    generate: bool = False
    a_sha256: str = ""
    soc: str = ""
    prefix_sha256: str = ""
    config: str = ""
    method: str = "prge"
    optimizer: str = ""
    accumulates: bool = False
    label_weights: bool = False
    planned_bytes: int = 0
    has_checksums: bool = False
    num_blocks: int = 0
    update: dict[str, float] = field(default_factory=dict)
    context: int = 0
    lr: float = DEFAULT_RATE
    answers: tuple[str, ...] = ()
    prompts_sha256: str = ""
    rollouts: int = 0

    @property
    def has_gradients(self) -> bool:
        """Whether it computes gradients and updates itself in the same call."""
        return self.method not in ("prge", SIDE)

    @property
    def emits(self) -> bool:
        """Whether it trains nothing and emits what a side network learns from."""
        return self.method == SIDE

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
            manifest = cls(**{**told, "sites": sites, "answers": tuple(raw.get("answers", ()))})
        except (TypeError, KeyError, AttributeError) as error:
            raise ProgramError(f"the program's manifest lacks a field: {error}", hint="compile it again") from error
        manifest._check()
        return manifest

    def _check(self) -> None:
        self._check_types()
        self._check_sizes()
        self._check_update()
        if self.state not in STATE_MODES:
            raise ProgramError(f"the program's manifest has state {self.state!r}; expected one of {STATE_MODES}")
        if self.prefix not in PREFIX_MODES:
            raise ProgramError(f"the program's manifest has prefix {self.prefix!r}; expected one of {PREFIX_MODES}")
        if self.state_access not in STATE_ACCESS:
            raise ProgramError(
                f"the program's manifest has state_access {self.state_access!r}; expected one of {STATE_ACCESS}"
            )
        if (self.state == HOST_STATE) != (self.state_access == "inputs"):
            raise ProgramError(
                f"the program's manifest has state {self.state!r} and state_access {self.state_access!r}"
            )
        if self.method not in METHODS or (self.optimizer not in OPTIMIZERS) == self.has_gradients:
            raise ProgramError(f"the program's manifest has method {self.method!r} and optimizer {self.optimizer!r}")
        if self.accumulates and not self.has_gradients:
            raise ProgramError("the program's manifest has accumulates, but no gradients")
        if self.label_weights and not self.has_gradients:
            raise ProgramError("the program's manifest has label_weights, but no gradients")
        if len({site.name for site in self.sites}) != len(self.sites):
            raise ProgramError("the program's manifest names a site twice")

    def _check_types(self) -> None:
        """Refuse values of other types than the fields have: what follows computes with them."""
        parts: tuple[Manifest | Site, ...] = (self, *self.sites)
        for each in parts:
            for item in fields(each):
                value, expected = getattr(each, item.name), _TYPES.get(str(item.type))
                if expected is not None and (type(value) not in expected):
                    raise ProgramError(f"the program's manifest has {item.name} = {value!r}; expected {item.type}")
        if not math.isfinite(self.alpha):
            raise ProgramError(f"the program's manifest has alpha = {self.alpha!r}; expected a finite number")
        if not (math.isfinite(self.lr) and self.lr >= 0):
            raise ProgramError(f"the program's manifest has lr = {self.lr!r}; expected a finite number, 0 or more")
        if any(not isinstance(text, str) for text in self.versions.values()):
            raise ProgramError("the program's manifest has versions that are not texts")
        if any(not isinstance(text, str) for text in self.answers):
            raise ProgramError("the program's manifest has answers that are not text")

    def _check_update(self) -> None:
        """Refuse a program whose host would not know what to do with gradients."""
        expected = set(UPDATE_NUMBERS) if self.state == HOST_STATE and self.has_gradients else set()
        numbers = self.update.values()
        if set(self.update) != expected or not all(type(n) in _TYPES["float"] and math.isfinite(n) for n in numbers):
            raise ProgramError(f"the program's manifest has update {self.update!r}; expected {sorted(expected)}")

    def _check_sizes(self) -> None:
        sizes = {
            "q": _MAX_QUERIES,
            "batch_size": _MAX_SIZE,
            "seq_len": _MAX_SIZE,
            "num_labels": _MAX_SIZE,
            "vocab_size": _MAX_WIDTH,
            "rank": _MAX_SIZE,
        }
        if self.prefix == "method" or self.emits:
            sizes["hidden_size"] = _MAX_SIZE
        if self.emits:
            sizes["num_blocks"] = _MAX_QUERIES
        for name, limit in sizes.items():
            if not 1 <= getattr(self, name) <= limit:
                raise ProgramError(
                    f"the program's manifest has {name} = {getattr(self, name)!r}; expected a positive "
                    f"integer up to {limit}"
                )
        for name, number in (("context", self.context), ("rollouts", self.rollouts)):
            if not 0 <= number <= _MAX_SIZE:
                raise ProgramError(f"the program's manifest has {name} = {number!r}; expected 0 to {_MAX_SIZE}")
        if self.num_rows * max(self.seq_len, self.num_labels) > _MAX_ELEMENTS:
            raise ProgramError("the program's manifest has more rows than any program can hold")
        for site in self.sites:
            if not (
                0 <= site.index < 1 << 32
                and 1 <= min(site.in_features, site.out_features)
                and max(site.in_features, site.out_features) * self.rank <= _MAX_ELEMENTS
            ):
                raise ProgramError(f"the program's manifest has a site {site.name!r} of impossible size")


# By annotation; a JSON number without a fraction is an int.
_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "float": (float, int),
    "dict[str, str]": (dict,),
    "dict[str, float]": (dict,),
}
