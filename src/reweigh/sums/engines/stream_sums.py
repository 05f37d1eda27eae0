"""Sums of the chunks of a log, added up to those of the log."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from reweigh.log.log import EpisodeLog
from reweigh.log.states import Labels
from reweigh.log.steps import Identity
from reweigh.policy import Policy, scope_of
from reweigh.sums.diagnostic_tables import LargestWeights, too_long
from reweigh.sums.engines import SCANNED, SPARE_CELLS, ArraysEngine, Request, as_batch, ratios
from reweigh.sums.engines.stream_chunks import Findings
from reweigh.sums.moments import Moments, together
from reweigh.sums.numpy_scan import log_weights, order_of
from reweigh.sums.scan import CompiledScan, Shape, TooManyCells, log_products

Floats = npt.NDArray[np.float64]
FEW_CELLS = 1 << 18  # adding up costs a sort, so it waits until the parts hold more than this
FOLD = 4096  # rows per cell after which sums are put aside, so that small numbers still count


class ChunkSums:
    """Sums of the chunks of a log so far, of at most so many rows.

    Chunks that share their codes go through one compiled scan, whose cells stay where they are
    (`scan`), as long as there is room for them and no new labels come up. Of others the engine in
    memory makes the sums, which are then added up: with the codes of `actions`, where these are
    all that the log has, since the sums of a policy are over all of them.
    """

    def __init__(
        self,
        request: Request,
        target: Policy,
        rows: int,
        same_codes: bool,
        threads: int = 1,
        actions: Labels | None = None,
    ) -> None:
        self.actions = actions
        self.request, self.target, self.rows, self.threads = request, target, rows, threads
        self.parts, self.largest = Parts(request), LargestSoFar(rows)
        self.same_codes = same_codes and not (request.policy and scope_of(target) == "row")
        self.scan: CompiledScan | None = None
        self.identity = Identity()

    def add(self, log: EpisodeLog) -> None:
        if self.same_codes:
            if self.scan is not None and self.labels != (log.states, log.actions):
                self._put_aside()
            if self.scan is None:
                self.same_codes = self._open(log)
        if self.actions is not None and log.actions not in (None, self.actions):
            log = _with_actions(log, self.actions)
        kinds = self.request.kinds - {"largest"} - (self.parts.left_out.keys() - {"model"})
        if self.scan is not None:
            self._scan(log, self.scan, kinds - SCANNED)
            return
        self.identity += log.identity()
        self.parts.add(self._in_memory(log, kinds))
        if "largest" in self.request.kinds:
            rho = ratios(log, self.target, self.request.max_ratio)[1]
            self.largest.add(log_weights(log, rho))

    def _scan(self, log: EpisodeLog, scan: CompiledScan, others: frozenset[str]) -> None:
        """The chunk's tables side by side, and the other kinds of sums."""
        ids, steps = order_of(log.steps), log.steps
        pi = self.target.probabilities(log)
        batch = as_batch(log, pi, steps.blocks(self.request.blocks), ids)

        def identify() -> None:
            self.identity += log.identity()

        tasks = [
            *scan.tasks(batch),
            lambda: self.others.add(self._in_memory(log, others)),
            identify,
        ]
        if "largest" in self.request.kinds:
            tasks.append(lambda: self.largest.add(log_products(batch, scan.shape)))
        side_by_side(tasks, self.threads)
        self.has_order &= ids is not None
        self.scanned += steps.n_rows
        if self.scanned >= FOLD * scan.n_cells > 0:
            self._put_aside()

    def _in_memory(self, log: EpisodeLog, kinds: frozenset[str]) -> Moments:
        request = replace(self.request, kinds=kinds, named=False)
        return ArraysEngine().moments(log, self.target, request)

    def _open(self, log: EpisodeLog) -> bool:
        """Begin a scan of chunks with these labels; False where there is no room for its cells."""
        request = self.request
        kinds, self.left_out = request.kinds & SCANNED - {"largest"}, too_long(log.horizon)
        n_states, n_actions = len(log.states), len(log.actions or ())
        cells = request.blocks * log.horizon * n_states * n_actions * (n_states + 2)
        if "model" in request.spare and self.rows > SPARE_CELLS and cells > SPARE_CELLS:
            kinds = kinds - request.spare | {"choices"}
            self.left_out |= request.left_out()
        shape = Shape(
            kinds - self.left_out.keys(), log.states, n_actions, log.horizon, log.discount,
            request.blocks, request.max_ratio, self.rows,
        )  # fmt: skip
        try:
            self.scan = CompiledScan(shape, batches=True)
        except TooManyCells:
            return False
        self.labels, self.others = (log.states, log.actions), Parts(request)
        self.has_order, self.scanned = True, 0
        return True

    def _put_aside(self) -> None:
        """The sums of the scan are one part: a long sum loses the digits of what is added to it."""
        assert self.scan is not None
        total, tables = self.others.total(), self.scan.tables()
        if total.truncated:  # a return that was cut off is not known
            tables |= dict.fromkeys(tables.keys() & {"ordered", "paced"})
        if not self.has_order:
            tables |= dict.fromkeys(tables.keys() & {"paced"})
        if "model" in tables:
            tables["start_model"] = total.start
        left_out = {k: why for k, why in self.left_out.items() if k in self.request.kinds}
        self.parts.add(replace(total, left_out=left_out, **tables))
        self.scan = None

    def total(self) -> Moments:
        if self.scan is not None:
            self._put_aside()
        total = self.parts.total()
        return replace(total, largest=self.largest.total()) if self.largest.n else total


