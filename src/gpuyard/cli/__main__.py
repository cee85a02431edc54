"""`python -m gpuyard.cli`: the command line where the console script is not at hand."""

import sys

from gpuyard.cli import main

sys.exit(main())
