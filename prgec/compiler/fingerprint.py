"""Names what the `prefix` method computes, so that only programs with equal results keep them under one name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from prgec.core.contract.manifest import Manifest
from prgec.passes.infra import Pass
from prgec.passes.spec import print_pass


def prefix_sha256(manifest: Manifest, passes: Sequence[Pass]) -> str:
    """Hash of everything a result of the prefix depends on besides the tokens.

    Args:
        manifest: Manifest of a program with a `prefix` method, complete but for this hash.
        passes: Passes that made its graphs.
    """
    parts = [
        manifest.base_sha256,
        manifest.backend,
        manifest.soc,
        # Another release may trace, rewrite or lower the same model to other arithmetic.
        sorted(manifest.versions.items()),
        # Some models choose their RoPE by the largest T.
        manifest.seq_len,
        manifest.sites[0].name,
        [print_pass(each) for each in passes if each.touches_prefix],
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
