"""What feeds a run's curves to the trackers people have."""
