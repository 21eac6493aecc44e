"""python -m dspreg"""

import sys

from dspreg.cli import main

if __name__ == "__main__":  # workers of a pool import it
    sys.exit(main())
