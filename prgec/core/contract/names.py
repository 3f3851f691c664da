"""Names and constants of the graph contract between a compiled program and whatever drives it.

This is the public format. Nothing here imports torch or executorch, so that every tool can read it.
`docs/contract.md` is the prose version.
"""

from __future__ import annotations

# Version of programs that train by measured losses, of those that compute their own gradients, and of those that a
# side network learns beside.
CONTRACT_VERSION = 1
GRADIENT_CONTRACT_VERSION = 2
SIDE_CONTRACT_VERSION = 3
CONTRACT_VERSIONS = (CONTRACT_VERSION, GRADIENT_CONTRACT_VERSION, SIDE_CONTRACT_VERSION)

FORWARD_METHOD = "forward"
APPLY_METHOD = "apply"
PREFIX_METHOD = "prefix"
NEXT_TOKENS_METHOD = "next_tokens"
# Reads new tokens after those whose keys and values a cache holds, for prompts and for single tokens alike. It takes
# tokens, label_pos and start, and after them the cache: keys and values of each layer.
EXTEND_METHOD = "extend"
# Reads one token of each of R texts, which have a cache each: tokens and start, and after them those caches, one after
# the other in each part of it.
DECODE_METHOD = "decode"
# Texts that are continued at once: more than any processor gains by.
MAX_ROLLOUTS = 256
# Bits of the cache, 0 for f32, and the largest code of 8.
CACHE_BITS = (0, 8)
CACHE_CODES = 127
# Programs that compute their own gradients have it; others evaluate with `forward`.
EVALUATE_METHOD = "evaluate"
# The one method of programs that a side network learns beside.
EMIT_METHOD = "emit"
# The one method of a side network, and what such a program says of itself instead of a manifest.
SIDE_METHOD = "side"
SIDE_NETWORK_METHOD = "prgec_side_network"
VERSION_METHOD = "prgec_contract_version"
MANIFEST_METHOD = "prgec_manifest"
TOKENIZER_METHOD = "prgec_tokenizer"
# Present where the frozen A matrices were given: a safetensors file with `<site>.lora_A`.
LORA_A_METHOD = "prgec_lora_a"
DELEGATION_METHOD = "prgec_delegation"

# Inputs that have a value for each row, and those that have one for the whole step.
ROW_INPUTS = ("tokens", "label_pos", "targets")
STEP_INPUTS = ("g", "lr", "eps", "seed", "step")
FORWARD_INPUTS = (*ROW_INPUTS, *STEP_INPUTS)
# The one input of `forward` that `next_tokens` lacks.
TARGETS_INPUT = "targets"
# Last input of `forward` in programs that have a `prefix` method, and what that method returns.
HIDDEN_INPUT = "hidden"
PREFIX_INPUTS = ("tokens",)
# Input after the rows, where the manifest has `label_weights`: the weight of each label in the differentiated loss.
WEIGHTS_INPUT = "weights"
LABEL_WEIGHTS_HINT = "compile it with --method exact --label-weights"
# The last input, where a step may be several calls: how many came before, and whether this one is the last.
CALL_INPUT = "call"
EVALUATE_INPUTS = ROW_INPUTS
# Most tokens of one call of `extend`: longer prompts are read in parts.
EXTEND_CHUNK = 128
EMIT_INPUTS = ("tokens", "label_pos")
APPLY_INPUTS = ("g", "lr", "seed", "step")
# Where the host keeps the state, one input a site after the rows, by the site's place in the manifest.
STATE_INPUT = "lora_B_{}"

IGNORE_TARGET = -100
# Targets are whole numbers: for an encoder that gives a score, thousandths of it.
SCORE_UNIT = 1e-3
STATE_SUFFIX = ".lora_B"
FROZEN_SUFFIX = ".lora_A"
# Dual state recovers z as (B+ - B-) / (2 eps), so the eps that made B+ and B- is part of the state.
DUAL_EPS_STATE = "prge_dual_eps"

# State of an optimiser: what all sites share, and what each keeps beside its B.
OPTIMIZER_STATE = "prge_optimizer"
STATE_SUFFIX_MEAN = "_mean"
STATE_SUFFIX_SQUARE = "_square"
# Numbers that a program with gradients passes to a host that takes its steps, besides the rule's name.
UPDATE_NUMBERS = ("clip", "beta1", "beta2", "eps", "decay", "polyak")
# Where a step may be several calls: what they gathered so far. Nothing of it is left between steps.
STATE_SUFFIX_SUM = "_sum"
LOSS_SUM_STATE = "prge_loss_sum"

# How a program trains: by measured losses (prge), by gradients it computes itself, or not at all: a network beside it
# does, elsewhere (side).
SIDE = "side"
TRAINING_METHODS = ("prge", "exact", "shortcut")
METHODS = (*TRAINING_METHODS, SIDE)
OPTIMIZERS = ("norm", "momentum", "adamw")
# Where nobody names one (docs/decisions/024-default-optimizer.md): what a method does with its gradient, the learning
# rate of a run, and the largest share of the loss that a step may aim at.
DEFAULT_OPTIMIZERS = dict.fromkeys(METHODS, "norm") | {"exact": "adamw"}
DEFAULT_RATE = 3e-3
RATES = {"norm": DEFAULT_RATE, "momentum": DEFAULT_RATE, "adamw": 1e-3}
POLYAK = {"norm": 0.2, "momentum": 0.2, "adamw": 5.0}
# Values that a backward pass computes again: cheap ones only, or those of layers too, from the residual stream.
CHEAP, LAYERS = "cheap", "layers"
RECOMPUTATIONS = (CHEAP, LAYERS)
# How a frozen weight becomes one of few values: for itself, or together with the others of its output.
NEAREST, GPTQ = "nearest", "gptq"
ROUNDINGS = (NEAREST, GPTQ)
# Packages add others by entry points of this group: a `prgec.passes.roundings.Rounding` under its name.
QUANTIZER_GROUP = "prgec.quantizers"
# The keeper of the trained weights: the program, as one master a site (seeded) or 2q copies (dual), or its driver.
HOST_STATE = "host"
STATE_MODES = ("seeded", "dual", HOST_STATE)
PREFIX_MODES = ("none", "shared", "method")
STATE_ACCESS = ("buffers", "outputs", "inputs")
# Stands in a manifest until the data file is written; as long as what replaces it.
NO_FINGERPRINT = "0" * 64
