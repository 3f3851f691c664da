"""Parts of the demo generator: word lists, grammars, tokenizer and pretraining."""
