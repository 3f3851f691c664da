"""A real model and real data, out of packages of the Python package index."""
