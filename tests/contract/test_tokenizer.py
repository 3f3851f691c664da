"""The packed tokenizer equals the checkpoint's own, and a blob is never trusted."""

from __future__ import annotations

import contextlib
import io
import json
import random
import zipfile
from pathlib import Path

import pytest
import sentencepiece

from prgec.compiler.frontend.tokenizer import pack_tokenizer
from prgec.core.contract.packed_tokenizer import SETTINGS_JSON, TOKENIZER_JSON
from prgec.core.contract.tokenizer import Tokenizer
from prgec.errors import CheckpointError, ProgramError

AWKWARD = [
    "the film was great",
    " leading",
    "two  spaces",
    "tab\tand\nnewline\n",
    "na\u00efve \u65e5\u672c \U0001f389",
    "",
    "e\u0301 \u00e9",
    "<s> inner </s>",
    "It was",
    " great",
    "a\u00a0b",
    "trailing ",
    "0123456789",
    "\u200bzero width",
]
WORDS = "the film was great terrible awful lovely movie plot acting boring bright dull a an it is in of and It".split()


@pytest.fixture(scope="module")
def sentencepiece_model() -> bytes:
    """Train a small byte-fallback BPE model with an identity normaliser, as Llama's is."""
    rng = random.Random(0)
    sentences = [" ".join(rng.choices(WORDS, k=rng.randint(3, 12))) for _ in range(500)]
    buffer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=buffer,
        vocab_size=340,
        model_type="bpe",
        byte_fallback=True,
        character_coverage=1.0,
        pad_id=-1,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
        minloglevel=2,
    )
    return buffer.getvalue()


@pytest.fixture(scope="module")
def sp_checkpoint(tmp_path_factory: pytest.TempPathFactory, sentencepiece_model: bytes) -> Path:
    """A folder with `tokenizer.model` and a tokenizer_config.json that asks for BOS."""
    folder = tmp_path_factory.mktemp("sp")
    _write_checkpoint(folder, sentencepiece_model)
    settings = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "chat_template": "{{ messages }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def bare_checkpoint(tmp_path_factory: pytest.TempPathFactory, sentencepiece_model: bytes) -> Path:
    """A folder with nothing but config.json and `tokenizer.model`."""
    folder = tmp_path_factory.mktemp("bare")
    _write_checkpoint(folder, sentencepiece_model)
    return folder


def _write_checkpoint(folder: Path, model: bytes) -> None:
    (folder / "tokenizer.model").write_bytes(model)
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 340}
    (folder / "config.json").write_text(json.dumps(config))


def test_equals_transformers_on_awkward_text(sp_checkpoint: Path) -> None:
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(sp_checkpoint, local_files_only=True)
    packed = Tokenizer.unpack(pack_tokenizer(sp_checkpoint))
    assert packed.bos_id == reference.bos_token_id == 1
    for text in AWKWARD:
        ids = reference(text)["input_ids"]
        assert ids[0] == 1
        assert packed.encode(text) == ids
        assert packed.encode(text, add_special_tokens=False) == reference(text, add_special_tokens=False)["input_ids"]
        assert packed.decode(ids) == reference.decode(ids, skip_special_tokens=True)


# Written-out special tokens and a leading space are where transformers' Llama class departs from sentencepiece.
@pytest.mark.parametrize("text", [text for text in AWKWARD if "<s>" not in text and not text.startswith(" ")])
def test_bare_sentencepiece_file_equals_sentencepiece_with_bos(bare_checkpoint: Path, text: str) -> None:
    packed = Tokenizer.unpack(pack_tokenizer(bare_checkpoint))
    oracle = sentencepiece.SentencePieceProcessor(model_file=str(bare_checkpoint / "tokenizer.model"))
    assert packed.encode(text) == [oracle.bos_id(), *oracle.encode(text)]


