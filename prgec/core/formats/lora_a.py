"""The frozen A matrices of a program: drawn from its seed, or given at compile time and carried in the program.

Letters: r rank, D width of a layer's input.
"""

from __future__ import annotations

from collections.abc import Mapping

from prgec.core.contract.arrays import FloatArray
from prgec.core.contract.engine import state_sha256
from prgec.core.contract.manifest import Manifest
from prgec.core.contract.names import FROZEN_SUFFIX
from prgec.errors import ProgramError

Matrices = dict[str, FloatArray]


def seeded_a(manifest: Manifest) -> Matrices:
    """Return the A of every site, drawn from the manifest's seed: f32[r, D] by `<site>.lora_A`."""
    # Imported here: reading a manifest does not need the kernels.
    from prgec.runtime_ops import host

    return {
        site.name + FROZEN_SUFFIX: host.frozen_a(manifest.a_seed, site.index, manifest.rank, site.in_features)
        for site in manifest.sites
    }


def frozen_a(manifest: Manifest, given: Mapping[str, FloatArray]) -> Matrices:
    """Return the A of every site: f32[r, D] by `<site>.lora_A`.

    Args:
        manifest: Manifest of the program.
        given: Matrices from an adapter or a program; read only where A does not follow from the seed.

    Raises:
        ProgramError: If the matrices are needed and are not the program's.
    """
    if not manifest.a_sha256:
        return seeded_a(manifest)
    names = [site.name + FROZEN_SUFFIX for site in manifest.sites]
    if not set(names) <= set(given) or a_sha256({name: given[name] for name in names}) != manifest.a_sha256:
        raise ProgramError(
            "the A matrices at hand are not those the program was compiled with",
            hint="export from the run folder, whose adapter holds them",
        )
    return {name: given[name] for name in names}


def a_sha256(matrices: Mapping[str, FloatArray]) -> str:
    """Return one hash over names, shapes and little-endian bytes, in order of name."""
    return state_sha256(dict(sorted(matrices.items())))
