"""Which options of a compilation go together: one rule a row, in the order in which they are reported."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prgec.backends import find_backend
from prgec.backends.base import Backend
from prgec.compiler.options import AUTO_ROUNDING, ROUNDED_BITS, WEIGHT_ONLY_BITS, CompileOptions
from prgec.core.config.option import table_of
from prgec.core.contract.names import HOST_STATE, LAYERS, MAX_ROLLOUTS, NEAREST, POLYAK, SIDE
from prgec.errors import UsageError

# A cache that holds a prompt of two tokens and its continuation.
MIN_CONTEXT = 4
# Options without a meaning for a program that trains nothing.
_ONLY_TRAINING = frozenset(
    {
        "optimizer",
        "clip_norm",
        "weight_decay",
        "polyak",
        "accumulate",
        "label_weights",
        "recompute",
        "q",
        "state",
        "rng",
        "generate",
        "context",
        "rollouts",
        "targets",
        "layers",
        "prefix",
        "rank",
        "alpha",
        "a_seed",
        "lora_a",
    }
)
_ADD_CACHE = "add --generate --context C"
_ADD_DATA = "name a file of them with --data"


@dataclass(frozen=True)
class OptionRule:
    """A combination of options that cannot be compiled.

    Attributes:
        is_broken: Whether options are such a combination.
        message: The error's text; `{o}` stands for the options.
        hint: The error's hint.
    """

    is_broken: Callable[[CompileOptions], bool]
    message: str
    hint: str | None = None

    def check(self, options: CompileOptions) -> None:
        """Refuse options that break the rule.

        Raises:
            UsageError: If they do.
        """
        if self.is_broken(options):
            raise UsageError(self.message.format(o=options), hint=self.hint)


@dataclass(frozen=True)
class BackendRule:
    """Options that a backend has no means for.

    Attributes:
        is_broken: Whether options are such.
        message: The error's text; `{o}` stands for the options, `{b}` for the backend.
        choices: The values that the backend has.
        hint: The error's hint; `{choices}` stands for them.
    """

    is_broken: Callable[[CompileOptions, Backend], bool]
    message: str
    choices: Callable[[Backend], Iterable[str]] = lambda _: ()
    hint: str | None = None

    def check(self, options: CompileOptions, backend: Backend) -> None:
        """Refuse options that break the rule.

        Raises:
            UsageError: If they do.
        """
        if self.is_broken(options, backend):
            hint = self.hint and self.hint.format(choices=", ".join(self.choices(backend)))
            raise UsageError(self.message.format(o=options, b=backend), hint=hint)


def _at_least_1(flag: str, name: str) -> OptionRule:
    return OptionRule(lambda o: getattr(o, name) < 1, f"{flag} is {{o.{name}}}; expected at least 1")


def _not_negative(flag: str, name: str) -> OptionRule:
    def is_broken(o: CompileOptions) -> bool:
        number = getattr(o, name)
        return number is not None and not (math.isfinite(number) and number >= 0)

    return OptionRule(is_broken, f"{flag} is {{o.{name}}}; expected a finite number, 0 or more")


def _needs_gradients(flag: str, is_given: Callable[[CompileOptions], bool]) -> OptionRule:
    return OptionRule(
        lambda o: o.method == "prge" and is_given(o),
        f"{flag} needs gradients",
        "add --method exact or --method shortcut",
    )


def _needs_training(flag: str, name: str, default: object) -> OptionRule:
    return OptionRule(
        lambda o: o.method == SIDE and getattr(o, name) != default,
        f"{flag} is for programs that train; one of --method side stays as it is",
        "prgec side fit has options for the network beside it",
    )


def _rounds(o: CompileOptions) -> bool:
    return o.rounding not in (AUTO_ROUNDING, NEAREST)


_SIZES = (
    _at_least_1("--q", "q"),
    _at_least_1("--batch-size", "batch_size"),
    _at_least_1("--rank", "rank"),
    OptionRule(
        lambda o: o.num_labels < 1 and bool(o.num_labels or not o.data),
        "--label-tokens is {o.num_labels}; expected at least 1",
    ),
    OptionRule(
        lambda o: o.seq_len < 4 and bool(o.seq_len or not o.data), "--seq-len is {o.seq_len}; expected at least 4"
    ),
    OptionRule(
        lambda o: o.num_labels >= o.seq_len > 0,
        "--label-tokens is {o.num_labels}; expected less than --seq-len {o.seq_len}",
    ),
)
_WEIGHTS = (
    OptionRule(lambda o: o.is_calibrated and not o.data, "--lora-a calibrated needs prompts", _ADD_DATA),
    OptionRule(
        lambda o: _rounds(o) and o.quantize not in ROUNDED_BITS,
        "--rounding {o.rounding} needs weights to round",
        f"add --quantize {' or '.join(ROUNDED_BITS)}",
    ),
    OptionRule(
        lambda o: _rounds(o) and o.rounds_by_prompts and not o.data, "--rounding {o.rounding} needs prompts", _ADD_DATA
    ),
)
_CACHE = (
    OptionRule(
        lambda o: bool(o.quantize_cache) and not o.context, "--quantize-cache is for programs with a cache", _ADD_CACHE
    ),
    OptionRule(lambda o: bool(o.rollouts) and not o.context, "--rollouts is for programs with a cache", _ADD_CACHE),
    OptionRule(
        lambda o: bool(o.context) and o.context < MIN_CONTEXT,
        f"--context is {{o.context}}; expected at least {MIN_CONTEXT}",
    ),
    OptionRule(
        lambda o: bool(o.rollouts) and not 2 <= o.rollouts <= MAX_ROLLOUTS,
        f"--rollouts is {{o.rollouts}}; expected 2 to {MAX_ROLLOUTS}, or 0 for one text at a time",
    ),
    OptionRule(
        lambda o: bool(o.context) and not o.generate and o.method != SIDE,
        "--context is for programs that generate",
        "add --generate",
    ),
    OptionRule(
        lambda o: bool(o.context) and o.state == HOST_STATE,
        "--state host has no cache in the program; leave out --context",
    ),
    OptionRule(
        lambda o: bool(o.context) and (o.static or not find_backend(o.backend).dynamic_seq_len),
        "--context needs a T that varies from call to call, which this program would not have",
    ),
)
_SIDE = (
    OptionRule(
        lambda o: o.method == SIDE and o.num_labels != 1,
        "--label-tokens is {o.num_labels}; --method side needs the first token of an answer: leave it out",
    ),
    *(
        _needs_training(item.flags[0], item.name, item.default)
        for item in table_of(CompileOptions)
        if item.name in _ONLY_TRAINING
    ),
)
_METHODS = (
    OptionRule(
        lambda o: o.state == HOST_STATE and o.rng != "auto",
        "--state host leaves the noise to the host; leave out --rng",
    ),
    _not_negative("--clip-norm", "clip_norm"),
    _not_negative("--weight-decay", "weight_decay"),
    _not_negative("--polyak", "polyak"),
    OptionRule(
        lambda o: o.recompute == LAYERS and o.method != "exact",
        f"--recompute {LAYERS} is for --method exact; {{o.method}} keeps little of most blocks, or nothing",
        "leave it out",
    ),
    _needs_gradients("--optimizer", lambda o: o.optimizer != "norm"),
    _needs_gradients("--clip-norm", lambda o: o.clip_norm > 0),
    _needs_gradients("--weight-decay", lambda o: o.weight_decay > 0),
    # A configuration may write the default of its optimiser down.
    _needs_gradients("--polyak", lambda o: o.polyak not in (None, POLYAK["norm"])),
    _needs_gradients("--accumulate", lambda o: o.accumulate),
    _needs_gradients("--label-weights", lambda o: o.label_weights),
    OptionRule(
        lambda o: o.state == "dual" and o.method != "prge",
        "--state dual is for --method prge; {o.method} keeps one copy of its weights",
    ),
    OptionRule(
        lambda o: o.prefix == "shared" and o.method != "prge",
        "--prefix shared is for --method prge: other methods have one row an example",
        "--prefix method keeps results of the first blocks",
    ),
)
RULES = (*_SIZES, *_WEIGHTS, *_CACHE, *_SIDE, *_METHODS)

BACKEND_RULES = (
    BackendRule(
        lambda o, b: o.method not in b.methods,
        "--backend {b.name} cannot train with --method {o.method}",
        lambda b: sorted(b.methods),
        "it has: {choices}",
    ),
    BackendRule(
        lambda o, b: o.recompute == LAYERS and not b.recomputes,
        "--backend {b.name} orders a program itself, so computing layers again frees nothing",
        hint="leave out --recompute",
    ),
    BackendRule(
        lambda o, b: o.state not in b.states,
        "--backend {b.name} cannot train with --state {o.state}",
        lambda b: sorted(b.states),
        "it has: {choices}",
    ),
    BackendRule(
        lambda o, b: o.quantize != "none" and o.quantize not in b.schemes,
        "--backend {b.name} has no --quantize {o.quantize}",
        lambda b: ("none", *sorted(b.schemes)),
        "it has: {choices}",
    ),
    BackendRule(
        lambda o, b: bool(o.quantize_embedding) and o.quantize_embedding not in b.embedding_bits,
        "--backend {b.name} has no --quantize-embedding",
        hint="leave it out",
    ),
    BackendRule(
        lambda o, b: o.dtype not in ("auto", *b.dtypes),
        "--backend {b.name} does not compute in {o.dtype}",
        lambda b: b.dtypes,
        "it does in: {choices}",
    ),
    BackendRule(
        lambda o, b: o.dtype == "f32" and o.quantize in WEIGHT_ONLY_BITS,
        "--quantize {o.quantize} multiplies in 16 bits; leave out --dtype f32",
    ),
)
