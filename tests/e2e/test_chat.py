"""A program with a cache says what transformers says, with the B it was trained to, and a conversation ends cleanly."""

from __future__ import annotations

import io
import json
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from prgec.cli.main import main
from prgec.core.contract.calls import Batch, StepInputs
from prgec.core.contract.names import EXTEND_METHOD, FORWARD_METHOD, IGNORE_TARGET
from prgec.core.formats.adapter import save_adapter
from prgec.errors import ProgramError, UsageError
from prgec.lab.torch.program import TorchProgram
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.training.reader import Reader
from prgec.serve.ui.inference_worker import BASE, TRAINED, InferenceWorker
from tests.architectures import ARCHITECTURES, architecture
from tests.shared import Shared
from tests.talking import (
    CONTEXT,
    NAME,
    chat_options,
    give_state,
    greedy,
    text_of,
    transformers_greedy,
    write_checkpoint,
)


@pytest.fixture(scope="module")
def checkpoint(shared: Shared) -> Path:
    return shared.once("chat", write_checkpoint)


@pytest.fixture(scope="module")
def path(shared: Shared, checkpoint: Path) -> Path:
    return shared.program(chat_options(checkpoint))


def _loss(program: Any, ids: list[int], target: int) -> tuple[float, float]:
    """The loss of a token after a text, by the cache and by the method that evaluates."""
    logits_V = Reader(program).read(ids)
    by_cache = float(np.log(np.exp(logits_V.astype(np.float64)).sum()) - logits_V[target])
    m = program.manifest
    label_pos: NDArray[np.int64] = np.zeros((m.num_rows, m.num_labels), dtype=np.int64)
    targets = np.full_like(label_pos, IGNORE_TARGET)
    label_pos[:, 0], targets[:, 0] = len(ids) - 1, target
    return by_cache, float(program.evaluate(Batch(np.tile(ids, (m.num_rows, 1)), label_pos, targets))[0])


def test_greedy_equals_transformers(path: Path) -> None:
    program, model, seen = open_pte(path), architecture(NAME).build(), set()
    for length in (5, 9, 14, 20, 27, 33):
        ids = text_of(length)
        expected = transformers_greedy(model, ids, CONTEXT - length)
        assert greedy(program, ids, len(expected)) == expected
        seen |= set(expected)
    assert len(seen) > 5, "texts that repeat one token show nothing"


def test_what_was_trained_answers(path: Path) -> None:
    program = open_pte(path)
    ids = text_of(11)
    before, _ = _loss(program, ids, 7)
    give_state(program)
    by_cache, by_forward = _loss(program, ids, 7)
    assert abs(by_cache - before) > 0.01
    assert by_cache == pytest.approx(by_forward, rel=1e-5)


def test_what_is_no_number_does_not_stay(path: Path) -> None:
    program = open_pte(path)
    expected, trained = greedy(program, text_of(9), 6), program.read_state()
    program.write_state({name: np.full_like(b, np.nan) for name, b in trained.items()})
    with pytest.raises(ProgramError, match="^the program computes values that are not finite"):
        greedy(program, text_of(20), 6)
    program.write_state(trained)
    assert greedy(program, text_of(9), 6) == expected


