"""Side-tuning: a device emits what a frozen model says, a server learns a network from it, the device adds it."""
