"""Parts of the demo generator: word lists, grammars, tokenizer, pretraining and the eager P-RGE study."""
