"""What servers over HTTP have in common."""
