"""reweigh merge: add the sums of several logs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def merge(
    paths: Annotated[list[Path], typer.Argument(metavar="MOMENTS…", help="Files of moments.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Parquet file to write.")],
    overwrite: Annotated[bool, typer.Option(help="Replace the file if it exists.")] = False,
) -> None:
    """Add the moments of several logs (days, shards, sites); what does not belong together is
    refused.

    Example: reweigh merge a.moments.parquet b.moments.parquet -o all.moments.parquet
    """
    from functools import reduce
    from operator import add

    import reweigh as rw

    if len(paths) < 2:
        raise rw.UsageError("merge takes two files of moments or more")
    total = reduce(add, [rw.load_moments(path) for path in paths])
    total.save(output, overwrite=overwrite)
    print(f"{output}: {total}")
