"""Memory for the longest call, taken before the first score or step.

Rows get longer from one step to another, and XNNPACK takes the memory of the longer call before it gives that of the
shorter one back (`initialize_workspace_values` in its runtime.c): twice as much at that moment. A first call of the
longest rows finds its memory empty.

Letters: N rows, T tokens, K label positions.
"""

from __future__ import annotations

import numpy as np

from prgec.core.contract.calls import Batch
from prgec.core.contract.manifest import Manifest
from prgec.core.contract.names import IGNORE_TARGET


def needs_room(manifest: Manifest, num_tokens: int) -> bool:
    """Whether calls longer than one of so many tokens would take more memory at a time than they need."""
    # Only there does memory grow with T; and where blocks are a method of their own, its results are kept by text.
    grows = manifest.backend == "xnnpack" and manifest.dynamic_seq_len and manifest.prefix != "method"
    return grows and num_tokens < manifest.seq_len


def rows_of_nothing(manifest: Manifest) -> Batch:
    """Return rows as long as they come, whose losses nobody reads."""
    tokens_NT = np.zeros((manifest.num_rows, manifest.seq_len), dtype=np.int64)
    label_pos_NK = np.zeros((manifest.num_rows, manifest.num_labels), dtype=np.int64)
    return Batch(tokens_NT, label_pos_NK, np.full_like(label_pos_NK, IGNORE_TARGET))
