"""A GGUF file is the model and the tokenizer it was written from, and what transformers' own reader makes of it."""

from __future__ import annotations

import json
import struct
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prgec.cli.main import main
from prgec.compiler.frontend.checkpoint import find_checkpoint
from prgec.compiler.frontend.gguf_weights import unpack
from prgec.compiler.frontend.limits import read_limits
from prgec.compiler.frontend.model import load_model, weights_sha256
from prgec.compiler.frontend.tokenizer import pack_tokenizer
from prgec.core.contract.tokenizer import Tokenizer
from prgec.core.formats.gguf_file import BLOCKS, GgufFile, GgufTensor, read_gguf
from prgec.errors import CheckpointError
from tests.architectures import ARCHITECTURES, randomise
from tests.contract.test_tokenizer_equality import AWKWARD
from tests.gguf_model import add_merges, add_sentencepiece, llama3_factors, write_gguf, write_gguf_llama
from tests.models import TinyLlama, _bpe_json, _sentencepiece_model

TOKENS = torch.tensor([[1, 7, 300, 12, 99, 4, 250, 31, 8, 64]])
TEXTS = [*AWKWARD, "the film was great", "It is an awful, boring movie!", "2024: 13.5 %", "  dull   plot"]
# Words that the merges of the tiny tokenizer know, with marks that rules split apart in different ways.
SPLIT = ["it's the 1234 films", "great!!\n\n the  plot", "IT'S great'S\r\n", "the film\n", "e\u0301 the \u00e9"]


def _pieces(writer: Any) -> None:
    add_sentencepiece(writer, _sentencepiece_model())


def _merges(rule: str) -> Callable[[Any], None]:
    return lambda writer: add_merges(writer, json.loads(_bpe_json()), rule)


def _built(name: str) -> Any:
    """The tiny model of an architecture; Gemma 3 with what its files take for given: every sixth block sees all.

    Transformers' reader takes the width of a head for given, too, where scores are scaled.
    """
    found = next(each for each in ARCHITECTURES if each.model_type == name)
    if name == "gemma3_text":
        options = {key: value for key, value in found.deeper(6).options.items() if key != "layer_types"}
        found = replace(found, options={**options, "head_dim": 256, "query_pre_attn_scalar": 256})
    return found.build()


