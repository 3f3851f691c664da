"""Side-tuning from rows to answers: emit, fit, build, eval and predict, over a real program."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from prgec.cli.main import main
from prgec.core.contract.checksums import read_checksums
from prgec.core.contract.layout import WEIGHTS
from prgec.core.data.first_tokens import FirstTokens
from prgec.core.formats.shards import SECRET, read_shard
from prgec.core.formats.side_network import read_network
from prgec.errors import DataError, ProgramError
from prgec.runtime.engines.executorch.emitting_program import EmittingProgram
from prgec.runtime.engines.executorch.open import open_pte
from prgec.serve.side.answers import Assisted, evaluate, open_assisted
from prgec.serve.side.build import build
from prgec.serve.side.cache import read_cache
from prgec.serve.side.emit import LOCAL_NAME, EmitOptions, emit
from prgec.serve.side.fit import fit
from prgec.serve.side.fit_options import FitOptions
from prgec.serve.side.network import AdditiveNetwork
from prgec.serve.side.side_program import open_side
from tests.hooks import hooked
from tests.side_program import SIDE_MODEL

KEY = bytes(range(32))
OPTIONS = EmitOptions(shard_rows=24)


@pytest.fixture(scope="module")
def emitted(side_backbone: EmittingProgram, side_rows: FirstTokens, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("side") / "acts"
    emit(side_backbone, side_rows, folder, KEY, OPTIONS)
    return folder


@pytest.fixture(scope="module")
def learnt(emitted: Path) -> Path:
    output = emitted.with_name("side.safetensors")
    fit(read_cache(emitted), output, FitOptions(rank=8, epochs=12, lr=3e-3, held_out=0.0))
    build(read_network(output), emitted.with_name("side.pte"), batch_size=5)
    return output


def _bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_shards_hold_what_hooks_see(emitted: Path, side_rows: FirstTokens) -> None:
    """Activations to f16, and differences computed here from the untouched model's own logits."""
    model = SIDE_MODEL.build()
    shards = [read_shard(path) for path in sorted(emitted.glob("shard-*"))]
    assert [len(shard.ids) for shard in shards] == [24, 24, 16]
    acts, dy = (np.concatenate([getattr(shard, name) for shard in shards]) for name in ("acts", "dy"))
    for number in (0, 25, 63):
        row = side_rows.rows[number]
        expected, logits = hooked(model, torch.tensor([row.tokens]), torch.tensor([row.label_pos]))
        np.testing.assert_allclose(acts[number], expected[0].numpy(), rtol=2e-3, atol=2e-3)
        z = logits[0, 0, torch.from_numpy(side_rows.first_tokens)].double().numpy()
        onehot = np.eye(2)[side_rows.answers[number]]
        np.testing.assert_allclose(dy[number, 0], onehot - 0.5 - (z - z.mean()), atol=1e-4)


def test_a_second_emit_changes_nothing(emitted: Path, side_backbone: EmittingProgram, side_rows: FirstTokens) -> None:
    before = _bytes(emitted)
    done = emit(side_backbone, side_rows, emitted, KEY, OPTIONS)
    assert (done.num_new, done.num_shards, done.num_rows) == (0, 3, 64)
    assert _bytes(emitted) == before


def test_a_stopped_emit_goes_on_to_the_same_bytes(
    emitted: Path, side_backbone: EmittingProgram, side_rows: FirstTokens, tmp_path: Path
) -> None:
    calls = iter([False, True])
    part = emit(side_backbone, side_rows, tmp_path, KEY, OPTIONS, should_stop=lambda: next(calls))
    assert (part.interrupted, part.num_shards) == (True, 1)
    (tmp_path / "shard-00000.safetensors").write_bytes(b"cut short")
    rest = emit(side_backbone, side_rows, tmp_path, KEY, OPTIONS)
    assert (rest.num_new, rest.interrupted) == (3, False)
    assert _bytes(tmp_path) == _bytes(emitted)


