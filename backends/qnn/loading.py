"""Loads Qualcomm's libraries into this process, where ExecuTorch then finds them by name.

ExecuTorch asks the loader for "libQnnHtp.so" and "libQnnSystem.so". A library that is loaded already answers to its
soname, wherever it came from, so no search path has to be set, and the process does not have to start again.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import logging
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from prgec.backends.qnn.libraries import HTP, INSTALL_HINT, PREPARE, SDK_VARIABLE, SYSTEM, QnnLibraries, find_libraries
from prgec.core.machine.native_log import captured_output
from prgec.errors import BackendError
from prgec.runtime_ops.native import qnn_adapter

# ExecuTorch 1.5 is built against the first; the adapter was tried up to the second.
OLDEST, NEWEST = (2, 37), (2, 51)
_EXPORTER = "executorch.backends.qualcomm"
_TALKATIVE = (f"{_EXPORTER}._passes", f"{_EXPORTER}.partition.qnn_partitioner", f"{_EXPORTER}.qnn_preprocess")
_LATER_BREAKS = "later ones may lay out their structures differently"


@dataclass(frozen=True)
class LoadedQnn:
    """Libraries that are in this process.

    Attributes:
        libraries: Where they came from.
        build: Their own build name, such as `v2.51.0.260929181845`.
        version: QAIRT version, such as (2, 51): a device needs libraries at least as new.
    """

    libraries: QnnLibraries
    build: str
    version: tuple[int, int]

    @property
    def version_text(self) -> str:
        """QAIRT version as people write it."""
        return f"{self.version[0]}.{self.version[1]}"


@cache
def load_libraries() -> LoadedQnn:
    """Load the libraries once.

    Raises:
        BackendError: If they are not here, cannot be loaded, or are of a version ExecuTorch cannot drive.
    """
    libraries = find_libraries()
    # They bring a C++ runtime of their own. One that comes before torch's makes torch crash while it is imported.
    importlib.import_module("torch")
    try:
        with captured_output():
            adapter = ctypes.CDLL(str(qnn_adapter()), mode=ctypes.RTLD_GLOBAL)
            adapter.prgec_qnn_open.restype = adapter.prgec_qnn_build.restype = ctypes.c_char_p
            refusal = adapter.prgec_qnn_open(os.fsencode(libraries.folder.resolve() / HTP))
            if refusal is None:
                ctypes.CDLL(str(libraries.folder.resolve() / SYSTEM))
                _keep_runtimes_apart(libraries.folder.resolve() / PREPARE)
    except OSError as error:
        refusal = str(error).encode()
    if refusal is not None:
        raise BackendError(
            f"cannot load Qualcomm's libraries: {refusal.decode()}",
            where=libraries.folder,
            hint="libatomic.so.1 and libc++ come with the system: apt install libatomic1 libc++1"
            if b"No such file" in refusal
            else INSTALL_HINT,
        )
    build = (adapter.prgec_qnn_build() or b"").decode()
    return LoadedQnn(libraries, build, checked_version(build, libraries))


def _keep_runtimes_apart(prepare: Path) -> None:
    """Put the C++ runtime of torch before Qualcomm's for all libraries loaded from now on.

    Qualcomm's library makes its compiler's symbols global when it first compiles, its C++ runtime's among them. An
    extension that is loaded afterwards would take its exception handling from there, and crash on its first exception.
    So the compiler is bound to its own runtime now, and the system's becomes global before it.
    """
    if prepare.is_file():
        ctypes.CDLL(str(prepare))
    for name in ("libstdc++.so.6", "libgcc_s.so.1"):
        ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)


def checked_version(build: str, libraries: QnnLibraries) -> tuple[int, int]:
    """Return the version in a build id.

    Raises:
        BackendError: If ExecuTorch cannot drive it.
    """
    found = re.match(r"v?(\d+)\.(\d+)", build)
    if found is None:
        raise BackendError(f"Qualcomm's libraries name no version: {build!r}", where=libraries.folder)
    version = int(found[1]), int(found[2])
    if not OLDEST <= version <= NEWEST:
        is_new = version > NEWEST
        what = f"Qualcomm's libraries are version {version[0]}.{version[1]}, too {'new' if is_new else 'old'}"
        tested = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]} are supported"
        raise BackendError(
            f"{what}: {tested}{f'; {_LATER_BREAKS}' if is_new else ''}",
            where=f"{libraries.origin}, {libraries.folder}",
            hint=INSTALL_HINT,
        )
    return version


def import_exporter() -> None:
    """Import ExecuTorch's exporter, and take back what it does to logging: everything of INFO, shown to everybody."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        for module in _TALKATIVE:
            importlib.import_module(module)
            logging.getLogger(module).setLevel(logging.NOTSET)
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers


@contextlib.contextmanager
def sdk_root() -> Iterator[None]:
    """Name the SDK the way ExecuTorch's exporter wants it named, and take the name back.

    The exporter reads the version off `$QNN_SDK_ROOT/lib/x86_64-linux-clang/libQnnHtp.so`, and tries to download an
    SDK where the variable is not set.
    """
    loaded = load_libraries()
    before = os.environ.get(SDK_VARIABLE)
    with tempfile.TemporaryDirectory(prefix="prgec-qnn-") as root:
        folder = Path(root) / "lib" / "x86_64-linux-clang"
        folder.mkdir(parents=True)
        for name in (HTP, SYSTEM):
            (folder / name).symlink_to(loaded.libraries.folder.resolve() / name)
        os.environ[SDK_VARIABLE] = root
        try:
            yield
        finally:
            if before is None:
                del os.environ[SDK_VARIABLE]
            else:
                os.environ[SDK_VARIABLE] = before
