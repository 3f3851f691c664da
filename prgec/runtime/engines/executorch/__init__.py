"""Runs a .pte in the ExecuTorch Python runtime."""
