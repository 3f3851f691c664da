"""The C++ driver and what emits it."""