def test_one_delegate_reads_on(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    extend = document["methods"][EXTEND_METHOD]
    assert document["context"] == CONTEXT
    # The cache comes and goes; nothing of it is copied or written in here.
    assert not {"aten::copy_", "aten::index_put.out", "aten::index_put_.default"} & set(extend["kernel_calls"])
    assert len(extend["delegates"]) == 1
    assert FORWARD_METHOD in document["methods"]


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "prge", "q": 2, "state": "dual", "quantize": "8da8w"},
        {"quantize_cache": 8},
        pytest.param({"method": "prge", "q": 2, "state": "seeded"}, marks=pytest.mark.slow),
        pytest.param({"method": "shortcut"}, marks=pytest.mark.slow),
        pytest.param(
            {"layers": ("last:1",), "targets": ("q_proj", "down_proj"), "quantize": "8da4w", "group_size": 8},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_graphs_of_every_method_read_the_trained_b(changes: dict[str, Any], checkpoint: Path) -> None:
    program = TorchProgram.build(chat_options(checkpoint, **changes))
    give_state(program)
    if program.manifest.state == "dual":
        # Copies that an evaluation has left: equal ones.
        program.apply(StepInputs.none(program.manifest.q))
    by_cache, by_forward = _loss(program, text_of(12), 9)
    # Quantised activations are rounded, and by other neighbours; text read in one call has seen no kept key yet.
    assert by_cache == pytest.approx(by_forward, rel=1e-3 if program.manifest.quantize != "none" else 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", [each.name for each in ARCHITECTURES if each.name != NAME])
def test_greedy_of_every_architecture(name: str, tmp_path: Path, shared: Shared) -> None:
    program = open_pte(shared.program(chat_options(write_checkpoint(tmp_path / "model", name))))
    ids = text_of(9)
    assert greedy(program, ids, 20) == transformers_greedy(architecture(name).build(), ids, 20)


def _chat(
    path: Path, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.stdin", io.StringIO(said))
    code = main(["chat", str(path), *options])
    return code, *capsys.readouterr()


def test_chat(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    program = open_pte(path)
    prompt = program.tokenizer.encode_chat_prompt([{"role": "user", "content": "the film was great"}])
    base = program.tokenizer.decode(greedy(program, prompt, 4))
    code, out, err = _chat(path, "the film was great\n", monkeypatch, capsys, "--max-tokens", "4")
    assert (code, out, err) == (0, f"{base}\n", "")
    give_state(program)
    trained = program.tokenizer.decode(greedy(program, prompt, 4))
    assert trained != base
    save_adapter(tmp_path / "adapter.safetensors", program)
    both = ("--adapter", str(tmp_path / "adapter.safetensors"), "--compare", "--max-tokens", "4")
    code, out, _ = _chat(path, "the film was great\n", monkeypatch, capsys, *both)
    assert (code, out) == (0, f"base: {base}\nadapter: {trained}\n")


def test_the_page_says_what_the_command_says(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = open_pte(path)
    give_state(program)
    adapter = tmp_path / "adapter.safetensors"
    save_adapter(adapter, program)
    answering = InferenceWorker(path)
    messages = [{"role": "user", "content": "the film was great"}]
    asked = {"kind": "chat", "messages": messages, "max_tokens": 4, "adapter": str(adapter)}
    found = answering.answer(asked)
    both = ("--adapter", str(adapter), "--compare", "--max-tokens", "4")
    code, out, _ = _chat(path, "the film was great\n", monkeypatch, capsys, *both)
    assert (code, out) == (0, f"base: {found[BASE]}\nadapter: {found[TRAINED]}\n")
    assert found[BASE] != found[TRAINED]
    assert answering.answer({**asked, "adapter": ""}) == {BASE: found[BASE]}


def test_a_full_cache_ends_the_conversation(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = _chat(path, "the film\nnever read\n", monkeypatch, capsys, "--max-tokens", "500")
    assert (code, len(out.splitlines())) == (0, 1)
    assert err == f"the program's cache of {CONTEXT} tokens is full: the conversation ends here\n"
    code, out, err = _chat(path, "the film " * CONTEXT + "\n", monkeypatch, capsys)
    assert (code, out) == (0, "")
    assert err.endswith(f"tokens, and the program's cache holds {CONTEXT}: full\n")


def _without_template(path: Path, target: Path) -> Path:
    """The program, its checkpoint without a chat template: the member of the tokenizer's zip with equal length."""
    data = path.read_bytes()
    found = re.search(rb'"chat_template": "(?:[^"\\]|\\.)*"', data)
    assert found is not None
    start = data.rindex(b"PK\x03\x04", 0, found.start())
    crc, size = struct.unpack_from("<II", data, start + 14)
    body_at = start + 30 + sum(struct.unpack_from("<HH", data, start + 26))
    body = data[body_at : body_at + size]
    assert zlib.crc32(body) == crc
    changed = body.replace(found[0], b'"chat_template": null'.ljust(len(found[0])))
    data = data.replace(body, changed).replace(struct.pack("<I", crc), struct.pack("<I", zlib.crc32(changed)))
    target.write_bytes(data)
    return target


def test_a_template_that_is_missing_is_reported(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = _without_template(path, tmp_path / "bare.pte")
    program = open_pte(bare, verify=False)
    plain = program.tokenizer.decode(greedy(program, program.tokenizer.encode("the film"), 4))
    options = ("--max-tokens", "4", "--no-verify", "--system", "be brief")
    code, out, err = _chat(bare, "the film\n", monkeypatch, capsys, *options)
    assert (code, out) == (0, f"{plain}\n")
    assert err == "the checkpoint has no chat template: each line is gone on from as plain text\n"


def test_an_adapter_of_another_model(
    path: Path, tiny_pte: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter = tmp_path / "adapter.safetensors"
    save_adapter(adapter, open_pte(tiny_pte))
    for options in ((), ("--compare",)):
        code, out, err = _chat(path, "hello\n", monkeypatch, capsys, "--adapter", str(adapter), *options)
        assert (code, out) == (ProgramError.exit_code, "")
        assert err.startswith("error: the adapter does not fit the program: its ")
        assert err.count("\n") == 1 and len(err) < 300 + len(str(adapter))


def test_predict_goes_through_the_cache(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = open_pte(path)
    ids = program.tokenizer.encode("the film was")
    expected = program.tokenizer.decode(greedy(program, ids, 20)).strip()
    # More tokens than T: next_tokens could not have written them.
    assert main(["predict", str(path), "--text", "the film was", "--generate", "20", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["predictions"]
    assert row["completion"] == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--compare",), "--compare shows an adapter beside the program without it"),
        (("--max-tokens", "0"), "--max-tokens is 0; expected at least 1"),
        (("--temperature", "-1"), "--temperature is -1.0; expected a finite number, 0 or more"),
    ],
)
def test_bad_options(
    path: Path,
    options: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = _chat(path, "hello\n", monkeypatch, capsys, *options)
    assert (code, out) == (UsageError.exit_code, "")
    assert err.startswith(f"error: {message}") and err.count("\n") == 1


def test_a_program_without_a_cache(
    tiny_pte: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = _chat(tiny_pte, "hello\n", monkeypatch, capsys)
    assert (code, err) == (
        UsageError.exit_code,
        "error: the program has no cache to continue with. Hint: compile it with --generate --context C\n",
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"context": 2}, "--context is 2; expected at least 4"),
        ({"generate": False}, "--context is for programs that generate"),
        ({"context": 0, "quantize_cache": 8}, "--quantize-cache is for programs with a cache"),
        ({"state": "host"}, "--state host has no cache in the program; leave out --context"),
        ({"static": True}, "--context needs a T that varies from call to call"),
        ({"context": 65}, "--context is 65, but the model supports 64 positions"),
    ],
)
def test_contexts_that_cannot_be(changes: dict[str, Any], message: str, checkpoint: Path) -> None:
    with pytest.raises(UsageError, match=f"^{message}"):
        TorchProgram.build(chat_options(checkpoint, **changes))
