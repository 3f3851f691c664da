"""Each rule about options refuses what it is for, in its own words, and no rule refuses what is usual."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from prgec.backends import load_backend
from prgec.compiler.options import CompileOptions
from prgec.compiler.rules import BACKEND_RULES, RULES
from prgec.errors import UsageError

DATA = (Path("train.jsonl"),)
CACHE: dict[str, Any] = {"generate": True, "context": 64}
SIDE: dict[str, Any] = {"method": "side", "num_labels": 1}
TRAINS = "is for programs that train"
# Options that cannot be compiled, and the beginning of the error.
BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"q": 0}, "--q is 0; expected at least 1"),
    ({"batch_size": 0}, "--batch-size is 0; expected at least 1"),
    ({"rank": -1}, "--rank is -1; expected at least 1"),
    ({"num_labels": 0}, "--label-tokens is 0; expected at least 1"),
    ({"num_labels": -1, "data": DATA}, "--label-tokens is -1; expected at least 1"),
    ({"seq_len": 3}, "--seq-len is 3; expected at least 4"),
    ({"seq_len": 8, "num_labels": 8}, "--label-tokens is 8; expected less than --seq-len 8"),
    ({"lora_a": "calibrated"}, "--lora-a calibrated needs prompts"),
    ({"rounding": "gptq", "data": DATA}, "--rounding gptq needs weights to round. Hint: add --quantize"),
    ({"rounding": "gptq", "quantize": "8da4w"}, "--rounding gptq needs prompts. Hint: name a file of them with --data"),
    ({"quantize_cache": True}, "--quantize-cache is for programs with a cache"),
    ({"rollouts": 4}, "--rollouts is for programs with a cache"),
    ({"generate": True, "context": 3}, "--context is 3; expected at least 4"),
    ({**CACHE, "rollouts": 1}, "--rollouts is 1; expected 2 to "),
    ({"context": 64}, "--context is for programs that generate"),
    ({**CACHE, "state": "host"}, "--state host has no cache in the program"),
    ({**CACHE, "static": True}, "--context needs a T that varies"),
    ({**CACHE, "backend": "qnn"}, "--context needs a T that varies"),
    ({"method": "side", "num_labels": 2}, "--label-tokens is 2; --method side needs the first token"),
    *(
        ({**SIDE, name: value}, f"{flag} {TRAINS}")
        for name, value, flag in (
            ("optimizer", "adamw", "--optimizer"),
            ("clip_norm", 1.0, "--clip-norm"),
            ("weight_decay", 0.1, "--weight-decay"),
            ("polyak", 0.0, "--polyak"),
            ("accumulate", True, "--accumulate"),
            ("label_weights", True, "--label-weights"),
            ("recompute", "layers", "--recompute"),
            ("q", 8, "--q"),
            ("state", "dual", "--state"),
            ("rng", "ops", "--rng"),
            ("generate", True, "--generate"),
            ("context", 64, "--context"),
            ("targets", ("q_proj",), "--targets"),
            ("layers", ("last:1",), "--layers"),
            ("prefix", "method", "--prefix"),
            ("rank", 2, "--rank"),
            ("alpha", 2.0, "--alpha"),
            ("a_seed", 7, "--a-seed"),
            ("lora_a", "a.safetensors", "--lora-a"),
        )
    ),
    ({**SIDE, "context": 64, "rollouts": 2}, f"--context {TRAINS}"),
    ({"state": "host", "rng": "ops"}, "--state host leaves the noise to the host; leave out --rng"),
    ({"clip_norm": -1.0}, "--clip-norm is -1.0; expected a finite number, 0 or more"),
    ({"weight_decay": math.nan}, "--weight-decay is nan; expected a finite number, 0 or more"),
    ({"polyak": math.inf}, "--polyak is inf; expected a finite number, 0 or more"),
    ({"method": "shortcut", "recompute": "layers"}, "--recompute layers is for --method exact; shortcut keeps"),
    ({"optimizer": "momentum"}, "--optimizer needs gradients"),
    ({"clip_norm": 1.0}, "--clip-norm needs gradients"),
    ({"weight_decay": 0.1}, "--weight-decay needs gradients"),
    ({"polyak": 0.5}, "--polyak needs gradients"),
    ({"accumulate": True}, "--accumulate needs gradients"),
    ({"label_weights": True}, "--label-weights needs gradients"),
    ({"method": "exact", "state": "dual"}, "--state dual is for --method prge; exact keeps one copy"),
    ({"method": "exact", "prefix": "shared"}, "--prefix shared is for --method prge"),
]


def _options(changes: dict[str, Any]) -> CompileOptions:
    return CompileOptions(model="m", **{"method": "prge", "num_labels": 1, **changes})


def _first(options: CompileOptions) -> tuple[int, str]:
    """The number of the first rule that options break, and its message."""
    for number, rule in enumerate(RULES):
        try:
            rule.check(options)
        except UsageError as error:
            return number, str(error)
    raise AssertionError("no rule is broken")


@pytest.mark.parametrize(("changes", "message"), BROKEN, ids=[message for _, message in BROKEN])
def test_refused_in_its_words(changes: dict[str, Any], message: str) -> None:
    assert re.match(re.escape(message), _first(_options(changes))[1])


def test_every_rule_is_the_first_for_something() -> None:
    reached = {_first(_options(changes))[0] for changes, _ in BROKEN}
    # A cache of rows needs a cache, which the rule of --context has refused by then.
    unreached = [RULES[number].message for number in sorted({*range(len(RULES))} - reached)]
    assert [message.split()[0] for message in unreached] == ["--rollouts"]


@pytest.mark.parametrize("method", ["prge", "exact", "shortcut", "side"])
@pytest.mark.parametrize("backend", ["xnnpack", "portable", "qnn"])
def test_usual_options_break_none(method: str, backend: str) -> None:
    options = _options({"method": method, "backend": backend})
    for rule in RULES:
        rule.check(options)


@pytest.mark.parametrize(
    ("backend", "changes", "message"),
    [
        ("qnn", {"recompute": "layers", "method": "exact"}, "--backend qnn orders a program itself"),
        ("qnn", {"quantize": "int4"}, "--backend qnn has no --quantize int4. Hint: it has: none, "),
        ("qnn", {"state": "host"}, "--backend qnn cannot train with --state host. Hint: it has: dual, seeded"),
        (
            "vulkan",
            {"method": "shortcut"},
            "--backend vulkan cannot train with --method shortcut. Hint: it has: exact, ",
        ),
        ("vulkan", {"quantize_embedding": 4}, "--backend vulkan has no --quantize-embedding. Hint: leave it out"),
        ("qnn", {"dtype": "bf16"}, "--backend qnn does not compute in bf16. Hint: it does in: "),
        (
            "xnnpack",
            {"dtype": "f32", "quantize": "int8"},
            "--backend xnnpack has no --quantize int8. Hint: it has: none, ",
        ),
        ("cuda", {"dtype": "f32", "quantize": "int8"}, "--quantize int8 multiplies in 16 bits; leave out --dtype f32"),
    ],
)
def test_a_backend_refuses_what_it_has_no_means_for(backend: str, changes: dict[str, Any], message: str) -> None:
    options, loaded = _options({"backend": backend, **changes}), load_backend(backend)
    for rule in BACKEND_RULES:
        try:
            rule.check(options, loaded)
        except UsageError as error:
            assert str(error).startswith(message)
            return
    raise AssertionError("no rule is broken")
