"""Plans: which ways to train fit on a device, their time and their commands, from a configuration alone; no torch."""
