"""A real .pte small enough to build in seconds: bag-of-words model, one trained site, lowered to portable kernels."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch
from torch import Tensor, nn

import prgec.runtime_ops.library  # registers the operators the fixture exports
from prgec.compiler.frontend.tokenizer import pack_tokenizer
from prgec.core.contract import names as contract
from prgec.core.contract.manifest import Manifest, Site
from prgec.core.data.dataset import Dataset, load_dataset
from prgec.runtime_ops.lora import lora_a
from tests.shared import Shared

assert prgec.runtime_ops.library

GOOD = ("great", "lovely", "bright", "superb")
BAD = ("awful", "boring", "dull", "clumsy")
FILLER = ("the", "film", "plot", "acting", "a", "it", "is", "It", "was", "terrible")
WIDTH, RANK, VOCAB = 16, 4, 380
MANIFEST = Manifest(
    model="bag-of-words",
    architecture="BagOfWords",
    backend="portable",
    q=2,
    batch_size=2,
    seq_len=24,
    dynamic_seq_len=True,
    num_labels=2,
    vocab_size=VOCAB,
    rank=RANK,
    alpha=8.0,
    a_seed=3,
    state="seeded",
    quantize="none",
    sites=(Site("head", 0, WIDTH, VOCAB),),
    pipeline="",
    base_sha256="ab" * 32,
    pad_token_id=2,
)


class BagOfWords(nn.Module):
    """Causal mean of embeddings, then one linear head with a LoRA-FA branch that updates itself."""

    def __init__(self, manifest: Manifest) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.manifest = manifest
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.embedding.weight.data = torch.randn(VOCAB, WIDTH, generator=generator)
        self.head.weight.data = 0.1 * torch.randn(VOCAB, WIDTH, generator=generator)
        self.head.register_buffer("lora_A", lora_a(manifest.a_seed, 0, RANK, WIDTH))
        self.head.register_buffer("lora_B", torch.zeros(RANK, VOCAB))

    def forward(
        self,
        tokens: Tensor,
        label_pos: Tensor,
        targets: Tensor,
        g: Tensor,
        lr: Tensor,
        eps: Tensor,
        seed: Tensor,
        step: Tensor,
    ) -> Tensor:
        copies = torch.ops.prge.dual_update(self.head.lora_B, g, lr, eps, seed, step, 0)
        x_NTD = self.embedding(tokens).cumsum(1)
        x_NKD = x_NTD.gather(1, label_pos.unsqueeze(-1).expand(-1, -1, WIDTH)) / (label_pos + 1).unsqueeze(-1)
        branch = torch.bmm((x_NKD @ self.head.lora_A.T).reshape(copies.shape[0], -1, RANK), copies)
        logits = self.head(x_NKD) + self.manifest.alpha / RANK * branch.reshape(tokens.shape[0], -1, VOCAB)
        nll = -torch.log_softmax(logits, -1).gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        used = (targets >= 0).to(torch.float32)
        return (nll * used).sum(1) / used.sum(1)


class Apply(nn.Module):
    """The update alone, over a buffer of the same name."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Module()
        self.head.register_buffer("lora_B", torch.zeros(RANK, VOCAB))

    def forward(self, g: Tensor, lr: Tensor, seed: Tensor, step: Tensor) -> Tensor:
        return torch.ops.prge.dual_update(self.head.lora_B, g, lr, torch.zeros(()), seed, step, 0).sum()


