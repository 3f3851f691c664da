"""Measures compiled programs against the ways of computing the same step that they replace."""