def test_nothing_is_sent_that_says_what_a_row_was(emitted: Path, side_rows: FirstTokens) -> None:
    everything = b"".join(path.read_bytes() for path in emitted.glob("shard-*"))
    assert side_rows.choices[0].strip().encode() not in everything
    for row in side_rows.rows[:5]:
        for dtype in ("<i8", "<i4", "<i2"):
            assert np.array(row.tokens, dtype=dtype).tobytes() not in everything
    assert json.loads((emitted / LOCAL_NAME).read_text())["choices"] == list(side_rows.choices)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (EmitOptions(shard_rows=24, y_pre=SECRET), KEY),
        (EmitOptions(shard_rows=24, label_dp=1.0), KEY),
        (EmitOptions(shard_rows=24, dtype="i8"), KEY),
        (EmitOptions(shard_rows=24), bytes(32)),
        (EmitOptions(shard_rows=60), KEY),
    ],
)
def test_a_folder_of_something_else_is_left_alone(
    emitted: Path, side_backbone: EmittingProgram, side_rows: FirstTokens, options: EmitOptions, key: bytes
) -> None:
    before = _bytes(emitted)
    with pytest.raises(DataError, match="Hint: name another folder with -o"):
        emit(side_backbone, side_rows, emitted, key, options)
    assert _bytes(emitted) == before


def test_the_program_computes_what_the_network_does(emitted: Path, learnt: Path) -> None:
    program, cache = open_side(learnt.with_name("side.pte")), read_cache(emitted)
    acts = cache.values(np.arange(7))
    with torch.no_grad():
        expected = AdditiveNetwork.of(read_network(learnt))(torch.from_numpy(acts)).numpy()
    np.testing.assert_allclose(program.run(acts), expected, rtol=1e-4, atol=1e-5)
    assert np.abs(expected).max() > 0.1


def test_it_is_one_delegate(learnt: Path, tmp_path: Path) -> None:
    done = build(read_network(learnt), tmp_path / "side.pte")
    assert len(done.delegation.delegates) == 1 and not done.delegation.cpu_ops
    portable = build(read_network(learnt), tmp_path / "portable.pte", "portable")
    assert not portable.delegation.delegates
    acts = np.random.default_rng(0).normal(size=(3, 2, 1, 32)).astype(np.float32)
    results = [open_side(tmp_path / name).run(acts) for name in ("side.pte", "portable.pte")]
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-5)


def test_learnt_rows_are_answered(learnt: Path, side_backbone: EmittingProgram, side_rows: FirstTokens) -> None:
    alone = evaluate(Assisted(side_backbone, None, b""), side_rows)
    assisted = evaluate(Assisted(side_backbone, open_side(learnt.with_name("side.pte")), b""), side_rows)
    assert alone is not None and assisted is not None
    assert assisted.accuracy > 0.9 > alone.accuracy + 0.1
    assert assisted.loss < 0.5 * alone.loss


