"""From jsonl files to rows of token ids: tasks, reading, encoding and batching."""
