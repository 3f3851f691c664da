"""Measurements and studies, and the engine that runs graphs in PyTorch: nothing that a device needs."""
