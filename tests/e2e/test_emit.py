"""`prgec compile --method side`: one delegate that emits what forward hooks see in the untouched model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from prgec.compiler.compile import build_graphs, compile_model
from prgec.core.contract.inspection import inspect_program
from prgec.core.contract.names import EMIT_METHOD, SIDE_CONTRACT_VERSION
from prgec.errors import PassError, ProgramError, UsageError
from prgec.runtime.engines.executorch.emitting_program import open_emitting
from prgec.runtime.engines.executorch.open import open_pte
from tests.architectures import ARCHITECTURES, LENGTHS, SEQ_LEN, Architecture, random_rows
from tests.hooks import hooked
from tests.models import TinyLlama
from tests.side_program import OPTIONS, SIDE_MODEL


def _ids(each: Architecture) -> str:
    return each.name


def _difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("each", ARCHITECTURES, ids=_ids)
def test_rewritten_graph_emits_what_hooks_see(each: Architecture, tmp_path: Path) -> None:
    model = each.build()
    graphs = build_graphs(replace(OPTIONS, model=str(each.write(tmp_path / "checkpoint"))))
    assert (graphs.manifest.num_blocks, graphs.manifest.hidden_size) == (model.config.num_hidden_layers, 32)
    for length in LENGTHS:
        tokens, label_pos, _ = random_rows(2, length)
        acts, logits = graphs.methods[EMIT_METHOD].module(tokens, label_pos[:, :1])
        expected_acts, expected_logits = hooked(model, tokens, label_pos[:, :1])
        assert _difference(acts, expected_acts) < 1e-5
        assert _difference(logits, expected_logits) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("each", ARCHITECTURES, ids=_ids)
def test_lowered_program_is_one_delegate_and_emits_what_hooks_see(each: Architecture, tmp_path: Path) -> None:
    model = each.build()
    options = replace(OPTIONS, model=str(each.write(tmp_path / "checkpoint")), output=tmp_path / "m.pte")
    done = compile_model(options)
    assert len(done.delegation.delegates) == 1
    program = open_emitting(done.path)
    for length in LENGTHS:
        tokens, label_pos, _ = random_rows(2, length)
        acts, logits = program.emit(tokens.numpy(), label_pos[:, :1].numpy())
        expected_acts, expected_logits = hooked(model, tokens, label_pos[:, :1])
        assert _difference(torch.from_numpy(acts), expected_acts) < 1e-5
        assert _difference(torch.from_numpy(logits), expected_logits) < 1e-5


def test_the_contract_and_what_a_llama_emits(side_pte: Path) -> None:
    tokens, label_pos, _ = random_rows(2, 9)
    acts, logits = open_emitting(side_pte).emit(tokens.numpy(), label_pos[:, :1].numpy())
    expected_acts, expected_logits = hooked(SIDE_MODEL.build(), tokens, label_pos[:, :1])
    assert _difference(torch.from_numpy(acts), expected_acts) < 1e-5
    assert _difference(torch.from_numpy(logits), expected_logits) < 1e-5
    inspection = inspect_program(side_pte)
    assert len(inspection.delegates) == 1
    assert (inspection.contract_version, set(inspection.pte.methods)) == (SIDE_CONTRACT_VERSION, {EMIT_METHOD})


@pytest.mark.slow
def test_many_blocks_are_joined_in_the_delegate(tmp_path: Path) -> None:
    """More than a delegate joins at once."""
    tiny = TinyLlama(num_layers=7)
    compiled = compile_model(replace(OPTIONS, model=str(tiny.write(tmp_path / "m")), output=tmp_path / "m.pte"))
    (delegate,) = inspect_program(compiled.path).delegates
    assert delegate["op_counts"]["aten.cat"] > 0
    tokens, label_pos, _ = random_rows(2, 9)
    acts, _ = open_emitting(compiled.path).emit(tokens.numpy(), label_pos[:, :1].numpy())
    assert acts.shape == (2, 7, 1, 32)
    assert _difference(torch.from_numpy(acts), hooked(tiny.build(), tokens, label_pos[:, :1])[0]) < 1e-5


def test_the_oracle_is_not_hidden_states() -> None:
    """The last hidden state of transformers has been through the final norm."""
    model = TinyLlama(num_layers=2).build()
    tokens, label_pos, _ = random_rows(2, 9)
    with torch.no_grad():
        last = model(input_ids=tokens, output_hidden_states=True).hidden_states[-1]
    rows = torch.stack([row[at[:1]] for row, at in zip(last, label_pos, strict=True)])
    assert _difference(rows, hooked(model, tokens, label_pos[:, :1])[0][:, -1]) > 1e-2


def test_a_program_that_emits_does_not_train(side_pte: Path) -> None:
    with pytest.raises(ProgramError, match="has no losses: it emits activations for a side network"):
        open_pte(side_pte)


def test_a_program_that_trains_does_not_emit(tiny_pte: Path) -> None:
    with pytest.raises(ProgramError, match="trains by --method prge and emits no activations"):
        open_emitting(tiny_pte)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank": 8}, "--rank is for programs that train"),
        ({"polyak": 0.5}, "--polyak is for programs that train"),
        ({"layers": ("last:1",)}, "--layers is for programs that train"),
        ({"generate": True}, "--generate is for programs that train"),
        ({"num_labels": 2}, "--label-tokens is 2; --method side needs the first token of an answer"),
        ({"backend": "cuda"}, "--backend cuda cannot train with --method side"),
    ],
)
def test_options_of_other_methods_are_refused(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    options = replace(OPTIONS, output=tmp_path / "m.pte", **changes)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=f"^{message}"):
        build_graphs(options)


def test_a_pipeline_that_emits_nothing_is_reported(side_checkpoint: Path, tmp_path: Path) -> None:
    options = replace(OPTIONS, model=str(side_checkpoint), output=tmp_path / "m.pte", passes="canonicalize")
    with pytest.raises(PassError, match="^emit-activations: found no blocks"):
        build_graphs(options)


@pytest.mark.slow
def test_the_simulator_of_an_htp_emits_what_hooks_see(tmp_path: Path) -> None:
    """In fp16, all of it in one context binary."""
    model = TinyLlama(num_layers=2, hidden_size=64)
    options = replace(OPTIONS, model=str(model.write(tmp_path / "c")), output=tmp_path / "m.pte", backend="qnn")
    done = compile_model(options)
    assert [each.backend for each in done.delegation.delegates] == ["QnnBackend"]
    program = open_emitting(done.path)
    tokens, label_pos, _ = random_rows(2, SEQ_LEN)
    acts, logits = program.emit(tokens.numpy(), label_pos[:, :1].numpy())
    expected_acts, expected_logits = hooked(model.build(), tokens, label_pos[:, :1])
    assert _difference(torch.from_numpy(acts), expected_acts) < 1e-2
    assert _difference(torch.from_numpy(logits), expected_logits) < 1e-2
