"""From a Hugging Face checkpoint to an exported graph of losses."""
