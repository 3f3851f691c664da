"""The process that computes rewards: one JSON object a line in, one out.

It starts with the rewards, its memory limit and whether it may reach the network; nothing a reward prints, allocates or
breaks reaches the run.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import math
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import IO, Any

from prgec.errors import PrgecError
from prgec.runtime.rewards.builtin import BUILTINS
from prgec.runtime.rewards.source import BUILTIN, COMMAND, RewardSource

Score = Callable[[Any, str, dict[str, Any]], float]
# From linux/sched.h.
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000


def main() -> None:
    """Answer requests until the run closes the pipe."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # A reward may print: that is for people.
    os.dup2(2, 1)
    setup = json.loads(sys.stdin.readline())
    is_apart = setup["network"] or _leave_network()
    try:
        scores = [(source, _load(source)) for source in (RewardSource(**each) for each in setup["sources"])]
    except PrgecError as error:
        _reply(replies, error=str(error))
        return
    except Exception as error:  # a user's file may raise anything when it is imported
        _reply(replies, error=f"{type(error).__name__}: {error}")
        return
    limit = setup["memory"]
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    _reply(replies, ready=True, apart=is_apart)
    for line in sys.stdin:
        _reply(replies, **_answer(scores, json.loads(line)))


def _answer(scores: list[tuple[RewardSource, Score]], request: Mapping[str, Any]) -> dict[str, Any]:
    total = 0.0
    for source, score in scores:
        try:
            value = score(request["prompt"], request["answer"], request["record"])
            number = float(value)
        except MemoryError:
            return {"error": f"{source.describe()} ran out of memory"}
        except PrgecError as error:
            return {"error": f"{source.describe()}: {error}"}
        except Exception as error:  # a user's function may raise anything
            return {"error": f"{source.describe()} raised {type(error).__name__}: {error}"}
        if not math.isfinite(number):
            return {"error": f"{source.describe()} returned {number}"}
        total += source.weight * number
    return {"reward": total}


def _load(source: RewardSource) -> Score:
    if source.kind == BUILTIN:
        row = BUILTINS[source.name]
        return lambda prompt, answer, record: row.score(answer, record, source.argument)
    if source.kind == COMMAND:
        return lambda prompt, answer, record: _run(source.name, prompt, answer, record)
    spec = importlib.util.spec_from_file_location("reward_of_the_user", source.name)
    assert spec is not None and spec.loader is not None, "a file that ends in .py"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, "reward", None)
    if not callable(function):
        raise PrgecError(
            "the file has no function reward", where=source.name, hint="write def reward(prompt, answer, record)"
        )
    return function  # type: ignore[no-any-return]


def _run(command: str, prompt: Any, answer: str, record: dict[str, Any]) -> float:
    """Run a command that reads the JSON object from stdin: the number it prints, else 1 for exit code 0."""
    document = json.dumps({"prompt": prompt, "answer": answer, "record": record})
    done = subprocess.run(command, shell=True, input=document, capture_output=True, text=True, check=False)
    lines = done.stdout.split()
    if lines:
        try:
            return float(lines[-1])
        except ValueError:
            pass
    return float(done.returncode == 0)


def _leave_network() -> bool:
    """Move this process where there is no network; return whether the system allows it."""
    unshare = getattr(ctypes.CDLL(None, use_errno=True), "unshare", None)
    if unshare is None:
        return False
    return any(unshare(flags) == 0 for flags in (_CLONE_NEWUSER | _CLONE_NEWNET, _CLONE_NEWNET))


def _reply(replies: IO[str], **values: Any) -> None:
    replies.write(json.dumps(values) + "\n")
    replies.flush()


if __name__ == "__main__":
    main()
