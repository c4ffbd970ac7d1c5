"""`python -m headway`, the same as `headway`."""

import sys

from headway.cli import main

sys.exit(main())
