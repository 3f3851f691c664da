"""Finding Qualcomm's libraries, and saying what is wrong with them."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from prgec.backends import load_backend
from prgec.backends.qnn import loading
from prgec.backends.qnn.libraries import SDK_VARIABLE, find_libraries
from prgec.backends.qnn.loading import checked_version, load_libraries, sdk_root
from prgec.backends.qnn.socs import SOCS, find_soc
from prgec.errors import BackendError, UsageError
from prgec.runtime_ops.native import qnn_adapter


def test_the_package_brings_libraries_and_their_licence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SDK_VARIABLE, raising=False)
    found = find_libraries()
    assert found.origin.startswith("onnxruntime-qnn ")
    assert found.licence is not None and found.licence.is_file()


def test_no_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SDK_VARIABLE, raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        BackendError, match=r"libraries are not on this machine. Hint: pip install 'onnxruntime-qnn[^']*', or"
    ):
        find_libraries()


def test_a_folder_that_is_no_sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong variable is a mistake to report, never a reason to take the package instead."""
    monkeypatch.setenv(SDK_VARIABLE, str(tmp_path))
    with pytest.raises(BackendError, match="QNN_SDK_ROOT is not a Qualcomm AI Runtime SDK: no libQnnHtp.so, libQ"):
        find_libraries()


def test_a_genuine_sdk_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "lib" / "x86_64-linux-clang"
    folder.mkdir(parents=True)
    for name in ("libQnnHtp.so", "libQnnSystem.so"):
        (folder / name).touch()
    (tmp_path / "LICENSE.pdf").touch()
    monkeypatch.setenv(SDK_VARIABLE, str(tmp_path))
    found = find_libraries()
    assert (found.folder, found.origin, found.licence) == (folder, SDK_VARIABLE, tmp_path / "LICENSE.pdf")


def test_libraries_that_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test_a_genuine_sdk_comes_first(tmp_path, monkeypatch)
    with pytest.raises(BackendError, match=r"cannot load Qualcomm's libraries: .*file too short") as caught:
        load_libraries.__wrapped__()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        ("v2.37.0.250724175447", (2, 37)),
        ("v2.51.0.260929181845", (2, 51)),
        ("v2.36.0.1", "are version 2.36, too old: 2.37 to 2.51 are supported"),
        ("v2.52.0.1", "are version 2.52, too new: 2.37 to 2.51 are supported; later ones may lay out"),
        ("v3.0.1", "are version 3.0, too new"),
        ("nonsense", "name no version: 'nonsense'"),
    ],
)
def test_versions(build: str, expected: tuple[int, int] | str) -> None:
    libraries = find_libraries()
    if isinstance(expected, tuple):
        assert checked_version(build, libraries) == expected
        return
    with pytest.raises(BackendError, match=expected):
        checked_version(build, libraries)


def test_the_sdk_is_named_for_the_exporter_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SDK_VARIABLE, raising=False)
    before = dict(os.environ)
    with sdk_root():
        assert (Path(os.environ[SDK_VARIABLE]) / "lib" / "x86_64-linux-clang" / "libQnnHtp.so").is_file()
    assert dict(os.environ) == before
    monkeypatch.setenv(SDK_VARIABLE, "/mine")
    with sdk_root():
        pass
    assert os.environ[SDK_VARIABLE] == "/mine"


class _Custom(ctypes.Structure):
    """Configuration of an HTP device: the SoC, at byte 4 up to QAIRT 2.37 and at byte 8 in the libraries tested."""

    _fields_ = [
        ("option", ctypes.c_uint32),
        ("at_4", ctypes.c_uint32),
        ("at_8", ctypes.c_uint32),
        ("rest", ctypes.c_uint32 * 13),
    ]


class _Config(ctypes.Structure):
    _fields_ = [("option", ctypes.c_uint32), ("value", ctypes.POINTER(_Custom))]


