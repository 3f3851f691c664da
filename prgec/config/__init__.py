"""What a user may ask for, said once: fields of options classes become flags, keys of TOML files and help."""
