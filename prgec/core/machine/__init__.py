"""This computer: its memory, its files, and what libraries print on it."""
