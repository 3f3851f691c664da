"""The engines that run a program: the ExecuTorch runtime for a .pte, PyTorch for the graphs it was lowered from."""
