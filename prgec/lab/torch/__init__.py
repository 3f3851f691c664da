"""Runs the graphs a .pte was lowered from in PyTorch."""
