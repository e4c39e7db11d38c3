"""``python -m mesascope``."""

import sys

from mesascope.cli import main

sys.exit(main())
