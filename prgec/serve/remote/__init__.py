"""A server that learns side networks for devices, and the device's end of the line."""