@pytest.mark.parametrize(
    ("at_4", "at_8", "works"),
    [(57, 0, True), (0, 57, True), (9999, 9998, False)],
    ids=["as-executorch-writes-it", "as-the-library-wants-it", "no-such-chip"],
)
def test_the_adapter_creates_devices(at_4: int, at_8: int, works: bool) -> None:
    """Through the function table ExecuTorch gets, with either layout: the one refused is tried in the other."""
    load_libraries()
    adapter = ctypes.CDLL("libQnnHtp.so")
    assert adapter.prgec_qnn_build, "the loader answered the name with another library"
    providers, count = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_uint32()
    assert adapter.QnnInterface_getProviders(ctypes.byref(providers), ctypes.byref(count)) == 0
    assert count.value == 1
    table = ctypes.cast(providers[0] + 40, ctypes.POINTER(ctypes.c_void_p))
    create = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(table[40])
    free = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)(table[43])
    custom = _Custom(0, at_4, at_8)
    config = _Config(0, ctypes.pointer(custom))
    configs = (ctypes.POINTER(_Config) * 2)(ctypes.pointer(config), None)
    device = ctypes.c_void_p()
    assert (create(None, configs, ctypes.byref(device)) == 0) is works
    if works:
        assert free(device) == 0


def test_the_adapter_has_the_name_executorch_asks_for() -> None:
    assert qnn_adapter().name == "libprgec_qnn.so"
    assert load_libraries().build.startswith("v2.")
    assert loading.OLDEST <= load_libraries().version <= loading.NEWEST


def test_chips_are_those_executorch_knows() -> None:
    from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset, _soc_info_table

    expected = {QcomChipset(chip).name: int(info.htp_info.htp_arch) for chip, info in _soc_info_table.items()}
    assert {name: soc.generation for name, soc in SOCS.items()} == expected


def test_unknown_chip() -> None:
    assert find_soc("sm8650").name == "SM8650"
    with pytest.raises(UsageError, match=r"--soc names no known chip: 'SM1'. Hint: chips: SM8650, SM8850, "):
        find_soc("SM1")
    with pytest.raises(UsageError, match="--soc SM8350 has HTP v68, which cannot compute in fp16. Hint: chips that"):
        find_soc("SM8350")


def test_exceptions_of_extensions_loaded_later_are_caught(tmp_path: Path) -> None:
    """Also once Qualcomm's library has made its compiler, and with it another C++ runtime, global to the process."""
    (tmp_path / "damaged.pte").write_bytes(b"\0\0\0\0ET12" + b"\xff" * 200)
    script = (
        "import ctypes, pathlib, sys\n"
        "from prgec.backends.qnn.loading import load_libraries\n"
        "from prgec.runtime.engines.executorch.open import open_pte\n"
        "from prgec.errors import ProgramError\n"
        "folder = load_libraries().libraries.folder\n"
        "ctypes.CDLL(str(folder / 'libHtpPrepare.so'), mode=ctypes.RTLD_GLOBAL)\n"
        "assert 'executorch.extension.pybindings._C' not in sys.modules\n"
        "try:\n"
        "    open_pte(pathlib.Path(sys.argv[1]))\n"
        "except ProgramError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "damaged.pte")], capture_output=True, text=True)
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr}"
    assert done.stdout.startswith("the program is damaged")


def test_the_exporter_leaves_the_logging_of_the_process_alone(tmp_path: Path) -> None:
    """Neither root nor anything the exporter says changes for a program that set up no logging."""
    script = (
        "import logging, sys, torch\n"
        "from pathlib import Path\n"
        "from prgec.backends import load_backend\n"
        "from prgec.backends.lowering import lower\n"
        "root = logging.getLogger()\n"
        "before = root.level, list(root.handlers)\n"
        "class Model(torch.nn.Linear):\n"
        "    def forward(self, tokens):\n"
        "        return torch.log_softmax(super().forward(tokens), -1)\n"
        "backend = load_backend('qnn')\n"
        "backend.check()\n"
        "lower(backend, {'forward': torch.export.export(Model(64, 64).eval(), (torch.ones(4, 64),))})\n"
        "assert (root.level, root.handlers) == before, (root.level, root.handlers)\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Logging error" not in done.stderr and "INFO" not in done.stderr, done.stderr[-3000:]


def test_memory_of_a_scheme_that_was_not_measured_is_that_of_none() -> None:
    """A pipeline given by hand may name any."""
    backend = load_backend("qnn")
    assert backend.memory_bytes(10**9, "w4a16") < backend.memory_bytes(10**9, "none")
    assert backend.memory_bytes(10**9, "8da4w") == backend.memory_bytes(10**9, "none")


def test_tokens_of_a_call_take_memory_to_compile() -> None:
    """The measured value, with the margin of the default."""
    backend = load_backend("qnn")
    assert backend.memory_bytes(10**9, "none") == backend.memory_bytes(10**9, "none", 512)
    assert 4.09e9 < backend.memory_bytes(220_000_000, "none", 4096) < 6e9
    assert 7.58e9 < backend.memory_bytes(400_000_000, "none", 4096) < 9e9
