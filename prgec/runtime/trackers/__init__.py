"""Feeds a run's curves to experiment trackers."""
