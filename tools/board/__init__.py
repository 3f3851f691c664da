"""The scoreboard: what methods of studies end at, and a picture of it."""
