"""The tools of this machine that build the C++ driver for 64-bit ARM and run it emulated."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = "qemu-aarch64-static"
SYSROOT = Path("/usr/aarch64-linux-gnu")
# Processors to emulate. XNNPACK multiplies and packs otherwise where a processor has SME, as the newest have.
WITH_SME, WITHOUT_SME = "max", "cortex-a72"
# The folder ExecuTorch's aarch64 wheel was unpacked to.
WHEEL_VARIABLE = "EXECUTORCH_ARM64"


def arm64_missing() -> list[str]:
    """Name what is not here, each with the way to get it; nothing where all is."""
    missing = []
    if shutil.which(COMPILER) is None:
        missing.append(f"{COMPILER} (apt-get install g++-aarch64-linux-gnu)")
    if shutil.which(EMULATOR) is None:
        missing.append(f"{EMULATOR} (apt-get install qemu-user-static)")
    if arm64_wheel() is None:
        missing.append(f"ExecuTorch's aarch64 wheel in {WHEEL_VARIABLE} (docs/arm64.md)")
    return missing


def arm64_wheel() -> Path | None:
    """The unpacked wheel, if the variable names one."""
    folder = os.environ.get(WHEEL_VARIABLE)
    if not folder or not (Path(folder) / "executorch" / "lib" / "libexecutorch.so").is_file():
        return None
    return Path(folder)


def emulated(executable: Path, wheel: Path, processor: str = WITH_SME) -> list[str]:
    """The command that runs an executable of the preset `arm64` on this machine, as if on a processor."""
    libraries = wheel / "executorch" / "lib"
    environment = f"LD_LIBRARY_PATH={libraries}"
    return [EMULATOR, "-cpu", processor, "-L", str(SYSROOT), "-E", environment, str(executable)]
