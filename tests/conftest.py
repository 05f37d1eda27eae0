"""The tests' own modules (reference, build) are importable from every folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
