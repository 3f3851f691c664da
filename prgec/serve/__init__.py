"""Everything that listens or connects: the page, and side-tuning with its server."""
