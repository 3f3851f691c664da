"""A tokenizer of one token a byte with any chat template: what is learned can be read off the text."""

from __future__ import annotations

import re
from collections.abc import Sequence

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from prgec.core.contract.tokenizer import Tokenizer

# Texts that templates of several families put around turns.
_SPECIAL = re.compile(r"<\|[a-z_]+\|>|<(?:start|end)_of_turn>|\[/?[A-Z_]+\]|</?s>|<bos>|<eos>")


def byte_tokenizer(template: str | None, *, bos: str = "<s>", eos: str = "</s>", more: Sequence[str] = ()) -> Tokenizer:
    """Return a tokenizer whose only longer tokens are BOS, EOS and those that the template writes."""
    specials = list(dict.fromkeys([bos, eos, *more, *_SPECIAL.findall(template or "")]))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*specials, *alphabet])}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(specials)
    return Tokenizer(
        backend=backend,
        bos_id=vocabulary[bos],
        eos_id=vocabulary[eos],
        pad_id=vocabulary[eos],
        add_bos=False,
        chat_template=template,
        special_tokens={"bos_token": bos, "eos_token": eos},
    )
