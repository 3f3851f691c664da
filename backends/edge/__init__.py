"""The way from a rewritten graph to an ExecuTorch program by edits in place: no graph is traced again."""
