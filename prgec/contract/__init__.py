"""What crosses the border between the compiler and whatever drives a program: names, manifest, state, file layout."""
