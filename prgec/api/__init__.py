"""The Python interface: the public names of `prgec`, over the functions that the commands call too."""
