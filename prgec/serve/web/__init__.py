"""The parts that all HTTP servers share."""
