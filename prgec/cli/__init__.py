"""The command line: parse flags, build a frozen options object, call the library, render its result."""