def test_commands(side_pte: Path, train_jsonl: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    acts, network, program, key = (str(tmp_path / name) for name in ("acts", "side.safetensors", "side.pte", "key"))
    data = str(train_jsonl)
    commands = [
        ["side", "emit", str(side_pte), "--data", data, "-o", acts, "--key", key, "--y-pre", "secret"],
        ["side", "fit", acts, "-o", network, "--epochs", "3", "--rank", "4", "--early-stop", "2"],
        ["side", "build", network, "-o", program],
        ["eval", str(side_pte), "--data", data],
        ["eval", str(side_pte), "--data", data, "--side", program, "--key", key],
        ["predict", str(side_pte), "--text", "a great film", "--task", "sst2", "--side", program, "--key", key],
    ]
    documents = []
    for command in commands:
        assert main([*command, "--json"]) == 0
        documents.append(json.loads(capsys.readouterr().out))
        forced = ["--force"] if command[:2] in (["side", "fit"], ["side", "build"]) else []
        assert main([*command, *forced]) == 0
        capsys.readouterr()
    emitted, fitted, built, alone, assisted, predicted = documents
    assert (emitted["num_rows"], emitted["num_new"]) == (64, 1)
    assert fitted["rows"] == 64 and built["delegates"] and built["sha256"] == fitted["sha256"]
    assert (alone["side_sha256"], assisted["side_sha256"]) == (None, fitted["sha256"])
    assert predicted["predictions"][0]["completion"] in predicted["candidates"]
    assert Path(f"{network}.png").stat().st_size > 1000
    assert main(["report", network, "--side"]) == 0
    page = Path(f"{network}.html").read_text()
    assert fitted["sha256"] in page and "held-out error" not in page and "<svg" in page
    Path(f"{network}.jsonl").rename(f"{network}.kept")
    assert main(["report", network, "--side"]) != 0
    Path(f"{network}.kept").rename(f"{network}.jsonl")
    assert len(Path(f"{network}.jsonl").read_text().splitlines()) == fitted["epochs"]


def test_what_does_not_fit_is_reported(
    side_pte: Path, learnt: Path, tiny_pte: Path, train_jsonl: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    side, data = str(learnt.with_name("side.pte")), ["--data", str(train_jsonl)]
    told = {
        "trains by --method prge and emits no activations": ["eval", str(tiny_pte), *data, "--side", side],
        "the program has no prgec_side_network": ["eval", str(side_pte), *data, "--side", str(side_pte)],
        "--adapter is for programs that train": ["eval", str(side_pte), *data, "--adapter", "x"],
        "it emits activations for a side network": ["run", str(side_pte), *data],
        "cannot read the side network: No such file": ["side", "build", "none.safetensors"],
        "the folder has no shards": ["side", "fit", str(learnt.parent)],
        "these rows have 3": [
            *("predict", str(side_pte), "--text", "a", "--side", side, "--task", "completion"),
            *("--candidate", " great", "--candidate", " dull", "--candidate", " was"),
        ],
    }
    for message, command in told.items():
        assert main(command) != 0
        error = capsys.readouterr().err
        assert message in error and error.count("error:") == 1, error


def test_another_backbone_is_reported(
    learnt: Path, side_backbone: EmittingProgram, side_rows: FirstTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    foreign = EmittingProgram(
        side_backbone.path, replace(side_backbone.manifest, base_sha256="0" * 64), side_backbone.tokenizer, None
    )
    with pytest.raises(ProgramError, match="learnt beside another program"):
        evaluate(Assisted(foreign, open_side(learnt.with_name("side.pte")), b""), side_rows)


def test_old_drivers_refuse_it_by_its_version(side_pte: Path, learnt: Path) -> None:
    """They read the version first and know 1 and 2 (tests/device/test_gradient_steps.py)."""
    from prgec.core.contract.names import VERSION_METHOD
    from prgec.runtime.engines.executorch.runtime import constant, load_raw

    for path in (side_pte, learnt.with_name("side.pte")):
        assert constant(load_raw(path), VERSION_METHOD, path) == 3
        with pytest.raises(ProgramError):
            open_pte(path)


@pytest.mark.parametrize("which", ["backbone", "network"])
def test_a_wrong_bit_is_reported(side_pte: Path, learnt: Path, train_jsonl: Path, tmp_path: Path, which: str) -> None:
    """In the weights, where nothing but a checksum sees it; --no-verify looks away."""
    files = {"backbone": tmp_path / "side.pte", "network": tmp_path / "network.pte"}
    shutil.copy(side_pte, files["backbone"])
    shutil.copy(learnt.with_name("side.pte"), files["network"])
    damaged = bytearray(files[which].read_bytes())
    damaged[_place_of_a_weight(files[which])] ^= 1
    files[which].write_bytes(damaged)
    assisted = partial(open_assisted, files["backbone"], files["network"], None)
    with pytest.raises(ProgramError, match="the program is damaged: weights, bytes"):
        assisted()
    assert assisted(verify=False).side is not None
    command = ["eval", str(files["backbone"]), "--data", str(train_jsonl), "--side", str(files["network"])]
    assert main(command) != 0
    assert main([*command, "--no-verify"]) == 0


def _place_of_a_weight(path: Path) -> int:
    """A byte in the middle of the last part of weights that the table names."""
    checksums = read_checksums(path)
    assert checksums is not None
    place, found = 0, 0
    for part in checksums.parts:
        found = place + part.size // 2 if part.name == WEIGHTS else found
        place += part.size
    return found
