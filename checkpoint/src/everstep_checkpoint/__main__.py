"""`python3 -m everstep_checkpoint`, where the command is not on the PATH."""

import sys

from .cli import main

sys.exit(main())
