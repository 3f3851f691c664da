"""The scripts of `prgec completion`, in the shells themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig

import pytest

# Sources the script and has it complete the words; prints what came, one a line.
_ASK = {
    "bash": """
source <(prgec completion bash)
COMP_WORDS=({words}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 )); COMPREPLY=()
_prgec_completion prgec
printf '%s\\n' "${{COMPREPLY[@]}}"
""",
    "zsh": """
autoload -Uz compinit && compinit -u -D
source <(prgec completion zsh)
words=({words}); CURRENT=${{#words}}
_describe() {{ print -l -- ${{(P)2}} ${{(P)3}}; }}
compadd() {{ print -l -- ${{(P)argv[-1]}}; }}
_prgec_completion
""",
    "fish": """
prgec completion fish | source
complete -C "{words}"
""",
}


@pytest.mark.parametrize("shell", _ASK)
@pytest.mark.parametrize(
    ("words", "expected"),
    [("prgec fed", "federate"), ("prgec federate ser", "serve"), ("prgec run --lr-sch", "--lr-schedule")],
)
def test_words_are_completed(shell: str, words: str, expected: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    path = os.pathsep.join((sysconfig.get_path("scripts"), os.environ["PATH"]))
    flags = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    done = subprocess.run(
        [shell, *flags, "-c", _ASK[shell].format(words=words)],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path},
        check=False,
    )
    # zsh has `name:summary`, the others no colons.
    assert expected in done.stdout.replace(":", " ").split(), done.stdout + done.stderr
