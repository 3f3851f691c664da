"""Checks of options: their values, and which go with which others."""

from __future__ import annotations

import math

from prgec.backends import check_settings, find_backend
from prgec.compiler.options import AUTO_ROUNDING, ROUNDED_BITS, CompileOptions
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


def check_options(options: CompileOptions) -> None:
    """Check everything that needs no model.

    Raises:
        UsageError: On an impossible value.
    """
    sizes = [("--q", options.q), ("--batch-size", options.batch_size), ("--rank", options.rank)]
    if options.num_labels or not options.data:
        sizes.append(("--label-tokens", options.num_labels))
    for flag, value in sizes:
        if value < 1:
            raise UsageError(f"{flag} is {value}; expected at least 1")
    if options.seq_len < 4 and (options.seq_len or not options.data):
        raise UsageError(f"--seq-len is {options.seq_len}; expected at least 4")
    if options.num_labels >= options.seq_len > 0:
        raise UsageError(f"--label-tokens is {options.num_labels}; expected less than --seq-len {options.seq_len}")
    if options.is_calibrated and not options.data:
        raise UsageError("--lora-a calibrated needs prompts", hint="name a file of them with --data")
    if options.rounding not in (AUTO_ROUNDING, NEAREST):
        _check_rounding(options)
    _check_context(options)
    _check_method(options)
    check_settings(options.backend, options.settings)
    if options.output.is_dir():
        raise UsageError("the output is a folder", where=options.output, hint="name a file: -o model.pte")
    if not options.output.parent.is_dir():
        raise UsageError("the folder of the output does not exist", where=options.output.parent)


def _check_rounding(options: CompileOptions) -> None:
    """Refuse a rounding that somebody named where there is nothing to round, or nothing to round by."""
    if options.quantize not in ROUNDED_BITS:
        known = " or ".join(ROUNDED_BITS)
        raise UsageError(f"--rounding {options.rounding} needs weights to round", hint=f"add --quantize {known}")
    if options.rounds_by_prompts and not options.data:
        raise UsageError(f"--rounding {options.rounding} needs prompts", hint="name a file of them with --data")


def _check_context(options: CompileOptions) -> None:
    """Refuse a cache that nobody could use."""
    if not options.context:
        if options.quantize_cache:
            raise UsageError("--quantize-cache is for programs with a cache", hint="add --generate --context C")
        if options.rollouts:
            raise UsageError("--rollouts is for programs with a cache", hint="add --generate --context C")
        return
    if options.context < MIN_CONTEXT:
        raise UsageError(f"--context is {options.context}; expected at least {MIN_CONTEXT}")
    if options.rollouts and not 2 <= options.rollouts <= MAX_ROLLOUTS:
        raise UsageError(f"--rollouts is {options.rollouts}; expected 2 to {MAX_ROLLOUTS}, or 0 for one text at a time")
    if not options.generate and options.method != SIDE:
        raise UsageError("--context is for programs that generate", hint="add --generate")
    if options.state == HOST_STATE:
        raise UsageError("--state host has no cache in the program; leave out --context")
    if options.static or not find_backend(options.backend).dynamic_seq_len:
        raise UsageError("--context needs a T that varies from call to call, which this program would not have")


def _check_method(options: CompileOptions) -> None:
    """Refuse options of one method with another."""
    if options.method == SIDE:
        _check_side(options)
        return
    numbers = {"--clip-norm": options.clip_norm, "--weight-decay": options.weight_decay}
    numbers |= {} if options.polyak is None else {"--polyak": options.polyak}
    if options.state == HOST_STATE and options.rng != "auto":
        raise UsageError("--state host leaves the noise to the host; leave out --rng")
    for flag, number in numbers.items():
        if not (math.isfinite(number) and number >= 0):
            raise UsageError(f"{flag} is {number}; expected a finite number, 0 or more")
    if options.recompute == LAYERS and options.method != "exact":
        raise UsageError(
            f"--recompute {LAYERS} is for --method exact; {options.method} keeps little of most blocks, or nothing",
            hint="leave it out",
        )
    if options.method == "prge":
        given = {
            "--optimizer": options.optimizer != "norm",
            "--clip-norm": options.clip_norm > 0,
            "--weight-decay": options.weight_decay > 0,
            # Configurations written while it had one default say so.
            "--polyak": options.polyak not in (None, POLYAK["norm"]),
            "--accumulate": options.accumulate,
            "--label-weights": options.label_weights,
        }
        for flag in (flag for flag, is_given in given.items() if is_given):
            raise UsageError(f"{flag} needs gradients", hint="add --method exact or --method shortcut")
        return
    if options.state == "dual":
        raise UsageError(f"--state dual is for --method prge; {options.method} keeps one copy of its weights")
    if options.prefix == "shared":
        raise UsageError(
            "--prefix shared is for --method prge: other methods have one row an example",
            hint="--prefix method keeps results of the first blocks",
        )


def _check_side(options: CompileOptions) -> None:
    """Refuse what only programs that train have."""
    if options.num_labels != 1:
        raise UsageError(
            f"--label-tokens is {options.num_labels}; --method side needs the first token of an answer: leave it out"
        )
    for item in table_of(CompileOptions):
        if item.name in _ONLY_TRAINING and getattr(options, item.name) != item.default:
            raise UsageError(
                f"{item.flags[0]} is for programs that train; one of --method side stays as it is",
                hint="prgec side fit has options for the network beside it",
            )
