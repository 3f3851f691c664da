"""Every reader of files that strangers may have made, in Python and in C++, with good files to start from."""

from __future__ import annotations

import gzip
import io
import json
import struct
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests" / "fuzz" / "corpus"
# An input takes no longer.
MAX_SECONDS = 10
# As tests/fuzz/readers.h numbers them.
_NATIVE = ("journal", "rows", "adapter", "manifest", "tokenizer", "envelope", "program")
NATIVE_KINDS = {kind: number for number, kind in enumerate(_NATIVE)}
_JSONL = b"""{"sentence": "a film of rare warmth", "label": 1}
{"sentence": "dull", "label": 0}
{"sentence": "the plot is a plot", "label": 0}
"""
_TEMPLATE = b"""{{ bos_token }}{% macro turn(m) %}<{{ m.role }}>{{ m.content | trim }}</s>{% endmacro %}
{%- set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ turn(m) ~ '\\n' * 2 }}
{%- if m.role == 'assistant' and not loop.last %}{{ '%s-%d' % (m.content, loop.index) }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}<assistant>{{ 'x'.center(3) ~ ['a', 'b'] | join(', ') }}{% endif %}"""


@dataclass
class Reader:
    """A reader of files that strangers may have made.

    Attributes:
        kind: Kind of input.
        read: Reads a file, or refuses it with a `PrgecError`.
        seeds: Good files, and bad ones of the corpus.
    """

    kind: str
    read: Callable[[Path], object]
    seeds: list[bytes]


class NativeReader:
    """The C++ readers, in a process of their own that is started again when an input ends it; a context manager."""

    def __init__(self, executable: Path, program: Path) -> None:
        self._command = [str(executable), str(program)]

    def __enter__(self) -> NativeReader:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def read(self, kind: str, data: bytes) -> bool | None:
        """Return whether an input was accepted, None if it ended the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(struct.pack("<II", NATIVE_KINDS[kind], len(data)) + data)
        self._process.stdin.flush()
        answer = self._process.stdout.read(1)
        if answer:
            return answer == b"\1"
        self._process.wait()
        self._start()
        return None

    def _start(self) -> None:
        # Address sanitisers reserve more addresses than the limit for Python allows.
        self._process = subprocess.Popen(
            ["prlimit", "--as=unlimited", *self._command], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )


def make_readers(program: Path, tokenizer: bytes, work: Path) -> list[Reader]:
    """Return a reader for every kind of file, with good files to start from.

    Args:
        program: A .pte with seeded state.
        tokenizer: Its packed tokenizer.
        work: Scratch folder.
    """
    from prgec.compiler.frontend.gguf_config import config_of
    from prgec.compiler.frontend.gguf_tokenizer import load_tokenizer
    from prgec.core.contract.inspection import inspect_program
    from prgec.core.contract.manifest import Manifest
    from prgec.core.contract.sections import read_sections
    from prgec.core.contract.tokenizer import Tokenizer
    from prgec.core.data.dataset import load_dataset
    from prgec.core.data.rows_file import read_rows
    from prgec.core.formats.adapter import load_adapter, save_adapter
    from prgec.core.formats.gguf_file import read_gguf
    from prgec.core.formats.journal import read_journal
    from prgec.core.formats.shards import read_shard
    from prgec.core.formats.side_network import read_network
    from prgec.runtime.engines.executorch.open import open_pte
    from prgec.runtime.engines.executorch.pte_file import check_pte_file
    from tests.tiny_inputs import write_rows

    opened = open_pte(program)
    manifest = opened.manifest
    save_adapter(work / "adapter", opened)
    write_rows(work / "rows", program, 3)
    good = {
        "journal": _journal(work / "journal"),
        "rows": (work / "rows").read_bytes(),
        "jsonl": _JSONL,
        "adapter": (work / "adapter").read_bytes(),
        "manifest": manifest.to_json().encode(),
        "tokenizer": tokenizer,
        "envelope": program.read_bytes()[:64],
        "program": program.read_bytes(),
        "shard": _shard("f16"),
        "network": _network(work / "network"),
        "gguf": _gguf(work / "gguf"),
        "template": _TEMPLATE,
    }
    read: dict[str, Callable[[Path], object]] = {
        "journal": read_journal,
        "rows": lambda path: read_rows(path, manifest, opened.tokenizer.sha256).rows[:],
        "jsonl": load_dataset,
        "adapter": lambda path: load_adapter(path, opened),
        "manifest": lambda path: Manifest.from_json(path.read_bytes().decode("utf-8", "replace")).to_json(),
        "tokenizer": lambda path: Tokenizer.unpack(path.read_bytes()),
        "envelope": check_pte_file,
        "program": lambda path: (inspect_program(path), read_sections(path)),
        "shard": read_shard,
        "network": read_network,
        "template": _write_conversation,
        "gguf": lambda path: (config_of(read_gguf(path)), load_tokenizer(read_gguf(path))),
    }
    # The kind of a data file follows from its content.
    others = {"shard": [_shard("i8")], "jsonl": _tables()}
    return [Reader(kind, read[kind], [good[kind], *others.get(kind, []), *_kept(kind)]) for kind in read]


def _write_conversation(path: Path) -> object:
    """Write a conversation by a template; the file is the template."""
    from prgec.core.contract.chat import ChatTemplate

    template = ChatTemplate(path.read_text(encoding="utf-8", errors="replace"), {"bos_token": "<s>"})
    turns = [{"role": role, "content": "a b"} for role in ("system", "user", "assistant")]
    return template.prompt(turns[:2], ()), template.write(turns, (), lambda prompt, text: 0)


def _tables() -> list[bytes]:
    """The same rows as an array, a table, packed, and in Apache's formats."""
    import pyarrow
    import pyarrow.parquet

    rows = [json.loads(line) for line in _JSONL.splitlines()]
    table, parquet, stream = pyarrow.Table.from_pylist(rows), io.BytesIO(), io.BytesIO()
    pyarrow.parquet.write_table(table, parquet)
    with pyarrow.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    lines = ["sentence,label", *(f'"{row["sentence"]}",{row["label"]}' for row in rows)]
    texts = [json.dumps(rows, indent=1), "\n".join(lines)]
    return [*(text.encode() for text in texts), gzip.compress(_JSONL), parquet.getvalue(), stream.getvalue()]


