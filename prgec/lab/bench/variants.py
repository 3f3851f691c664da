"""The table of variants: ways of computing one training step, and inference to compare them with.

Letters: q queries, B examples a step, T tokens. A step of measured losses evaluates 2qB rows; variants differ in how
many of them one call of the program takes, and in what the graph around them looks like. Variants that compute
gradients take B rows in one call, and so does the inference beside them. Imports nothing heavy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from prgec.backends import BACKENDS
from prgec.core.contract.names import CHEAP, LAYERS
from prgec.errors import UsageError


class Branch(Enum):
    """Where the LoRA-FA branch gets its copies of B from."""

    UPDATED = "the program updates and perturbs its own B"
    FED = "the copies are inputs, made beforehand"
    HOSTED = "the driver keeps B, makes the copies or takes the step, and passes it in"
    NONE = "there is no branch"
    DIFFERENTIATED = "the program, or PyTorch, computes its gradient"


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way of computing a step.

    Attributes:
        name: Spelling on the command line and in results.
        summary: The variant in one line.
        all_queries: Whether one call takes the rows of all q queries, or of one.
        both_signs: Whether one call takes both signs of the perturbation, or one.
        branch: Where the copies of B come from.
        state: State mode of a program that updates itself.
        left_out: Passes of the default pipeline that it does without.
        is_stock: Lowered as the backend's own partitioner does it, without legality passes, with fixed shapes.
        is_eager: PyTorch on the Hugging Face model instead of a compiled program.
        method: How a compiled program trains.
        recompute: Values that its backward computes again.
        is_batch: Whether a step is one call of B rows, as gradients are computed, and not 2qB rows.
        backend: Runtime of its program; empty for that of the benchmark.
        is_full: Whether it trains every weight, and not LoRA-FA beside linear layers.
    """

    name: str
    summary: str
    all_queries: bool
    both_signs: bool
    branch: Branch
    state: str = "seeded"
    left_out: frozenset[str] = frozenset()
    is_stock: bool = False
    is_eager: bool = False
    method: str = "prge"
    recompute: str = CHEAP
    is_batch: bool = False
    backend: str = ""
    is_full: bool = False

    def copies(self, q: int) -> int:
        """Copies of B that one call needs; a step is 2q of them."""
        if self.is_batch:
            return 1
        return (q if self.all_queries else 1) * (2 if self.both_signs else 1)

    def rows(self, q: int, batch_size: int) -> int:
        """Rows of one call."""
        return self.copies(q) * batch_size

    def calls(self, q: int) -> int:
        """Calls of one step."""
        return 1 if self.is_batch else 2 * q // self.copies(q)


_TRAINING = frozenset({"share-prefix", "dualize", "insert-self-update", "hoist-updates", "fuse-update"})
# Passes that the paper's graph does without, apart from legality.
_OURS = frozenset({"share-prefix", "hoist-updates", "fuse-update"})

