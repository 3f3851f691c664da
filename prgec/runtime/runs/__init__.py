"""A run as a whole: open, train, write, go on."""