def _kept(kind: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / kind).glob("*"))]


def _journal(path: Path) -> bytes:
    import numpy as np

    from prgec.core.formats.journal import JournalWriter
    from prgec.core.formats.journal_records import EvaluationRecord, Header, Record, StateRecord, StepRecord

    header = Header(
        q=2,
        batch_size=3,
        seed=-5,
        steps=9,
        lr=3e-3,
        eps=1e-2,
        schedule="linear",
        estimator="std",
        num_examples=7,
        rows_crc=0xDEADBEEF,
        program_sha256="ab" * 32,
        start_sha256="cd" * 32,
    )
    ones = np.ones((2, 2))
    records: list[Record] = [
        StepRecord(step=i, lr=0.1, eps=0.01, losses=ones, g=ones[0].astype(np.float32)) for i in (1, 2)
    ]
    with JournalWriter(path, header) as writer:
        for record in (*records, EvaluationRecord(2, 2.5, None, 4), StateRecord(2, "ef" * 32)):
            writer.append(record)
    return path.read_bytes()


def _shard(dtype: str) -> bytes:
    import numpy as np

    from prgec.core.formats.shards import Shard, ShardShape, narrow, pack_shard

    acts = np.linspace(-2, 2, 3 * 2 * 4, dtype=np.float32).reshape(3, 2, 1, 4)
    sent, scales = narrow(acts, dtype, "here")
    ids, dy = np.arange(48, dtype=np.uint8).reshape(3, 16), np.full((3, 1, 2), 0.5, dtype=np.float32)
    return pack_shard(
        Shard(
            shape=ShardShape(program="ef" * 32, num_blocks=2, num_labels=1, width=4, num_classes=2),
            ids=ids,
            acts=sent,
            scales=scales,
            dy=dy,
        )
    )


def _network(path: Path) -> bytes:
    import numpy as np

    from prgec.core.formats.shards import ShardShape
    from prgec.core.formats.side_network import SideNetwork, weight_shapes, write_network

    shape = ShardShape(program="ef" * 32, num_blocks=2, num_labels=1, width=4, num_classes=2)
    weights = {name: np.ones(sizes, dtype=np.float32) for name, sizes in weight_shapes(shape, 2).items()}
    write_network(path, SideNetwork(shape, "rms", weights))
    return path.read_bytes()


def _gguf(path: Path) -> bytes:
    """A model of no size whose head is all there is to damage."""
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(8)
    writer.add_embedding_length(4)
    writer.add_block_count(1)
    writer.add_feed_forward_length(4)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", "a", "b", "ab", "\u2581"])
    writer.add_token_scores([0.0, 0.0, 0.0, -3.0, -4.0, -1.0, -2.0])
    writer.add_token_types([2, 3, 3, 1, 1, 1, 1])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_tensor("token_embd.weight", np.ones((7, 4), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def build_reader(build: Path) -> Path:
    """Build the C++ readers with sanitisers in the folder `build`."""
    return build_native(build, "read_inputs", [])


def build_native(build: Path, target: str, flags: Sequence[str]) -> Path:
    """Build a program of tests/fuzz in the folder `build`, with further flags of CMake.

    The sources lie in `build` and keep their times, so that a second build has nothing to do.
    """
    from prgec.device.emit import emit_driver

    emit_driver(build / "driver")
    flags = ["-DCMAKE_CXX_FLAGS_RELEASE=-O1", f"-DPRGE_DRIVER={build / 'driver'}", *flags]
    for command in (
        ["cmake", "-S", ROOT / "tests" / "fuzz", "-B", build, "-G", "Ninja", *flags],
        ["cmake", "--build", build, "--target", target],
    ):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return build / target