def _with_actions(log: EpisodeLog, actions: Labels) -> EpisodeLog:
    """The same log with these codes of its actions."""
    assert log.actions is not None
    action = actions.translate(log.actions)[log.steps.action].astype(log.steps.action.dtype)
    steps = replace(log.steps, action=action)
    return replace(log, steps=steps, actions=actions, _cache=dict(log._cache))


def side_by_side(tasks: Iterable[Callable[[], None]], threads: int) -> None:
    """Do the tasks, which share nothing that they change, as many at a time as there are threads;
    this one is the first of them."""
    left = deque(tasks)

    def work() -> None:
        while True:
            try:
                task = left.popleft()
            except IndexError:
                return
            task()

    if threads == 1 or len(left) < 2:
        work()
        return
    with ThreadPoolExecutor(threads - 1) as pool:
        others = [pool.submit(copy_context().run, work) for _ in range(threads - 1)]
        work()
        for other in others:
            other.result()


class LargestSoFar:
    """The largest weights of a log of at most so many episodes: the list that sorting all of them
    would give, whatever the parts in which they come."""

    def __init__(self, episodes: int) -> None:
        # one more than may be kept, to know where the list ends
        self.room = LargestWeights.kept(episodes) + 1
        self.held: list[Floats] = []
        self.waiting = self.n = 0
        self.least = -math.inf  # below it nothing is among the largest

    def add(self, log_w: Floats) -> None:
        self.n += len(log_w)
        even = LargestWeights.even(log_w)
        larger = even[even > self.least]
        self.held.append(larger)
        self.waiting += len(larger)
        if self.waiting > self.room:
            self._sort()

    def _sort(self) -> None:
        joined = np.sort(np.concatenate([np.zeros(0), *self.held]))[::-1][: self.room]
        self.held, self.waiting = [joined.copy()], 0
        if len(joined) == self.room:
            self.least = float(joined[-1])

    def total(self) -> LargestWeights:
        self._sort()
        return LargestWeights(self.held[0], -math.inf, self.n).trimmed()


@dataclass
class Parts:
    """Moments that come one after the other; the largest weights among them are kept apart."""

    request: Request
    held: list[Moments] = field(default_factory=list)

    @property
    def left_out(self) -> dict[str, str]:
        """Kinds of which there are too many already."""
        return self.held[0].left_out if self.held else {}

    def add(self, part: Moments) -> None:
        if "model" in self.left_out:
            part = part._without_model(self.left_out)
        self.held.append(part)
        first, *rest = [cells_of(m) for m in self.held]
        if sum(rest) > max(first, FEW_CELLS):
            self.held = [self.total()]

    def total(self) -> Moments:
        """The sum; spare kinds that have become too large are left out from there on."""
        total, request = add_up(self.held) if len(self.held) > 1 else self.held[0], self.request
        if "model" not in request.spare or total.model is None or len(total.model) <= SPARE_CELLS:
            return total
        return total._without_model(total.left_out | request.left_out())


def cells_of(part: Moments) -> int:
    products = None if part.trajectories is None else part.trajectories.steps
    tables = (part.start, part.transitions, part.model, part.lagged, part.paced, products)
    return sum(len(table) for table in tables if table is not None)


def add_up(parts: list[Moments]) -> Moments:
    """The sum of parts of one log (all parts describe the same log)."""
    if len({frozenset(part.actions.values) for part in parts if part.actions is not None}) > 1:
        # no part has the policy's probabilities of another's actions
        parts = [replace(part, policy=None) for part in parts]
    return together(parts)


def in_order(total: Moments, found: Findings) -> Moments:
    """The sums as the whole log, read at once, would give them; the hidden state is the last."""
    order = found.ordered_labels()
    states = Labels((*order, None) if total.hidden else tuple(order))
    actions = total.actions
    if actions is not None:
        actions = Labels(tuple(sorted(found.actions)))  # type: ignore[type-var]
    ordered = total
    if (states, actions) != (total.states, total.actions):
        ordered = add_up([total._with_labels(states, actions)])
    if ordered.hidden and ordered.transitions is not None:
        # a stretch has no single π and μ; parts without hidden states have counted theirs
        zeros = np.zeros(len(ordered.transitions))
        ordered = replace(
            ordered, transitions=replace(ordered.transitions, pi=zeros, pi2=zeros, mu=zeros)
        )
    if ordered.truncated:  # the products of cut-off episodes mean nothing
        ordered = replace(ordered, trajectories=None)
    return ordered
