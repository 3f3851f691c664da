"""Loads the Hugging Face model and exports its loss as a graph."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from prgec.compiler.frontend.checkpoint import Checkpoint
from prgec.compiler.frontend.classifier import MODEL_TYPES, ClassifierLoss, Head, is_classifier
from prgec.compiler.frontend.gguf_weights import read_weights
from prgec.compiler.frontend.merge import merged
from prgec.compiler.frontend.quantized import is_torchao, quantization_of, read_quantized, widen
from prgec.compiler.frontend.scans import exportable
from prgec.core.contract.names import IGNORE_TARGET
from prgec.core.formats.gguf_file import read_gguf
from prgec.errors import CheckpointError, PrgecError
from prgec.passes.program import GraphProgram, is_mutation, traced_seq_len
from prgec.passes.read_at_label import read_at_label

_WRAPPED = "hf"


class LossModel(nn.Module):
    """Loss of every row at its label positions, on an unmodified Hugging Face causal LM.

    Args:
        model: Causal LM whose forward returns `.logits` f32[N, T, V].
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.hf = model

    def forward(self, tokens: Tensor, label_pos: Tensor, targets: Tensor) -> Tensor:
        """Return the mean negative log-likelihood over each row's own targets.

        Args:
            tokens: i64[N, T], right-padded. Causal attention never looks right of a label position, so padding
                needs no mask.
            label_pos: i64[N, K], the position whose logits predict target k.
            targets: i64[N, K], token id, or -100 to ignore.

        Returns:
            f32[N].
        """
        logits_NTV = self.hf(input_ids=tokens, use_cache=False).logits
        return label_loss(_at(label_pos, logits_NTV).to(torch.float32), targets)

    def score(self, tokens: Tensor, label_pos: Tensor, targets: Tensor) -> Tensor:
        """Return what `forward` does, from `logits_at`; not for `torch.export`."""
        label_pos, targets = used_labels(label_pos, targets)
        return label_loss(self.logits_at(tokens, label_pos), targets)

    def logits_at(self, tokens: Tensor, label_pos: Tensor) -> Tensor:
        """Return the logits at labels, and make no others: f32[N, K, V].

        The logits of a vocabulary of 262,144 tokens at every position are most of what a small model computes, and of
        what it holds for a backward pass.

        Args:
            tokens: i64[N, T].
            label_pos: i64[N, K].
        """
        head: nn.Module = self.hf.get_output_embeddings()  # type: ignore[operator]  # every PreTrainedModel has it
        chosen = head.register_forward_pre_hook(lambda _, inputs: (_at(label_pos, inputs[0]),))
        try:
            logits_NKV: Tensor = self.hf(input_ids=tokens, use_cache=False).logits
        finally:
            chosen.remove()
        return logits_NKV.to(torch.float32)


