"""Options of other tools, and what they are called here."""

from __future__ import annotations

_STEPS = "--steps, the number of training steps: rows x epochs / batch size"
# Option -> hint, in every command.
EVERYWHERE = {
    "--epochs": _STEPS,
    "--num-epochs": _STEPS,
    "--num-train-epochs": _STEPS,
    "--iters": _STEPS,
    "--max-steps": "--steps",
    "--learning-rate": "--lr",
    "--output-dir": "--out",
    "--max-seq-length": "--seq-len, of prgec compile; --data there sets it by the longest row",
    "--max-length": "--seq-len, of prgec compile; --data there sets it by the longest row",
    "--max-new-tokens": "--max-tokens, of prgec chat; --generate N, of prgec predict",
    "--lora-r": "--rank, of prgec compile",
    "--lora-rank": "--rank, of prgec compile",
    "--lora-alpha": "--alpha, of prgec compile",
    "--target-modules": "--targets, of prgec compile",
    "--load-in-4bit": "--quantize 4, of prgec compile",
    "--load-in-8bit": "--quantize 8, of prgec compile",
    "--gradient-checkpointing": "--recompute layers, of prgec compile",
    "--grad-checkpoint": "--recompute layers, of prgec compile",
    "--gradient-accumulation-steps": "--accumulate K of prgec run, for a program compiled with --accumulate",
    "--train-file": "--data",
    "--dataset": "--data",
    "--validation-file": "--eval-data",
    "--patience": "--early-stop N",
    "--adapter-path": "--adapter",
}
# The same in single commands.
HERE = {
    ("run", "--batch-size"): "prgec compile --batch-size, which fixes it in the program",
    ("run", "--quantize"): "prgec compile --quantize, which fixes it in the program",
    ("run", "--seq-len"): "prgec compile --seq-len, which fixes it in the program",
    ("run", "--rank"): "prgec compile --rank, which fixes it in the program",
    ("run", "--method"): "prgec compile --method, which fixes it in the program",
    ("compile", "--lr"): "prgec run --lr; a program can be trained at any rate",
    ("compile", "--steps"): "prgec run --steps",
}


def hint_for(command: str, option: str) -> str:
    """Return what to use for an option that a command does not have; empty if there is nothing to say."""
    word = "--" + option.lstrip("-").replace("_", "-")
    return HERE.get((command, word)) or EVERYWHERE.get(word, "")
