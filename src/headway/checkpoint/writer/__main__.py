"""python -m headway.checkpoint.writer NAME LINGER_SECONDS"""

from __future__ import annotations

import sys

from headway.checkpoint.writer.process import main

main(sys.argv[1], float(sys.argv[2]))
