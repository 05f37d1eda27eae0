"""Stand-ins for what a peer imports and its estimators do not use."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any


def stub(name: str, **content: Any) -> None:
    """A module of this name, with this content."""
    module = types.ModuleType(name)
    vars(module).update(content)
    sys.modules[name] = module


def hollow(*names: str) -> None:
    """Packages whose submodules can be imported, but whose own imports are left out."""
    for name in names:
        places = [Path(folder) / name.replace(".", "/") for folder in sys.path]
        [found, *_] = [place for place in places if (place / "__init__.py").exists()]
        stub(name, __path__=[str(found)])


def scikit_learn() -> None:
    """The two functions of scikit-learn that check arguments."""

    def check_scalar(x: Any, name: str, target_type: Any, min_val: Any = None, **_: Any) -> Any:
        if not isinstance(x, target_type) or (min_val is not None and x < min_val):
            raise ValueError(name)
        return x

    stub("sklearn")
    stub("sklearn.utils", check_scalar=check_scalar, check_random_state=None)