def build_pte(path: Path, manifest: Manifest, tokenizer: bytes, **constants: Any) -> Path:
    """Export and lower the model with ExecuTorch; `constants` override constant methods (None drops one)."""
    from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
    from executorch.exir.passes import MemoryPlanningPass

    n, k = manifest.num_rows, manifest.num_labels
    scalars = (torch.zeros(manifest.q), torch.tensor(0.0), torch.tensor(0.0), torch.tensor(0), torch.tensor(0))
    longs = tuple(torch.zeros(n, size, dtype=torch.int64) for size in (manifest.seq_len, k, k))
    shapes = ({1: torch.export.Dim("T", min=2, max=manifest.seq_len)}, *[None] * 7)
    forward = torch.export.export(BagOfWords(manifest), (*longs, *scalars), dynamic_shapes=shapes, strict=False)
    apply = torch.export.export(Apply(), (scalars[0], scalars[1], *scalars[3:]), strict=False)
    methods = {
        contract.VERSION_METHOD: contract.CONTRACT_VERSION,
        contract.MANIFEST_METHOD: manifest.to_json(),
        contract.TOKENIZER_METHOD: torch.frombuffer(bytearray(tokenizer), dtype=torch.uint8),
        **constants,
    }
    constant_methods = {name: value for name, value in methods.items() if value is not None}
    edge = to_edge_transform_and_lower({"forward": forward, "apply": apply}, constant_methods=constant_methods)
    config = ExecutorchBackendConfig(
        memory_planning_pass=MemoryPlanningPass(share_mutable_buffers=True), emit_mutable_buffer_names=True
    )
    path.write_bytes(edge.to_executorch(config).buffer)
    return path


@pytest.fixture(scope="session")
def tokenizer_blob(shared: Shared) -> bytes:
    """A packed sentencepiece tokenizer with one token for each of the fixture's words."""
    return pack_tokenizer(shared.once("tokenizer", write_tokenizer))


def write_tokenizer(folder: Path) -> None:
    """Train it into a folder, created."""
    words = (*GOOD, *BAD, *FILLER)
    sentences = [" ".join(words[(i + j * j) % len(words)] for j in range(8)) for i in range(400)]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        vocab_size=VOCAB,
        model_type="bpe",
        byte_fallback=True,
        pad_id=-1,
        normalization_rule_name="identity",
        minloglevel=2,
    )
    folder.mkdir()
    (folder / "tokenizer.model").write_bytes(model.getvalue())
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))


@pytest.fixture(scope="session")
def tiny_pte(shared: Shared, tokenizer_blob: bytes) -> Path:
    """The program every driver test runs."""
    return shared.once("tiny.pte", lambda path: build_pte(path, MANIFEST, tokenizer_blob))


@pytest.fixture
def build_variant(tmp_path: Path, tokenizer_blob: bytes) -> Callable[..., Path]:
    """Lower a variant of the program with other constant methods; None drops one."""
    return lambda **constants: build_pte(tmp_path / "variant.pte", MANIFEST, tokenizer_blob, **constants)


@pytest.fixture
def patched_pte(tiny_pte: Path, tmp_path: Path) -> Callable[[bytes, bytes], Path]:
    """Make a variant of the program by replacing bytes, which is far quicker than lowering another one."""

    def patch(old: bytes, new: bytes) -> Path:
        data = tiny_pte.read_bytes()
        assert len(old) == len(new) and old in data
        path = tmp_path / "patched.pte"
        path.write_bytes(data.replace(old, new))
        return path

    return patch


def write_reviews(path: Path, count: int, seed: int) -> Path:
    """Write sst2 rows whose label follows from one word."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(count):
        label = int(rng.integers(2))
        word = (BAD, GOOD)[label][int(rng.integers(4))]
        filler = [FILLER[i] for i in rng.integers(0, 7, size=int(rng.integers(1, 5)))]
        filler.insert(int(rng.integers(len(filler) + 1)), word)
        lines.append(json.dumps({"sentence": " ".join(filler), "label": label}) + "\n")
    path.write_text("".join(lines))
    return path


@pytest.fixture(scope="session")
def train_jsonl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reviews(tmp_path_factory.mktemp("data") / "train.jsonl", 64, seed=1)


@pytest.fixture(scope="session")
def dev_jsonl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reviews(tmp_path_factory.mktemp("data") / "dev.jsonl", 37, seed=2)


@pytest.fixture(scope="session")
def train_data(train_jsonl: Path) -> Dataset:
    return load_dataset(train_jsonl)


@pytest.fixture(scope="session")
def make_eager() -> Callable[[], BagOfWords]:
    """Make the same model in PyTorch, the oracle of the runtime, untrained."""
    return lambda: BagOfWords(MANIFEST)
