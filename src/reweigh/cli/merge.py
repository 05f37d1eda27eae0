"""reweigh merge: add the sums of several logs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def merge(
    paths: Annotated[list[Path], typer.Argument(metavar="MOMENTS…", help="Files of moments.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Parquet file to write.")],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file if it exists.")
    ] = False,
) -> None:
    """Add the moments of several logs; what does not belong together is refused.

    Example: reweigh merge a.moments.parquet b.moments.parquet -o all.moments.parquet
    """
    import reweigh as rw
    from reweigh.cli.show import say

    if len(paths) < 2:
        raise rw.UsageError("merge takes two files of moments or more")
    total = rw.load_moments(paths[0])
    for path in paths[1:]:
        try:
            total = total + rw.load_moments(path)
        except rw.InputError as error:
            raise rw.InputError(f"{path} does not add to {paths[0]}: {error}") from error
    total.save(output, overwrite=overwrite)
    say(f"{output}: {total}")