def test_fast_format_only_checkpoint(sp_checkpoint: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(sp_checkpoint, local_files_only=True).save_pretrained(tmp_path)
    assert not (tmp_path / "tokenizer.model").exists()
    packed, original = Tokenizer.unpack(pack_tokenizer(tmp_path)), Tokenizer.unpack(pack_tokenizer(sp_checkpoint))
    assert [packed.encode(text) for text in AWKWARD] == [original.encode(text) for text in AWKWARD]


def test_pack_is_deterministic_and_uncompressed(sp_checkpoint: Path) -> None:
    blob = pack_tokenizer(sp_checkpoint)
    assert blob == pack_tokenizer(sp_checkpoint)
    with zipfile.ZipFile(io.BytesIO(blob)) as archive:
        infos = archive.infolist()
        assert [info.filename for info in infos] == [TOKENIZER_JSON, SETTINGS_JSON, "tokenizer.model"]
        assert all(info.compress_type == zipfile.ZIP_STORED for info in infos)
        assert all(info.date_time == (1980, 1, 1, 0, 0, 0) for info in infos)
        assert archive.read("tokenizer.model") == (sp_checkpoint / "tokenizer.model").read_bytes()


def test_settings_survive(sp_checkpoint: Path) -> None:
    tokenizer = Tokenizer.unpack(pack_tokenizer(sp_checkpoint))
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (1, 2, 2)
    assert tokenizer.add_bos
    assert tokenizer.chat_template == "{{ messages }}"


def test_row_cutting_inside_the_checkpoint_is_dropped(sp_checkpoint: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(sp_checkpoint, local_files_only=True).save_pretrained(tmp_path)
    raw = json.loads((tmp_path / "tokenizer.json").read_text())
    raw["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))
    blob = pack_tokenizer(tmp_path)
    assert len(Tokenizer.unpack(blob).encode("the film was great and it is lovely")) > 3
    assert json.loads(_members(blob)[TOKENIZER_JSON])["truncation"] is None


def test_folder_without_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has no tokenizer"):
        pack_tokenizer(tmp_path)


def test_unreadable_tokenizer(tmp_path: Path) -> None:
    _write_checkpoint(tmp_path, b"not a model")
    with pytest.raises(CheckpointError, match="cannot load the tokenizer"):
        pack_tokenizer(tmp_path)


def _archive(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def _members(blob: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(blob)) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: b"PK\x03\x04 nonsense", "damaged"),
        (lambda m: b"", "damaged"),
        (lambda m: _archive({TOKENIZER_JSON: m[TOKENIZER_JSON]}), f"lacks {SETTINGS_JSON}"),
        (lambda m: _archive({**m, "../evil": b"x"}), "unexpected member"),
        (lambda m: _archive(m, zipfile.ZIP_DEFLATED), "compressed or too large"),
        (lambda m: _archive({**m, TOKENIZER_JSON: b"{}"}), "tokenizer.json is damaged"),
        (lambda m: _archive({**m, TOKENIZER_JSON: b"\xff"}), "tokenizer.json is damaged"),
        (lambda m: _archive({**m, SETTINGS_JSON: b"[]"}), "settings are damaged"),
        (lambda m: _archive({**m, SETTINGS_JSON: b"{}"}), "settings are damaged"),
        (lambda m: _archive({**m, SETTINGS_JSON: _edit(m, format=99)}), "format 99"),
        (lambda m: _archive({**m, SETTINGS_JSON: _edit(m, bos_id="1")}), "bos_id = '1'"),
        (lambda m: _archive({**m, SETTINGS_JSON: _edit(m, pad_id=None)}), "pad_id = None"),
        (lambda m: _archive({**m, SETTINGS_JSON: _edit(m, eos_id=10**9)}), "beyond its vocabulary"),
    ],
)
def test_bad_blob_is_one_clear_error(sp_checkpoint: Path, change, message: str) -> None:
    members = _members(pack_tokenizer(sp_checkpoint))
    with pytest.raises(ProgramError, match=message):
        Tokenizer.unpack(change(members))


def _edit(members: dict[str, bytes], **changes: object) -> bytes:
    return json.dumps({**json.loads(members[SETTINGS_JSON]), **changes}).encode()


def test_flipped_bytes_never_escape_as_another_error(sp_checkpoint: Path) -> None:
    blob = pack_tokenizer(sp_checkpoint)
    rng = random.Random(1)
    for _ in range(30):
        damaged = bytearray(blob)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        with contextlib.suppress(ProgramError):
            Tokenizer.unpack(bytes(damaged))
