"""One call in a process of its own, and its answer."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, SpawnContext
from typing import Any

from prgec.core.machine.parent import end_with_parent
from prgec.core.machine.quiet import quiet_libraries
from prgec.errors import BackendError, PrgecError


def call_apart(context: ForkContext | SpawnContext, what: str, call: Callable[..., Any], *arguments: Any) -> Any:
    """Return what `call` returns in a process of its own.

    Args:
        context: How the process begins: with what this one holds, or anew.
        what: Name of the work, for messages.
        call: A function of a module.
        arguments: Arguments of `call`; pickled.

    Raises:
        PrgecError: The error that the call raised.
        BackendError: If its process died.
    """
    receiver, sender = context.Pipe(duplex=False)
    # As bytes: where the process begins anew, reading them imports libraries, which must be quiet by then.
    pickled = pickle.dumps((call, arguments))
    child = context.Process(target=_answer, args=(os.getpid(), sender, pickled), daemon=True)
    child.start()
    sender.close()
    answers: list[Any] = []
    try:
        answers.append(receiver.recv())
    except EOFError:
        pass
    except BaseException:
        child.terminate()
        raise
    finally:
        child.join()
    if not answers:
        raise BackendError(
            f"the process of {what} ended with code {child.exitcode}",
            hint="was there enough memory?" if child.exitcode == -signal.SIGKILL else None,
        )
    if isinstance(answers[0], PrgecError):
        raise answers[0]
    return answers[0]


def _answer(parent_pid: int, sender: Connection, pickled: bytes) -> None:
    # Ctrl-C is for the process that waits: it ends this one, or stops after it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent(parent_pid)
    quiet_libraries()
    call, arguments = pickle.loads(pickled)
    try:
        sender.send(call(*arguments))
    except PrgecError as error:
        sender.send(error)
