"""`prgec replay --signers` takes journals that a known key has signed, and no others; OpenSSH makes the signatures."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from prgec.cli.main import main
from prgec.runtime.runs.options import RunOptions
from prgec.runtime.runs.run import run

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="OpenSSH is not installed")


def _key(folder: Path, name: str) -> Path:
    path = folder / name
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(path)], check=True)
    return path


def _sign(key: Path, path: Path, namespace: str = "prgec") -> None:
    path.with_name(f"{path.name}.sig").unlink(missing_ok=True)
    command = ["ssh-keygen", "-Y", "sign", "-q", "-f", str(key), "-n", namespace, str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


@pytest.fixture
def journal(tiny_pte: Path, train_jsonl: Path, tmp_path: Path) -> Path:
    run(RunOptions(program=tiny_pte, data=train_jsonl, steps=4, out=tmp_path / "run"))
    return tmp_path / "run" / "journal.bin"


@pytest.fixture
def signers(tmp_path: Path) -> Path:
    path = tmp_path / "allowed_signers"
    keys = {name: _key(tmp_path, name).with_suffix(".pub").read_text() for name in ("kitchen", "server")}
    path.write_text("".join(f"{name} {key}" for name, key in keys.items()))
    return path


def _replay(program: Path, journal: Path, signers: Path) -> int:
    output = journal.parent / "again.safetensors"
    command = ["replay", str(journal), "--program", str(program), "-o", str(output), "--signers", str(signers)]
    code = main(command)
    assert output.exists() == (code == 0)
    return code


def test_a_signed_journal_is_replayed(
    tiny_pte: Path, journal: Path, signers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _sign(tmp_path / "server", journal)
    assert _replay(tiny_pte, journal, signers) == 0
    assert "signed by server" in capsys.readouterr().out
    again = (journal.parent / "again.safetensors").read_bytes()
    assert again == (journal.parent / "adapter.safetensors").read_bytes()


def test_the_journal_of_a_folder_is_checked_too(tiny_pte: Path, journal: Path, signers: Path, tmp_path: Path) -> None:
    _sign(tmp_path / "server", journal)
    command = ["replay", str(journal.parent), "--program", str(tiny_pte), "-o", str(tmp_path / "a.safetensors")]
    assert main([*command, "--signers", str(signers)]) == 0


@pytest.mark.parametrize("harm", ["another file", "another key", "another purpose", "no signature", "a damaged one"])
def test_others_are_refused(
    tiny_pte: Path, journal: Path, signers: Path, tmp_path: Path, harm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _sign(tmp_path / "server", journal)
    signature = journal.with_name("journal.bin.sig")
    if harm == "another file":
        journal.write_bytes(journal.read_bytes() + b"\0")
    elif harm == "another key":
        _sign(_key(tmp_path, "stranger"), journal)
    elif harm == "another purpose":
        _sign(tmp_path / "server", journal, namespace="git")
    elif harm == "no signature":
        signature.unlink()
    else:
        signature.write_bytes(signature.read_bytes()[:-60])
    assert _replay(tiny_pte, journal, signers) != 0
    shown = capsys.readouterr().err
    assert "the file has no signature" in shown or "the signature is not of this file by a known key" in shown


def test_a_file_of_keys_that_is_missing(tiny_pte: Path, journal: Path, tmp_path: Path) -> None:
    assert _replay(tiny_pte, journal, tmp_path / "nobody") != 0