def used_labels(label_pos: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Leave out the slots that no row has a target in: both i64[N, K] with the K that is used."""
    used = (targets != IGNORE_TARGET).any(0)
    return label_pos[:, used], targets[:, used]


def _at(label_pos: Tensor, values_NTX: Tensor) -> Tensor:
    """Return every row's values at its own label positions: [N, K, X]."""
    return torch.gather(values_NTX, 1, label_pos.unsqueeze(-1).expand(-1, -1, values_NTX.shape[-1]))


def loss_of(model: nn.Module, head: Head | None) -> LossModel | ClassifierLoss:
    """Return the loss of every row of a model, in evaluation mode; `head` is None for a causal language model."""
    loss = LossModel(model) if head is None else ClassifierLoss(model, head)
    return loss.eval()


def label_loss(logits_NKV: Tensor, targets: Tensor) -> Tensor:
    """Mean negative log-likelihood of the targets that count, f32[N]."""
    log_probs = torch.log_softmax(logits_NKV, -1)
    counts = targets != IGNORE_TARGET
    safe = torch.where(counts, targets, 0)
    nll_NK = -torch.gather(log_probs, 2, safe.unsqueeze(-1)).squeeze(-1)
    nll_NK = torch.where(counts, nll_NK, 0.0)
    return nll_NK.sum(1) / counts.sum(1).clamp(min=1).to(torch.float32)


def load_model(checkpoint: Checkpoint) -> nn.Module:
    """Load the weights as f32 on the CPU; code from checkpoints is never run.

    Raises:
        CheckpointError: If transformers does not know the architecture, the model is neither a causal LM nor a
            classifier, or the weights do not fit it.
    """
    if not is_classifier(checkpoint):
        _check_causal(checkpoint)
    try:
        loaded = _from_pretrained(checkpoint, "sdpa")
        if loaded is None:
            loaded = _from_pretrained(checkpoint, "eager")
        assert loaded is not None, "every model has eager attention"
    except PrgecError:
        raise
    except Exception as error:  # transformers raises KeyError, ValueError, OSError, RuntimeError and safetensors' own
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(
            f"transformers cannot load the checkpoint: {reason[:200]}", where=checkpoint.path
        ) from error
    model, info = loaded
    _check_all_loaded(info, checkpoint)
    if is_torchao(checkpoint):
        widen(model)
    if checkpoint.adapter is not None:
        model = merged(model, checkpoint.adapter)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model.eval()


def _check_causal(checkpoint: Checkpoint) -> None:
    """Refuse other encoders: transformers would load one with an LM head it never had."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    known, known_types = set[str](), set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    for names in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        known.update((names,) if isinstance(names, str) else names)
    named = [str(name) for name in checkpoint.config.get("architectures") or ()]
    # A model of text and pictures is loaded as the model of text that it contains, or trained on text alone.
    has_text = "text_config" in checkpoint.config and checkpoint.config.get("model_type") in known_types
    if named and known.isdisjoint(named) and not has_text:
        raise CheckpointError(
            f"{named[0]} is not a causal language model",
            where=checkpoint.path,
            hint="choose a model whose config.json names a ...ForCausalLM, or a ...ForSequenceClassification of "
            + ", ".join(MODEL_TYPES),
        )


def _from_pretrained(checkpoint: Checkpoint, attention: str) -> tuple[nn.Module, dict[str, Any]] | None:
    """Load with one implementation of attention; None where the model lacks it (Gemma 2 caps its scores)."""
    kind, path, given = _source_of(checkpoint)
    try:
        loaded: tuple[nn.Module, dict[str, Any]] = kind.from_pretrained(
            path,
            **given,
            dtype=torch.float32,
            attn_implementation=attention,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    except ValueError as error:
        if "does not support an attention implementation" not in str(error):
            raise
        return None
    return loaded


def _source_of(checkpoint: Checkpoint) -> tuple[Any, Path | None, dict[str, Any]]:
    """Return the class that loads a model, and its folder; or what takes its place: configuration and weights."""
    import transformers

    if checkpoint.is_gguf:
        config = transformers.AutoConfig.for_model(**checkpoint.config)
        weights = read_weights(read_gguf(checkpoint.path), checkpoint.config)
        return getattr(transformers, checkpoint.architecture), None, {"config": config, "state_dict": weights}
    auto: Any = (
        transformers.AutoModelForSequenceClassification
        if is_classifier(checkpoint)
        else transformers.AutoModelForCausalLM
    )
    if quantization_of(checkpoint) is None or is_torchao(checkpoint):
        return auto, checkpoint.path, {}
    config = transformers.AutoConfig.from_pretrained(checkpoint.path, local_files_only=True)
    del config.quantization_config
    return auto._model_mapping[type(config)], None, {"config": config, "state_dict": read_quantized(checkpoint)}


def export_loss(
    model: nn.Module, *, num_rows: int, seq_len: int, num_labels: int, dynamic: bool, head: Head | None = None
) -> GraphProgram:
    """Export the loss of N rows.

    Args:
        model: Model from `load_model`.
        num_rows: N.
        seq_len: T, the maximum where `dynamic`.
        num_labels: K.
        dynamic: Whether T may vary between 2 and `seq_len`.
        head: Head of a classifier; None for a causal language model.

    Returns:
        Graph with inputs tokens, label_pos, targets; attributes carry the names of the Hugging Face model.

    Raises:
        CheckpointError: If the architecture cannot be traced.
    """
    traced = traced_seq_len(seq_len) if dynamic else seq_len
    example = (torch.zeros(num_rows, traced, dtype=torch.int64), *_label_examples(num_rows, num_labels))
    shapes = {"tokens": {1: Dim("T", min=2, max=seq_len)} if dynamic else None, "label_pos": None, "targets": None}
    loss = loss_of(model, head)
    try:
        # Without no_grad the rotary embedding is traced into a nested graph that switches gradients off.
        with torch.no_grad(), exportable(model, seq_len):
            exported = torch.export.export(loss, example, dynamic_shapes=shapes, strict=False)
    except Exception as error:  # torch.export's failures have no common base class
        if dynamic and "Constraints violated" in str(error):
            raise CheckpointError(
                f"the code of {type(model).__name__} computes otherwise for other numbers of tokens",
                hint="compile it for one number of tokens (--static); shorter rows are padded",
            ) from error
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise CheckpointError(f"torch.export cannot trace {type(model).__name__}: {reason}") from error
    program = with_checkpoint_names(exported)
    if head is not None:
        read_at_label(program)
    return program


def weights_sha256(model: nn.Module) -> str:
    """Hash over names, shapes and bytes of all weights, in order of name; independent of sharding."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {list(tensor.shape)}\n".encode())
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _check_all_loaded(info: dict[str, Any], checkpoint: Checkpoint) -> None:
    """Refuse weights that do not fit the configuration: transformers fills the gaps with random numbers."""
    missing, mismatched = sorted(info["missing_keys"]), sorted(info["mismatched_keys"])
    if missing:
        raise CheckpointError(
            f"the checkpoint lacks {len(missing)} of the model's weights, first {missing[0]}",
            where=checkpoint.path,
            hint="config.json may belong to another model",
        )
    if mismatched:
        name, found, expected = mismatched[0]
        raise CheckpointError(f"{name} is {list(found)}; config.json expects {list(expected)}", where=checkpoint.path)


def _label_examples(num_rows: int, num_labels: int) -> tuple[Tensor, Tensor]:
    zeros = torch.zeros(num_rows, num_labels, dtype=torch.int64)
    return zeros, zeros.clone()


def with_checkpoint_names(exported: ExportedProgram) -> GraphProgram:
    """Drop the wrapper's prefix, so that sites are called what the user's checkpoint calls them.

    Passes read graphs in which each value has one maker; a model that changes values in place is written anew.
    """
    if any(is_mutation(node) for node in exported.graph.nodes):
        # An empty table decomposes nothing; what is left are functional ops.
        exported = exported.run_decompositions({})
    program = GraphProgram.from_exported(exported)
    wrapped = program.module.get_submodule(_WRAPPED)
    for name, child in wrapped.named_children():
        program.module.add_module(name, child)
    for name, tensor in [*wrapped._parameters.items(), *wrapped._buffers.items()]:
        program.module.register_buffer(name, tensor.data if tensor is not None else None)
    delattr(program.module, _WRAPPED)
    for node in program.graph.find_nodes(op="get_attr"):
        node.target = str(node.target).removeprefix(f"{_WRAPPED}.")
    program.finish()
    return program
