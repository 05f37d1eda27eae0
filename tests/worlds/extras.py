"""Tests that need the packages of the extra `worlds`: never skipped in CI, which installs them."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest


def needs(package: str) -> pytest.MarkDecorator:
    absent = find_spec(package) is None and not os.environ.get("CI")
    return pytest.mark.skipif(absent, reason=f"needs {package}, of the extra worlds")
