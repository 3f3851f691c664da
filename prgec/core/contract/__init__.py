"""The contract between the compiler and the drivers of a program: names, manifest, state, file layout."""
