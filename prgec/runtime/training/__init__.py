"""The mathematics of training over the contract: steps, estimators, limits, schedules and scores."""
