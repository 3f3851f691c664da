"""Programs say the same of their prefix where it computes the same, and only there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prgec.backends import load_backend
from prgec.compiler.compile import build_graphs, compile_model
from prgec.compiler.fingerprint import prefix_sha256
from prgec.compiler.options import CompileOptions
from prgec.compiler.pipelines import default_pipeline
from prgec.core.contract.manifest import Manifest
from prgec.core.contract.names import PREFIX_METHOD
from prgec.passes.printer import print_program
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.engines.prefix import HiddenCache
from tests.engines.test_prefix import MANIFEST
from tests.models import TinyLlama

OPTIONS = CompileOptions(
    model="m",
    output=Path("m.pte"),
    backend="portable",
    q=1,
    batch_size=2,
    seq_len=16,
    num_labels=1,
    rank=2,
    layers=("last:1",),
    prefix="method",
)


def _manifest(options: CompileOptions) -> Manifest:
    """The manifest of a program, as far as options and backend decide it."""
    backend = load_backend(options.backend, **options.settings)
    manifest = replace(
        MANIFEST, backend=backend.name, soc=backend.soc, seq_len=options.seq_len, q=options.q, prefix_sha256=""
    )
    return replace(manifest, prefix_sha256=prefix_sha256(manifest, default_pipeline(options, backend)))


def _shares(folder: Path, one: Manifest, other: Manifest) -> bool:
    row, hidden = np.arange(3, dtype=np.int64), np.ones((3, MANIFEST.hidden_size), dtype=np.float32)
    HiddenCache(folder, one, "executorch").put(row, hidden)
    return HiddenCache(folder, other, "executorch").get(row) is not None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"backend": "qnn", "dtype": "f16"}, {"backend": "qnn", "dtype": "f32"}),
        ({"backend": "qnn", "dtype": "f16"}, {"backend": "xnnpack", "dtype": "f32"}),
        ({"backend": "qnn", "dtype": "f32"}, {"backend": "xnnpack", "dtype": "f32"}),
        ({"backend": "qnn"}, {"backend": "qnn", "settings": {"soc": "SM8550"}}),
        ({"backend": "qnn", "quantize": "w8a16"}, {"backend": "qnn", "quantize": "w4a16"}),
        ({"backend": "xnnpack"}, {"backend": "portable"}),
        ({"quantize": "8da4w"}, {"quantize": "8da8w"}),
        ({"quantize": "8da4w"}, {"quantize": "8da4w", "group_size": 64}),
        ({"quantize_embedding": 8}, {}),
        ({"seq_len": 32}, {}),
    ],
)
def test_programs_whose_prefix_computes_differently(tmp_path: Path, one: dict[str, Any], other: dict[str, Any]) -> None:
    assert not _shares(tmp_path, _manifest(replace(OPTIONS, **one)), _manifest(replace(OPTIONS, **other)))


@pytest.mark.parametrize("change", [{"base_sha256": "cd" * 32}, {"versions": {"executorch": "9"}}])
def test_other_weights_and_releases(change: dict[str, Any]) -> None:
    passes = default_pipeline(OPTIONS, load_backend("portable"))
    assert prefix_sha256(replace(MANIFEST, **change), passes) != prefix_sha256(MANIFEST, passes)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyLlama(num_layers=2).write(tmp_path_factory.mktemp("fingerprint") / "checkpoint")


def test_what_is_trained_behind_it_matters_neither_to_the_graph_nor_to_its_name(checkpoint: Path) -> None:
    """The graphs are the judge: every pass that the name leaves out is in one of these pipelines alone."""
    options = replace(OPTIONS, model=str(checkpoint))
    others: list[dict[str, Any]] = [
        {"q": 3, "rank": 5, "alpha": 3.0, "a_seed": 8, "state": "dual"},
        {"rng": "decomposed", "num_labels": 2},
    ]
    one, *rest = (build_graphs(replace(options, **each)) for each in ({}, *others))
    assert one.manifest.prefix_sha256
    for each in rest:
        assert print_program(each.methods[PREFIX_METHOD]) == print_program(one.methods[PREFIX_METHOD])
        assert each.manifest.prefix_sha256 == one.manifest.prefix_sha256


@pytest.mark.parametrize("change", [{"recompute": "layers"}, {"rng": "decomposed"}, {"method": "shortcut"}])
def test_how_gradients_are_computed_matters_neither(checkpoint: Path, change: dict[str, Any]) -> None:
    """Programs that differ only after the first trained layer share what is before it."""
    options = replace(OPTIONS, model=str(checkpoint), method="exact")
    one, other = build_graphs(options), build_graphs(replace(options, **change))
    assert one.passes != other.passes
    assert print_program(other.methods[PREFIX_METHOD]) == print_program(one.methods[PREFIX_METHOD])
    assert other.manifest.prefix_sha256 == one.manifest.prefix_sha256


def test_a_program_without_a_prefix_method_says_nothing(checkpoint: Path) -> None:
    options = replace(OPTIONS, model=str(checkpoint), prefix="shared")
    assert build_graphs(options).manifest.prefix_sha256 == ""


@pytest.mark.slow
def test_compiled_for_the_htp_and_for_the_cpu(tmp_path: Path) -> None:
    """Their results differ, and neither is given those of the other."""
    model = str(TinyLlama(num_layers=2, hidden_size=64).write(tmp_path / "checkpoint"))
    tokens = np.arange(3, 19, dtype=np.int64)[None].repeat(2, 0)
    rows, found = (np.tile(tokens, (2, 1)), np.full((4, 1), 15, dtype=np.int64)), {}
    for name, options in {"f16": {"backend": "qnn", "dtype": "f16"}, "f32": {"backend": "xnnpack"}}.items():
        made = compile_model(replace(OPTIONS, model=model, output=tmp_path / f"{name}.pte", **options))
        program = open_pte(made.path)
        program.keep_prefix_in(tmp_path / "cache")
        assert program.prefix is not None
        found[name] = program.prefix.hidden(*rows)
    assert len(list((tmp_path / "cache").iterdir())) == 2
    assert not np.array_equal(found["f16"], found["f32"])
    np.testing.assert_allclose(found["f16"], found["f32"], rtol=0.05, atol=0.02)
