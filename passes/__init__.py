"""Graph passes: one explicit table in the order passes run, resolved lazily.

Modes leave entries out; they never reorder.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prgec.passes.infra import Pass

PASSES: dict[str, str] = {
    "decompose-composites": "prgec.passes.decompose_composites:DecomposeComposites",
    "canonicalize": "prgec.passes.canonicalize:Canonicalize",
    "fold-constants": "prgec.passes.fold_constants:FoldConstants",
    "select-to-slice": "prgec.passes.select_to_slice:SelectToSlice",
    "cut-before-transpose": "prgec.passes.cut_before_transpose:CutBeforeTranspose",
    "addmm-to-linear": "prgec.passes.addmm_to_linear:AddmmToLinear",
    "select-label-tokens": "prgec.passes.select_label_tokens:SelectLabelTokens",
    "emit-activations": "prgec.passes.emit_activations:EmitActivations",
    "inject-lora-fa": "prgec.passes.inject_lora_fa:InjectLoraFa",
    "share-prefix": "prgec.passes.share_prefix:SharePrefix",
    "dualize": "prgec.passes.dualize:Dualize",
    "insert-self-update": "prgec.passes.insert_self_update:InsertSelfUpdate",
    "hoist-updates": "prgec.passes.hoist_updates:HoistUpdates",
    "fuse-update": "prgec.passes.fuse_update:FuseUpdate",
    "decompose-noise": "prgec.passes.decompose_noise:DecomposeNoise",
    "lower-sdpa": "prgec.passes.lower_sdpa:LowerSdpa",
    "lower-eager-attention": "prgec.passes.lower_eager_attention:LowerEagerAttention",
    "layer-norm-to-means": "prgec.passes.layer_norm_to_means:LayerNormToMeans",
    "mean-to-linear": "prgec.passes.mean_to_linear:MeanToLinear",
    "rotate-pairs-to-linear": "prgec.passes.rotate_pairs_to_linear:RotatePairsToLinear",
    "rotate-half-to-linear": "prgec.passes.rotate_half_to_linear:RotateHalfToLinear",
    "split-fused-linear": "prgec.passes.split_fused_linear:SplitFusedLinear",
    "slice-to-linear": "prgec.passes.slice_to_linear:SliceToLinear",
    "pow-to-mul": "prgec.passes.pow_to_mul:PowToMul",
    "cast-to-dequantize": "prgec.passes.cast_to_dequantize:CastToDequantize",
    "lower-softplus": "prgec.passes.lower_softplus:LowerSoftplus",
    "lower-gelu-tanh": "prgec.passes.lower_gelu_tanh:LowerGeluTanh",
    "label-gather-to-bmm": "prgec.passes.label_gather_to_bmm:LabelGatherToBmm",
    "branch-to-bmm": "prgec.passes.branch_to_bmm:BranchToBmm",
    "differentiate": "prgec.passes.differentiate:Differentiate",
    "rematerialize": "prgec.passes.rematerialize:Rematerialize",
    "insert-optimizer": "prgec.passes.insert_optimizer:InsertOptimizer",
    "decompose-optimizer": "prgec.passes.decompose_optimizer:DecomposeOptimizer",
    "return-state": "prgec.passes.return_state:ReturnState",
    "transpose-to-copy": "prgec.passes.transpose_to_copy:TransposeToCopy",
    "reshape-to-view": "prgec.passes.reshape_to_view:ReshapeToView",
    "quantize-base": "prgec.passes.quantize_base:QuantizeBase",
    "quantize-embedding": "prgec.passes.quantize_embedding:QuantizeEmbedding",
    "narrow-weights": "prgec.passes.narrow_weights:NarrowWeights",
}


def load_pass(name: str) -> type[Pass]:
    """Import the class of one pass."""
    module, _, attribute = PASSES[name].partition(":")
    loaded: type[Pass] = getattr(importlib.import_module(module), attribute)
    return loaded


def pass_table() -> dict[str, type[Pass]]:
    """All pass classes by name, in the order of the table."""
    return {name: load_pass(name) for name in PASSES}
