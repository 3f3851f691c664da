"""The host side: drives a compiled program, evaluates it, and writes what a run leaves behind."""
