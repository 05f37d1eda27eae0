"""Several estimates of one log, as they come out of `evaluate_all`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from reweigh.errors import UsageError, nearest
from reweigh.evaluation.result import Estimate, Refusal
from reweigh.show import text
from reweigh.show.first_screen import COLUMNS, WIDTH, Estimated
from reweigh.show.record import Evaluation, ranked

if TYPE_CHECKING:
    from reweigh.system.frames import FrameKind

Result = Estimate | Refusal


@dataclass(frozen=True, eq=False, repr=False)
class Evaluations(Estimated, Sequence[Result]):
    """Estimates and refusals in the requested order. It is read like a list, also by the name of
    an estimator (`results["mis"]`), equals a list of the same results, and prints as the
    answer above a table."""

    results: tuple[Result, ...]

    @overload
    def __getitem__(self, which: int | str) -> Result: ...

    @overload
    def __getitem__(self, which: slice) -> Evaluations: ...

    def __getitem__(self, which: int | str | slice) -> Result | Evaluations:
        if isinstance(which, slice):
            return Evaluations(self.results[which])
        if isinstance(which, str):
            named = {result.estimator: result for result in reversed(self.results)}
            if which not in named:
                raise UsageError(
                    f"there is no result of {which!r}{nearest(which, named)} "
                    f"(estimators: {', '.join(r.estimator for r in self.results)})"
                )
            return named[which]
        return self.results[which]

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Evaluations | list | tuple):
            return list(self) == list(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.results)

    @property
    def answer(self) -> Estimate | None:
        """The one whose number is the answer: what "auto" chose, else mis, else the first that
        answered. It is never chosen by its value; None where every estimator refused."""
        return main_of(self.results)

    def records(self) -> tuple[Evaluation, ...]:
        """What a card shows: the answer, then the others by their verdicts."""
        records, answer = [result.record() for result in self.results], self.answer
        at = next((k for k, result in enumerate(self.results) if result is answer), None)
        return ranked(records, at)

    def tried(self) -> tuple[Evaluation, ...]:
        """What was evaluated only to know whether an advice leads anywhere."""
        return () if self.answer is None else self.answer.tried(self.results)

    def to_dict(self) -> list[dict[str, Any]]:
        """Plain values, as `reweigh evaluate --json` prints the estimates."""
        return [result.to_dict() for result in self.results]

    def to_frame(self, kind: FrameKind | None = None) -> Any:
        """A row per estimator. `kind` is "pandas", "polars" or "arrow"; without it pandas, or Arrow
        where pandas is not installed."""
        from reweigh.system.frames import rows_frame

        return rows_frame([result.record().row() for result in self.results], kind)

    def report(self, path: Any, *, title: str | None = None, overwrite: bool = False) -> Any:
        """Write the report of all of them, see `Estimate.report`."""
        from reweigh.evaluation.report import write_report

        return write_report(self.results, path, title=title, overwrite=overwrite)

    def __str__(self) -> str:
        if not self.results:
            return "no results"
        records = [result.record() for result in self.results]
        lines = text.columns_of([COLUMNS, *text.estimate_rows(records)])
        refused = [f"{e.label} refused: {e.refused.reason}" for e in records if e.refused]
        whole = text.whole_log(records)
        said = [*text.wrapped(self.sentence(), WIDTH), ""]
        below = [*([] if whole is None else [text.log_line(whole)]), *refused]
        return "\n".join([*said, *lines, *below])

    __repr__ = __str__


def main_of(results: Sequence[Estimate | Refusal]) -> Estimate | None:
    """The one whose number is the answer: what "auto" chose, else the paper's MIS, else the
    first that answered. It is never chosen by its value."""
    from reweigh.estimate.presets import mis

    answered = [result for result in results if isinstance(result, Estimate)]
    chosen = [result for result in answered if result.chosen is not None]
    default = [result for result in answered if result.estimator == mis().name]
    return next(iter([*chosen, *default, *answered]), None)
