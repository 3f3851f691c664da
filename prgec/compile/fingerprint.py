"""Names what the `prefix` method computes, so that only programs with equal results keep them under one name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from prgec.contract.manifest import Manifest
from prgec.passes.branch_to_bmm import BranchToBmm
from prgec.passes.decompose_noise import DecomposeNoise
from prgec.passes.differentiate import Differentiate
from prgec.passes.dualize import Dualize
from prgec.passes.fuse_update import FuseUpdate
from prgec.passes.hoist_updates import HoistUpdates
from prgec.passes.infra import Pass
from prgec.passes.inject_lora_fa import InjectLoraFa
from prgec.passes.insert_optimizer import InsertOptimizer
from prgec.passes.insert_self_update import InsertSelfUpdate
from prgec.passes.label_gather_to_bmm import LabelGatherToBmm
from prgec.passes.select_label_tokens import SelectLabelTokens
from prgec.passes.share_prefix import SharePrefix
from prgec.passes.spec import print_pass

# These change nothing in front of the first trained layer; any other pass counts, known or not.
_BEHIND_THE_PREFIX = (
    SelectLabelTokens,
    InjectLoraFa,
    SharePrefix,
    Dualize,
    InsertSelfUpdate,
    HoistUpdates,
    FuseUpdate,
    DecomposeNoise,
    LabelGatherToBmm,
    BranchToBmm,
    Differentiate,
    InsertOptimizer,
)


def prefix_sha256(manifest: Manifest, passes: Sequence[Pass]) -> str:
    """Hash of everything a result of the prefix depends on besides the tokens.

    Args:
        manifest: Of a program with a `prefix` method, complete but for this hash.
        passes: What made its graphs.
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
        [print_pass(each) for each in passes if not isinstance(each, _BEHIND_THE_PREFIX)],
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
