"""python -m dspreg.cli"""

import sys

from dspreg.cli import main

sys.exit(main())