_ROWS = (
    Variant(
        name="prgec",
        summary="the default training program: inner and outer loop in one call, B updated inside",
        all_queries=True,
        both_signs=True,
        branch=Branch.UPDATED,
    ),
    Variant(
        name="paper",
        summary="the paper's per-layer dual forwarding, lowered as it comes",
        all_queries=True,
        both_signs=True,
        branch=Branch.UPDATED,
        state="dual",
        left_out=_OURS | {"fold-constants", "select-label-tokens"},
        is_stock=True,
    ),
    Variant(
        name="paper-at-labels",
        summary="the same, with folded constants and logits at label positions only",
        all_queries=True,
        both_signs=True,
        branch=Branch.UPDATED,
        state="dual",
        left_out=_OURS,
        is_stock=True,
    ),
    Variant(
        name="inner",
        summary="both signs in one call, queries one after the other",
        all_queries=False,
        both_signs=True,
        branch=Branch.FED,
        left_out=_TRAINING,
    ),
    Variant(
        name="outer",
        summary="all queries in one call, signs one after the other",
        all_queries=True,
        both_signs=False,
        branch=Branch.FED,
        left_out=_TRAINING,
    ),
    Variant(
        name="sequential",
        summary="MeZO: 2q calls, one copy of B each",
        all_queries=False,
        both_signs=False,
        branch=Branch.FED,
        left_out=_TRAINING,
    ),
    Variant(
        name="inference",
        summary="the same rows without branch or update",
        all_queries=True,
        both_signs=True,
        branch=Branch.NONE,
        left_out=_TRAINING | {"inject-lora-fa"},
    ),
    Variant(
        name="eager",
        summary="PyTorch, f32: sequential MeZO on the Hugging Face model",
        all_queries=False,
        both_signs=False,
        branch=Branch.UPDATED,
        is_eager=True,
    ),
)
_HOSTED = Variant(
    name="prgec-host",
    summary="the training program of --state host: B updated and perturbed by the driver",
    all_queries=True,
    both_signs=True,
    branch=Branch.HOSTED,
    state="host",
)
_BATCH = (
    Variant(
        name="exact",
        summary="the program's own exact gradient of B rows, and a step by norm",
        all_queries=False,
        both_signs=False,
        branch=Branch.DIFFERENTIATED,
        method="exact",
        is_batch=True,
    ),
    Variant(
        name="exact-kept",
        summary="the same gradient with all that its backward reads kept from the forward",
        all_queries=False,
        both_signs=False,
        branch=Branch.DIFFERENTIATED,
        left_out=frozenset({"rematerialize"}),
        method="exact",
        is_batch=True,
    ),
    Variant(
        name="exact-layers",
        summary="the same gradient with layers computed again from the residual stream (--recompute layers)",
        all_queries=False,
        both_signs=False,
        branch=Branch.DIFFERENTIATED,
        recompute=LAYERS,
        method="exact",
        is_batch=True,
    ),
    Variant(
        name="exact-host",
        summary="the same gradient from a program of --state host, and the driver's step",
        all_queries=False,
        both_signs=False,
        branch=Branch.HOSTED,
        state="host",
        method="exact",
        is_batch=True,
    ),
    Variant(
        name="shortcut",
        summary="exact in the last block, its gradient handed down the residual stream below",
        all_queries=False,
        both_signs=False,
        branch=Branch.DIFFERENTIATED,
        method="shortcut",
        is_batch=True,
    ),
    Variant(
        name="inference-batch",
        summary="B rows without branch or update",
        all_queries=False,
        both_signs=False,
        branch=Branch.NONE,
        left_out=_TRAINING | {"inject-lora-fa"},
        is_batch=True,
    ),
    Variant(
        name="first-order",
        summary="PyTorch, f32: forward and backward of B rows, Adam over LoRA-FA on the Hugging Face model",
        all_queries=False,
        both_signs=False,
        branch=Branch.DIFFERENTIATED,
        is_eager=True,
        is_batch=True,
    ),
)
_FULL = (
    Variant(
        name="fo",
        summary="PyTorch, f32: forward and backward of B rows, SGD over all weights of the Hugging Face model",
        all_queries=False,
        both_signs=False,
        branch=Branch.NONE,
        is_eager=True,
        is_batch=True,
        is_full=True,
    ),
    Variant(
        name="mezo-full",
        summary="PyTorch, f32: sequential MeZO over all weights of the Hugging Face model, "
        "noise drawn again from seeds",
        all_queries=False,
        both_signs=False,
        branch=Branch.NONE,
        is_eager=True,
        is_full=True,
    ),
)
# Between a variant and the backend it runs on.
_ON = "@"
VARIANTS: dict[str, Variant] = {variant.name: variant for variant in (*_ROWS, _HOSTED, *_BATCH, *_FULL)}


def find_variant(name: str) -> Variant:
    """Return the variant called `name`: a row of the table, or one on another backend, such as `exact@openvino`.

    Raises:
        UsageError: If there is none.
    """
    row, _, backend = name.partition(_ON)
    if row not in VARIANTS:
        raise UsageError(f"there is no variant called {row!r}", hint=f"variants: {', '.join(VARIANTS)}")
    found = VARIANTS[row]
    if row == name:
        return found
    if backend not in BACKENDS or found.is_eager:
        raise UsageError(f"there is no variant called {name!r}", hint=f"programs run on: {', '.join(BACKENDS)}")
    return replace(found, name=name, summary=f"{found.summary}, on {backend}", backend=backend)
