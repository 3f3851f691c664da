"""Flower as the transport of a run of many devices: the two ends of an app, its files, and its processes."""
