"""Files that both drivers and other tools share: adapters, journals, run folders."""
