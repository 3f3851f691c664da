"""Pages and pictures of runs."""
