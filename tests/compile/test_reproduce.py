"""A program says how it is made again; made again it is equal, and where it is not, the part that differs is named."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from prgec.cli.main import main
from prgec.core.contract.inspection import inspect_program
from prgec.core.contract.sections import read_sections
from prgec.errors import ProgramError
from tests.architectures import architecture

SIZES = ("--seq-len", "16", "--label-tokens", "2", "--batch-size", "2", "--rank", "4", "--no-cache")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return architecture("Llama").write(tmp_path_factory.mktemp("reproduced") / "llama")


@pytest.fixture(scope="module")
def program(model: Path) -> Path:
    path = model.parent / "m.pte"
    assert main(["compile", str(model), *SIZES, "-o", str(path)]) == 0
    return path


def _changed(program: Path, place: int, folder: Path) -> Path:
    """A copy with one other bit."""
    data = bytearray(program.read_bytes())
    data[place] ^= 1
    copy = folder / "changed.pte"
    copy.write_bytes(data)
    return copy


def test_the_commands_are_printed(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(program), "--reproduce"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"prgec inspect {program} --config > again.toml"
    assert lines[1] == "prgec compile -c again.toml --no-cache -o again.pte"
    manifest = inspect_program(program).manifest
    assert manifest.base_sha256 in lines[2] and "torch " in lines[3]
    assert lines[4] == "here        the same versions"


def test_it_is_equal_when_it_is_compiled_again(program: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(program), "--reproduce", "--check", "--model", str(model)]) == 0
    assert capsys.readouterr().out.startswith(f"equal: all {len(read_sections(program))} parts, sha256 ")


@pytest.mark.parametrize("of", ["the delegates", "the kernels"])
def test_a_constant_that_was_changed_is_named(
    program: Path, model: Path, of: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, before = program.read_bytes(), read_sections(program)
    # The place is found from outside: the first one at which another bit changes a part of that kind alone.
    for place in range(len(data) // 4, len(data), 499):
        copy = _changed(program, place, tmp_path)
        name, *others = _differing(before, read_sections(copy)) or [""]
        if of in name and not others:
            break
    else:
        pytest.fail(f"no constant of {of}")
    assert main(["inspect", str(copy), "--reproduce", "--check", "--model", str(model)]) == 1
    first, last = capsys.readouterr().out.splitlines()
    after = read_sections(copy)
    assert first == f"{name}: sha256 {after[name][:12]} in the file, {before[name][:12]} again"
    assert last.startswith(f"different: {copy}")


def _differing(ours: dict[str, str], theirs: dict[str, str]) -> list[str]:
    return [name for name in ours if ours[name] != theirs.get(name)]


def test_another_checkpoint_is_told_by_its_hash(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = architecture("Llama").build(seed=5)
    other.save_pretrained(tmp_path / "llama")  # type: ignore[operator]
    for name in ("tokenizer.json", "tokenizer_config.json"):
        source = program.parent / "llama" / name
        if source.exists():
            (tmp_path / "llama" / name).write_bytes(source.read_bytes())
    assert main(["inspect", str(program), "--reproduce", "--check", "--model", str(tmp_path / "llama")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("base_sha256: ") and any("of the delegates" in line for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("decided", [("--quantize", "8da4w"), ("--lora-a", "calibrated")], ids=lambda each: each[1])
def test_data_that_decided_something_are_wanted_again(
    decided: tuple[str, ...], model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[dict[str, Any]] = [{"prompt": f"the film was {n}", "completion": " great"} for n in range(4)]
    data, others = tmp_path / "rows.jsonl", tmp_path / "others.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    others.write_text("".join(json.dumps({**row, "prompt": f"but {row['prompt']}"}) + "\n" for row in rows))
    path = tmp_path / "m.pte"
    assert main(["compile", str(model), *SIZES, *decided, "--data", str(data), "-o", str(path)]) == 0
    again = ["inspect", str(path), "--reproduce", "--check", "--model", str(model)]
    assert main(again) == 2
    assert "name the same files: --data" in capsys.readouterr().err
    assert main([*again, "--data", str(data)]) == 0
    assert main([*again, "--data", str(others)]) == 1
    assert "prompts_sha256: " in capsys.readouterr().out


@pytest.mark.parametrize("flags", [("--check",), ("--reproduce", "--model", "x"), ("--data", "x")])
def test_options_that_belong_together(program: Path, flags: tuple[str, ...]) -> None:
    assert main(["inspect", str(program), *flags]) == 2


def test_a_damaged_file(program: Path, tmp_path: Path) -> None:
    path = tmp_path / "half.pte"
    path.write_bytes(program.read_bytes()[:40])
    with pytest.raises(ProgramError):
        read_sections(path)


def test_the_bill_of_materials_follows_its_schema(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CycloneDX's own schema judges it; equal programs have equal ones."""
    assert main(["inspect", str(program), "--bom"]) == 0
    text = capsys.readouterr().out
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    document, manifest = json.loads(text), inspect_program(program).manifest
    hashes = document["metadata"]["component"]["hashes"]
    assert hashes == [{"alg": "SHA-256", "content": hashlib.sha256(program.read_bytes()).hexdigest()}]
    parts = {each["name"]: each for each in document["components"]}
    assert parts["torch"]["purl"] == f"pkg:pypi/torch@{importlib.metadata.version('torch')}".replace("+", "%2B")
    weights = {each["name"]: each["value"] for each in parts[manifest.model]["properties"]}
    assert weights == {"prgec:weights-sha256": manifest.base_sha256}
    assert main(["inspect", str(program), "--bom"]) == 0
    assert capsys.readouterr().out == text
