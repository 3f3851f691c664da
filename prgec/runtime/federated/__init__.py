"""Many devices, one adapter: devices exchange q numbers a step and keep bit-identical states."""
