"""Checks what lowering for CUDA needs of a machine, before anything is loaded, and reports everything at once.

There is no way to lower without a GPU: AOTInductor measures kernels while it compiles (ExecuTorch turns max_autotune
on, and needs it: without it, matrix products call a cuBLAS shim that the delegate does not have).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

from prgec.errors import BackendError

_CUDA_HOME_VARIABLES = ("CUDA_HOME", "CUDA_PATH")
_DEFAULT_CUDA_HOME = Path("/usr/local/cuda")
_HINT = "compile on a machine with the GPU the program is for; docs/cuda.md lists what it needs"


def check() -> None:
    """Check everything.

    Raises:
        BackendError: Naming whatever is missing.
    """
    missing = [*_missing_in_python(), *_missing_tools()]
    if missing:
        raise BackendError(f"this machine cannot lower for CUDA: {'; '.join(missing)}", hint=_HINT)


def cuda_home() -> Path | None:
    """Return the folder of the CUDA toolkit: from the environment, around nvcc, or the usual one; None without one."""
    nvcc = shutil.which("nvcc")
    candidates = [Path(os.environ[name]) for name in _CUDA_HOME_VARIABLES if os.environ.get(name)]
    candidates += [Path(nvcc).resolve().parents[1]] if nvcc else []
    return next((path for path in (*candidates, _DEFAULT_CUDA_HOME) if (path / "bin" / "nvcc").is_file()), None)


def _missing_in_python() -> list[str]:
    import torch

    missing = []
    if torch.version.cuda is None:
        missing.append(f"PyTorch {torch.__version__} is a build without CUDA")
    elif not torch.cuda.is_available():
        missing.append("PyTorch sees no GPU")
    if importlib.util.find_spec("triton") is None:
        missing.append("Triton is not installed")
    return missing


def _missing_tools() -> list[str]:
    missing = []
    home = cuda_home()
    if home is None:
        missing.append("there is no CUDA toolkit (no nvcc)")
    elif not any(
        (home / folder / "cuda.h").is_file()
        for folder in ("include", "targets/x86_64-linux/include", "targets/aarch64-linux/include")
    ):
        missing.append(f"the CUDA toolkit in {home} has no cuda.h")
    if not any(shutil.which(name) for name in ("g++", "c++", "clang++")):
        missing.append("there is no C++ compiler")
    return missing