@pytest.fixture(scope="module")
def llama_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    return write_gguf(folder / "tiny.gguf", TinyLlama(hidden_size=32).build(), _pieces)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gemma3_text"])
def test_weights_and_logits_are_those_of_the_model(name: str, tmp_path: Path) -> None:
    model = _built(name)
    path = write_gguf(tmp_path / "m.gguf", model, _pieces)
    loaded = load_model(find_checkpoint(str(path)))
    expected = model.state_dict()
    assert set(loaded.state_dict()) == set(expected)
    for key, tensor in loaded.state_dict().items():
        # Gemma's norms went through 1 + w.
        torch.testing.assert_close(tensor, expected[key], rtol=0.0, atol=1e-6 if name == "gemma3_text" else 0.0)
    torch.testing.assert_close(loaded(TOKENS).logits, model(TOKENS).logits, rtol=0.0, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3_text"])
def test_transformers_reads_the_same(name: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, GgufConfig

    kinds = {"token_embd.weight": "Q8_0", "blk.0.attn_q.weight": "Q4_1", "blk.0.ffn_up.weight": "Q5_0"}
    model = _built(name)
    path = write_gguf(tmp_path / "m.gguf", model, _pieces, kinds)
    ours = load_model(find_checkpoint(str(path)))
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=path.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    assert torch.equal(ours(TOKENS).logits, theirs(TOKENS).logits)
    assert not torch.allclose(ours(TOKENS).logits, model(TOKENS).logits, atol=1e-4)


def test_a_file_has_the_hash_of_the_folder_it_was_made_from(llama_file: Path, tmp_path: Path) -> None:
    """So that a program compiled from either takes the other for its base."""
    folder = TinyLlama(hidden_size=32).write(tmp_path / "folder")
    of_file, of_folder = (load_model(find_checkpoint(str(path))) for path in (llama_file, folder))
    assert weights_sha256(of_file) == weights_sha256(of_folder)
    checkpoint = find_checkpoint(str(llama_file))
    assert (checkpoint.name, checkpoint.shards) == ("tiny.gguf", (llama_file,))


@pytest.mark.parametrize("kind", sorted(set(BLOCKS) - {0, 1}), ids=lambda kind: BLOCKS[kind][0])
def test_blocks_are_unpacked_as_transformers_does(kind: int, tmp_path: Path) -> None:
    from transformers.integrations.gguf.dequant import GGML_BLOCK, dequantize

    name, elements, size = BLOCKS[kind]
    generator = np.random.default_rng(kind)
    rows, blocks = 3, 4
    raw = generator.integers(0, 120, (rows, blocks, size), dtype=np.uint8)  # no scale is NaN in f16
    path = tmp_path / "blocks"
    path.write_bytes(raw.tobytes())
    shape = (rows, blocks * elements)
    found = unpack(GgufFile(path, {}, {}), GgufTensor(shape, kind, 0))
    assert found.shape == shape and found.dtype == np.float32
    if kind in GGML_BLOCK:
        expected = dequantize(torch.from_numpy(raw.reshape(-1)), kind)
        torch.testing.assert_close(torch.from_numpy(found).reshape(-1), expected, rtol=1e-6, atol=0.0)
    else:
        assert name in ("Q5_0", "Q5_1", "BF16")
        assert np.isfinite(found).all() and len(np.unique(found)) > blocks


def _ids(path: Path, texts: list[str]) -> list[list[int]]:
    tokenizer = Tokenizer.unpack(pack_tokenizer(path))
    return [tokenizer.encode(text) for text in texts]


def test_pieces_are_those_of_sentencepiece(llama_file: Path, tmp_path: Path) -> None:
    folder = TinyLlama().write(tmp_path / "folder")
    assert _ids(llama_file, TEXTS) == _ids(folder, TEXTS)
    of_file, of_folder = (Tokenizer.unpack(pack_tokenizer(path)) for path in (llama_file, folder))
    assert (of_file.bos_id, of_file.eos_id, of_file.add_bos) == (1, 2, True)
    ids = of_folder.encode("the film was great")
    assert of_file.decode(ids) == of_folder.decode(ids) == "the film was great"


def test_bytes_are_those_of_the_tokenizer(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", TinyLlama().build(), _merges("gpt-2"))
    folder = TinyLlama().write(tmp_path / "folder", tokenizer="json")
    tokenizer = Tokenizer.unpack(pack_tokenizer(folder))
    texts = [text for text in [*TEXTS, *SPLIT] if "<0x" not in text]
    # The original adds a space before the first word, which no file of this kind requests.
    assert _ids(path, [f" {text}" for text in texts]) == [tokenizer.encode(f" {text}") for text in texts]


@pytest.mark.parametrize("rule", ["qwen2", "llama-bpe"])
def test_rules_split_as_the_tokenizers_they_are_named_after(rule: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    path = write_gguf(tmp_path / "m.gguf", _built("qwen2"), _merges(rule))
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
    # Transformers leaves accents apart, whichever the rule.
    texts = [unicodedata.normalize("NFC", text) for text in (*TEXTS, *SPLIT)]
    assert _ids(path, texts) == [theirs(text)["input_ids"] for text in texts]


def test_rules_that_transformers_does_not_tell_apart(tmp_path: Path) -> None:
    """Qwen composes accents, and SmolLM reads every digit alone."""
    found = {}
    for rule in ("gpt-2", "qwen2", "smollm"):
        path = write_gguf(tmp_path / f"{rule}.gguf", TinyLlama().build(), _merges(rule))
        found[rule] = _ids(path, ["e\u0301", "\u00e9", "the 12", "the", " ", "1", "2"])
    assert found["qwen2"][0] == found["qwen2"][1] and found["gpt-2"][0] != found["gpt-2"][1]
    whole, *parts = found["smollm"][2:]
    assert whole == [token for part in parts for token in part]


def test_limits_and_plan_need_no_weights(llama_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = read_limits(str(llama_file))
    assert (limits.vocab_size, limits.max_positions) == (320, 64)
    assert main(["plan", str(llama_file), "--memory", "1G", "--seq-len", "32"]) == 0
    assert f"prgec compile {llama_file}" in capsys.readouterr().out


def test_compiles_and_exports(llama_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the command line, and the merged model of an untrained adapter is the file's."""
    from prgec.core.formats.adapter import save_adapter
    from prgec.runtime.engines.executorch.open import open_pte

    output = tmp_path / "m.pte"
    sizes = ["--batch-size", "1", "--seq-len", "8", "--label-tokens", "1", "--backend", "portable", "--q", "1"]
    assert main(["compile", str(llama_file), "-o", str(output), *sizes]) == 0
    assert "tiny.gguf" in capsys.readouterr().out + str(open_pte(output).manifest.model)
    adapter = tmp_path / "adapter.safetensors"
    save_adapter(adapter, open_pte(output))
    merged = tmp_path / "merged"
    wanted = ["--program", str(output), "--base", str(llama_file), "--format", "merged", "-o", str(merged)]
    assert main(["export", str(adapter), *wanted]) == 0
    base = load_model(find_checkpoint(str(llama_file)))
    assert weights_sha256(load_model(find_checkpoint(str(merged)))) == weights_sha256(base)
    assert _ids(merged, TEXTS) == _ids(llama_file, TEXTS)


def _patched(path: Path, tmp_path: Path, old: bytes, new: bytes) -> Path:
    data = path.read_bytes()
    assert old in data and len(old) == len(new)
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(data.replace(old, new))
    return bad


def test_what_is_not_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for data in (b"PK\3\4 not a model", b"{}", b"GGU"):
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match=r"the file is not GGUF"):
            find_checkpoint(str(path))
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"damaged or cut short.*empty"):
        find_checkpoint(str(path))
    path.write_bytes(b"GGUF" + struct.pack("<I", 1) + bytes(16))
    with pytest.raises(CheckpointError, match=r"version 1; this prgec reads 2 and 3"):
        find_checkpoint(str(path))


@pytest.mark.parametrize("kept", [5, 20, 200, 3000, -4])
def test_what_is_cut_short_is_refused(llama_file: Path, tmp_path: Path, kept: int) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(llama_file.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=r"cut short: .* Hint: download the file again") as caught:
        find_checkpoint(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_positions_of_llama_3_are_scaled_as_transformers_does(tmp_path: Path, factor: float) -> None:
    """The file holds factors alone, and no keys; factors of another rule are refused."""
    from transformers import LlamaConfig, LlamaForCausalLM

    scaling = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling |= {"original_max_position_embeddings": 8192, "rope_theta": 500_000.0}
    config = {
        **TinyLlama().build().config.to_dict(),
        "rope_parameters": scaling,
        "head_dim": 32,
        "max_position_embeddings": 800,
    }
    model: Any = LlamaForCausalLM(LlamaConfig(**config)).eval()
    randomise(model, 0)

    def with_factors(change: float) -> Callable[[Any], None]:
        def add(writer: Any) -> None:
            _pieces(writer)
            writer.add_tensor("rope_freqs.weight", llama3_factors(model.config) * np.float32(change))

        return add

    tokens = torch.arange(700)[None] % 300
    found = load_model(find_checkpoint(str(write_gguf(tmp_path / "m.gguf", model, with_factors(1.0)))))
    with torch.no_grad():
        torch.testing.assert_close(found(tokens).logits, model(tokens).logits, rtol=1e-4, atol=1e-4)
        unscaled = {"rope_type": "default", "rope_theta": 500_000.0}
        plain = LlamaForCausalLM(LlamaConfig(**{**config, "rope_parameters": unscaled}))
        plain.load_state_dict(model.state_dict())
        assert not torch.allclose(plain.eval()(tokens).logits, model(tokens).logits, atol=1e-3)
    with pytest.raises(CheckpointError, match="by frequency, other than Llama 3's"):
        find_checkpoint(str(write_gguf(tmp_path / "n.gguf", model, with_factors(1.1))))


def test_what_is_not_known_is_refused(llama_file: Path, tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"architecture 'phi3' are not supported .*known: llama, qwen2, qwen3, gemma3"
    ):
        find_checkpoint(str(write_gguf(tmp_path / "phi.gguf", _built("phi3"), _pieces)))
    kinds = {"blk.0.attn_q.weight": "TQ2_0"}
    wide = TinyLlama(hidden_size=256).build()
    with pytest.raises(CheckpointError, match=r"blk.0.attn_q.weight has quantisation type 35, which is not supported"):
        find_checkpoint(str(write_gguf(tmp_path / "tq.gguf", wide, _pieces, kinds)))

    def stretched(writer: Any) -> None:
        import gguf

        _pieces(writer)
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)

    with pytest.raises(CheckpointError, match=r"scales its positions \(yarn\), which is not supported"):
        find_checkpoint(str(write_gguf(tmp_path / "y.gguf", TinyLlama().build(), stretched)))
    with pytest.raises(CheckpointError, match=r"by the rule 'tekken', which is not supported.*known: gpt-2, smollm"):
        pack_tokenizer(write_gguf(tmp_path / "t.gguf", TinyLlama().build(), _merges("tekken")))
    renamed = _patched(llama_file, tmp_path, b"blk.0.attn_q.weight", b"blk.0.attn_z.weight")
    with pytest.raises(CheckpointError, match=r"blk.0.attn_z.weight is not a tensor of architecture llama"):
        load_model(find_checkpoint(str(renamed)))
    without = _patched(llama_file, tmp_path, b"blk.0.attn_q.weight", b"blk.0.attn_k.biased")
    with pytest.raises(CheckpointError, match=r"lacks 1 of the model's weights, first .*q_proj|is not a tensor of"):
        load_model(find_checkpoint(str(without)))


def test_a_tokenizer_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    def broken(writer: Any) -> None:
        document = json.loads(_bpe_json())
        document["model"]["merges"].append(["nowhere", "found"])
        add_merges(writer, document, "gpt-2")

    path = write_gguf(tmp_path / "m.gguf", TinyLlama().build(), broken)
    with pytest.raises(CheckpointError, match=r"the file's tokenizer is damaged: .*Token `nowhere` out of vocabulary"):
        pack_tokenizer(path)


def test_a_size_that_is_missing_is_named(llama_file: Path, tmp_path: Path) -> None:
    bad = _patched(llama_file, tmp_path, b"llama.block_count", b"llama.block_coast")
    with pytest.raises(CheckpointError, match=r"the file has llama\.block_count = None"):
        find_checkpoint(str(bad))


def test_a_vocabulary_without_meaning_is_a_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf_llama(path, TinyLlama().build())
    assert read_gguf(path).architecture == "llama"
    assert _ids(path, ["w3"])[0][0] == 1
