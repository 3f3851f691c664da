"""Rewards: numbers that say how good an answer is, computed in a process of their own."""
