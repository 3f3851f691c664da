"""A page on this machine alone: runs as they go, new runs, programs, and what they answer."""
