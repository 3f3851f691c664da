"""Tables of the paper: rows and columns as it has them, filled by real steps, and honest where they are empty."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from prgec.cli.main import main
from prgec.errors import UsageError
from prgec.lab.bench.full import FullFirstOrder, FullMezo
from prgec.lab.bench.job import EPS, LR
from prgec.lab.bench.presets import PRESETS, narrowed
from prgec.lab.bench.variants import find_variant
from tests.models import TinyLlama


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyLlama().write(tmp_path_factory.mktemp("presets") / "tiny")


def _columns(name: str) -> list[tuple[int, int, int]]:
    return PRESETS[name].columns()


def test_rows_and_columns_are_the_papers() -> None:
    assert [(t, b) for t, _, b in _columns("prge-table-4")] == [(t, b) for t in (64, 128) for b in (1, 2, 4, 8)]
    assert [(t, b) for t, _, b in _columns("prge-table-5")] == [(t, b) for t in (64, 128) for b in (2, 4, 8, 16)]
    assert [(t, b) for t, _, b in _columns("prge-table-6")] == [(t, b) for t in (64, 128, 256) for b in (1, 4, 8)]
    assert _columns("prge-table-12") == [(t, q, 16 // q) for t in (64, 128, 256) for q in (1, 4, 16)]
    assert _columns("prge-table-13") == [(t, 1, b) for t in (64, 128, 256) for b in (1, 8, 16)]
    assert _columns("prge-fig-6") == _columns("prge-table-13")
    assert [line.label for line in PRESETS["prge-table-4"].lines] == ["MeZO (LoRA-FA)", "P-RGE", "Speedup ratio"]
    assert [line.label for line in PRESETS["prge-fig-6"].lines] == ["f32", "INT8", "NF4"]
    for preset in PRESETS.values():
        assert all(find_variant(name) for line in preset.lines for name in line.variants)


def test_sizes_choose_columns_or_take_their_place() -> None:
    whole = PRESETS["prge-table-12"]
    part = narrowed(whole, q=(4,), batch_size=(), seq_len=(64,), quantize="")
    assert part.columns() == [(64, 4, 4)] and set(part.columns()) < set(whole.columns())
    other = narrowed(whole, q=(1, 2), batch_size=(3,), seq_len=(8,), quantize="none")
    assert other.columns() == [(8, 1, 3), (8, 2, 3)]
    assert {cell.quantize for cell, _ in other.needed()} == {"none"}
    with pytest.raises(UsageError, match="the rows of this table differ by their weights"):
        narrowed(PRESETS["prge-fig-6"], q=(), batch_size=(), seq_len=(), quantize="none")


def _bench(checkpoint: Path, *more: object) -> int:
    return main(["bench", str(checkpoint), "--repeats", "2", *map(str, more)])


@pytest.mark.slow
def test_a_table_is_filled_in_parts(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty table says how it is filled, and rows that are there are not measured again."""
    table = ("--preset", "prge-table-6", "--out", tmp_path)
    assert _bench(checkpoint, *table, "--seq-len", 64, "--batch-size", 1) == 0
    text = capsys.readouterr().out
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| ") and "s/step" in line]
    assert [row[0].strip() for row in rows] == ["FO-SGD (s/step)", "MeZO-SGD (q = 1) (s/step)"]
    assert all(len(row) == 10 and float(row[1]) > 0 and not any(cell.strip() for cell in row[2:]) for row in rows)
    assert (
        f"- `prgec bench {checkpoint} --preset prge-table-6 --out {tmp_path} --seq-len 64 --q 1 --batch-size 4`" in text
    )
    assert text.count("- `prgec bench") == 8 and (tmp_path / "prge-table-6.md").read_text() == text
    kept = (tmp_path / "prge-table-6.json").read_text()
    assert [row["variant"] for row in json.loads(kept)["rows"]] == ["fo", "mezo-full"]
    assert _bench(checkpoint, *table, "--seq-len", 64, "--batch-size", 1, "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["rows"] == json.loads(kept)["rows"] and "timing" not in captured.err
    (tmp_path / "prge-table-6.json").write_text("{")
    assert _bench(checkpoint, *table) == 4
    assert "cannot read what was measured" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine with a GPU can")
def test_what_cannot_run_stays_empty_and_says_why(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--seq-len", 8, "--batch-size", 1, "--backend", "cuda")
    assert _bench(checkpoint, "--preset", "prge-table-13", *sizes) == 0
    text = capsys.readouterr().out
    assert "| MeZO (q = 1, LoRA-FA) (s/step) |  |" in text and "--seq-len 8 --q 1 --batch-size 1` (tried: " in text
    assert _bench(checkpoint, "--preset", "prge-table-13", "--variants", "prgec") == 2
    assert _bench(checkpoint.parent / "nothing", "--preset", "prge-table-13") == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["prge-table-4", "prge-table-5", "prge-table-12", "prge-fig-6"])
def test_every_table_can_be_filled(
    name: str, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ("--seq-len", 8, "--q", 1, "--batch-size", 2)
    assert _bench(checkpoint, "--preset", name, "--out", tmp_path, *sizes) == 0
    text = capsys.readouterr().out
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| ") and "(" in line]
    assert len(rows) == len(PRESETS[name].lines) and all(float(row[1]) > 0 for row in rows)
    assert "Empty cells" not in text
    assert (tmp_path / f"{name}.png").exists() == PRESETS[name].has_chart


def _loss(model: Any, rows: list[torch.Tensor]) -> torch.Tensor:
    """Mean over rows and label positions, from transformers' logits alone."""
    tokens, positions, targets = rows
    logits = model(tokens).logits
    picked = torch.stack([logits[n, positions[n]] for n in range(len(tokens))])
    return torch.nn.functional.cross_entropy(picked.flatten(0, 1), targets.flatten())


def _rows() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, 300, (2, 7), generator=generator)
    return [tokens, torch.tensor([[3, 4], [4, 5]]), torch.tensor([[8, 9], [10, 11]])]


def test_first_order_over_all_weights_is_gradient_descent() -> None:
    model, untouched = TinyLlama().build(), TinyLlama().build()
    FullFirstOrder(model, _rows()).step()
    gradients = torch.autograd.grad(_loss(untouched, _rows()), list(untouched.parameters()))
    for after, before, gradient in zip(model.parameters(), untouched.parameters(), gradients, strict=True):
        torch.testing.assert_close(after, before - LR * gradient, rtol=0.0, atol=1e-7)
        assert not torch.equal(after, before)


def test_mezo_over_all_weights_is_mezo(q: int = 2) -> None:
    """By copies of the model, each with noise added once."""
    model, base = TinyLlama().build(), TinyLlama().build()
    with torch.no_grad():
        for weight in model.parameters():
            weight.requires_grad_(False)
    FullMezo(model, _rows(), q).step()
    update = [torch.zeros_like(weight) for weight in base.parameters()]
    for seed in range(q):
        generator = torch.Generator().manual_seed(seed)
        noise = [torch.randn(weight.shape, generator=generator) for weight in base.parameters()]
        losses = []
        for sign in (1, -1):
            moved = TinyLlama().build()
            with torch.no_grad():
                for weight, z in zip(moved.parameters(), noise, strict=True):
                    weight.add_(z, alpha=sign * EPS)
                losses.append(float(_loss(moved, _rows())))
        for total, z in zip(update, noise, strict=True):
            total.add_(z, alpha=(losses[0] - losses[1]) / (2 * EPS))
    for after, before, total in zip(model.parameters(), base.parameters(), update, strict=True):
        torch.testing.assert_close(after.detach(), before.detach() - LR / q * total, rtol=1e-4, atol=1e-6)
