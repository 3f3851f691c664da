"""Tasks and base models for `prgec study`, made on the spot: nothing is downloaded, nothing large is committed."""
