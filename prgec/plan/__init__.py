"""What fits on a device, how long it takes and which command to type, from a model's configuration alone; no torch."""
