"""The options of users, defined once: fields of options classes become flags, keys of TOML files and help."""
