"""`python -m prgec` is the same command line as `prgec`."""

import sys

from prgec.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
