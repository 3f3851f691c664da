"""Refusals of the C++ driver, in one line and with the exit code of `prgec run`."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from prgec.core.contract.checksums import read_checksums
from prgec.errors import BackendError, ProgramError
from prgec.runtime.engines.executorch.open import open_pte
from tests.device.conftest import DEVICE, Drivers
from tests.e2e.conftest import MODEL, compiler
from tests.e2e.test_lower_only import SMALL
from tests.shared import Shared

needs_openvino = pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="needs the extra openvino")
BAD = {
    "no rows": ({"rows": Path("none.bin")}, 1, "cannot open the file (none.bin): No such file"),
    "eps": ({"eps": 0.0}, 2, "eps is 0; expected a finite number above 0"),
    "schedule": ({"schedule": "step"}, 2, "unknown schedule step"),
    "estimator": ({"estimator": "adam"}, 2, "unknown estimator adam"),
    "steps": ({"steps": -1}, 2, "wrong usage: --steps"),
    "diverging": ({"lr": 1e38}, 8, "is not finite; training stopped, state kept"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line(make: Callable[..., Drivers], name: str) -> None:
    changes, code, message = BAD[name]
    result = make(eval_rows=None, eval_every=0).cpp(**changes)
    assert result.returncode == code
    assert message in result.stderr.splitlines()[-1]
    assert result.stderr.splitlines()[-1].startswith("error: ")


@pytest.mark.parametrize("what", ["program", "rows", "adapter", "eval_rows"])
@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_damaged_files_are_refused(make: Callable[..., Drivers], what: str, damage: str, tmp_path: Path) -> None:
    drivers = make(steps=1)
    if what == "adapter":
        assert drivers.cpp().returncode == 0
        drivers = replace(drivers, options=replace(drivers.options, adapter=tmp_path / "cpp" / "adapter.safetensors"))
    data = getattr(drivers.options, what).read_bytes()
    # In an adapter nothing checks the weights themselves: there the head is damaged.
    place = 12 if what == "adapter" else len(data) // 2
    changed = {
        "cut": data[: len(data) // 2],
        "empty": b"",
        "flip": data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :],
    }[damage]
    bad = tmp_path / "bad"
    bad.write_bytes(changed)
    result = drivers.cpp(**{what: bad}, out=tmp_path / "other")
    assert result.returncode in (4, 5), result.stderr
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["exact", DEVICE])
def test_a_damaged_program_is_reported_as_in_python(make: Callable[..., Drivers], name: str, tmp_path: Path) -> None:
    """Also in the file of weights."""
    drivers = make(name, steps=1, eval_rows=None, eval_every=0)
    program, bad = drivers.options.program, tmp_path / "bad.pte"
    for suffix in (".pte", ".ptd"):
        for part in (".pte", ".ptd"):
            if program.with_suffix(part).exists():
                shutil.copy(program.with_suffix(part), bad.with_suffix(part))
        if not bad.with_suffix(suffix).exists():
            continue
        data = bytearray(bad.with_suffix(suffix).read_bytes())
        data[len(data) * 2 // 3] ^= 1
        bad.with_suffix(suffix).write_bytes(data)
        with pytest.raises(ProgramError, match=r"damaged|belongs to another") as error:
            open_pte(bad)
        result = drivers.cpp(program=bad)
        assert result.returncode == ProgramError.exit_code
        assert result.stderr == f"error: {error.value}\n"


def test_who_asks_for_it_trains_a_damaged_program(make: Callable[..., Drivers], tmp_path: Path) -> None:
    drivers = make("exact", steps=1, eval_rows=None, eval_every=0)
    data = bytearray(drivers.options.program.read_bytes())
    data[len(data) * 2 // 3] ^= 1
    bad = tmp_path / "bad.pte"
    bad.write_bytes(data)
    assert drivers.cpp(program=bad).returncode == ProgramError.exit_code
    assert drivers.cpp(program=bad, no_verify=True).returncode == 0


def test_a_program_cannot_lose_its_checksums(make: Callable[..., Drivers], tmp_path: Path) -> None:
    drivers = make("exact", steps=1, eval_rows=None, eval_every=0)
    found = read_checksums(drivers.options.program)
    assert found is not None
    bad = tmp_path / "bad.pte"
    bad.write_bytes(drivers.options.program.read_bytes()[: sum(part.size for part in found.parts)])
    result = drivers.cpp(program=bad)
    assert result.returncode == ProgramError.exit_code
    assert "the program has lost its checksums" in result.stderr
    assert drivers.cpp(program=bad, no_verify=True).returncode == 0


def test_a_driver_that_takes_a_host_program_for_another_is_refused(
    make: Callable[..., Drivers], tmp_path: Path
) -> None:
    """It would keep no state: what it passes are rows and numbers where the program wants its B."""
    drivers = make("host", steps=1, eval_rows=None, eval_every=0)
    data, bad = drivers.options.program.read_bytes(), tmp_path / "bad.pte"
    told = data.replace(b'"state": "host"', b'"state": "dual"')
    bad.write_bytes(told)
    with pytest.raises(ProgramError, match="manifest has state = 'dual' and state_access = 'inputs'"):
        open_pte(bad, verify=False)
    _assert_refused(drivers, bad, "no usable state_access")
    bad.write_bytes(told.replace(b'"state_access": "inputs"', b'"state_access":"buffers"'))
    with pytest.raises(ProgramError, match=r"a method takes 7 inputs; the contract has 8"):
        open_pte(bad, verify=False)
    _assert_refused(drivers, bad, "method forward does not follow the contract")


@pytest.mark.parametrize(
    ("name", "delegate", "advice"),
    [
        ("vulkan", "VulkanBackend", "link an ExecuTorch that has it"),
        pytest.param("openvino", "OpenvinoBackend", "run it with prgec", marks=needs_openvino),
    ],
)
def test_a_program_of_another_backend_is_refused_with_what_to_do(
    make: Callable[..., Drivers], shared: Shared, name: str, delegate: str, advice: str
) -> None:
    foreign = compiler(shared, shared.once("checkpoint", MODEL.write))(**SMALL, backend=name)
    result = make(eval_rows=None, eval_every=0).cpp(program=foreign)
    assert result.returncode == BackendError.exit_code
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: programs of --backend {name} need {delegate}, which this driver does not have")
    assert advice in line and line.endswith("--backend xnnpack")


def _assert_refused(drivers: Drivers, program: Path, message: str) -> None:
    result = drivers.cpp(program=program, no_verify=True)
    assert result.returncode == ProgramError.exit_code
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1 and message in result.stderr


def test_rows_of_another_tokenizer_are_refused(make: Callable[..., Drivers], tmp_path: Path) -> None:
    drivers = make()
    assert drivers.options.rows is not None
    data = drivers.options.rows.read_bytes()
    head = data[16:48] + bytes(32) + data[80:]
    (tmp_path / "bad").write_bytes(data[:12] + zlib.crc32(head).to_bytes(4, "little") + head)
    result = drivers.cpp(rows=tmp_path / "bad")
    assert result.returncode == 4
    assert "the rows were made with another tokenizer" in result.stderr


# Replacements of `q_proj` in a manifest: bytes that are not UTF-8, and characters that steer a terminal.
NAMES = {
    "no UTF-8": (b"q\xff\xferoj", "is not valid JSON"),
    "escape": (rb"\u001b", "the program has no state"),
    "control in one character": (rb"\u009b", "the program has no state"),
    "right to left": (rb"\u202e", "the program has no state"),
    "cut short": ("qqqqqë".encode()[:6], "is not valid JSON"),
}


@pytest.mark.parametrize("name", NAMES)
def test_names_from_a_file_are_printed_as_printable_text(
    make: Callable[..., Drivers], name: str, tmp_path: Path
) -> None:
    drivers = make(eval_rows=None, eval_every=0)
    wanted, message = NAMES[name]
    data = drivers.options.program.read_bytes()
    at = data.index(b"q_proj", data.index(b'"sites"'))
    bad = tmp_path / "bad.pte"
    bad.write_bytes(data[:at] + wanted + data[at + 6 :])
    _assert_printable(drivers, bad, message)


def test_a_name_of_a_method_is_printed_as_printable_text(make: Callable[..., Drivers], tmp_path: Path) -> None:
    drivers = make(eval_rows=None, eval_every=0)
    data = drivers.options.program.read_bytes()
    bad = tmp_path / "bad.pte"
    bad.write_bytes(data.replace(b"\x07\0\0\0forward\0", b"\x07\0\0\0f\xff\x1b[31m\0"))
    assert bad.read_bytes() != data
    _assert_printable(drivers, bad, "cannot load method forward")


def _assert_printable(drivers: Drivers, program: Path, message: str) -> None:
    """Also in what ExecuTorch itself has to say."""
    for environment in ({}, {"PRGEC_DEBUG": "1"}):
        command = [str(drivers.executable), *map(str, drivers.arguments(program=program, no_verify=True))]
        done = subprocess.run(command, capture_output=True, env={**os.environ, **environment}, check=False)
        assert done.returncode == 5
        lines = done.stderr.decode("utf-8").splitlines()
        assert all(line.isprintable() for line in lines), lines
        assert message in lines[-1]
