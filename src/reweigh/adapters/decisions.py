"""Decisions of LLM routers and agents, as logs: JSON Lines with one decision per line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reweigh.errors import (
    InputError,
    InputWarning,
    Place,
    RefusedError,
    UsageError,
    nearest,
)
from reweigh.log.abstractions import AnyAbstraction
from reweigh.log.csv_files import CsvFormat
from reweigh.log.json_files import JsonSource
from reweigh.log.log import EpisodeLog
from reweigh.log.rules import Faults, Rule
from reweigh.log.sources import open_source
from reweigh.log.states import Label, Labels, is_number, is_text, label_text, one_array
from reweigh.policy import Floats, Policy, WrappedPolicy
from reweigh.sums.read import read_log
from reweigh.system.files import digest_of

Mask = npt.NDArray[np.bool_]
SAMPLING = ("samplerate", "samplingrate", "samplingprobability", "sampleprobability")
LEAST_EXPECTED = 5.0  # choices of an action, for its share in the test of uniform propensities
CHANCE = 1e-6  # of so large a deviation, below which uniform propensities are refused
SEPARATOR = " | "
NOT_OFFERED = Rule(
    "not-a-candidate",
    "row",
    ("action",),
    "column {column} must be one of the candidates of its line",
    "log the candidates that the router chose among, after all filters",
)
MISSING = Rule(
    "null", "row", (), "column {column} has no value", "complete the line, or leave its session out"
)
TIE = Rule(
    "duplicate-step",
    "row",
    (),
    "two lines of a session have the same {column}",
    "name a field that orders the turns of a session",
)
COUNT = Rule(
    "probability-range",
    "row",
    (),
    "column {column} must be a count between 1 and the number of samples",
    "a route that was chosen was drawn at least once: count the draw that decided, too",
)
RATE = Rule(
    "probability-range",
    "row",
    (),
    "column {column} must hold probabilities in (0, 1], or of how many lines one was kept (1 or "
    "more), not both",
    "log the probability with which the line was kept",
)
NO_MASS = Rule(
    "no-candidate",
    "row",
    (),
    "the target gives probability 0 to every candidate of the line",
    "give the target an action for each set of candidates",
)


def read_decisions(
    path: Any,
    *,
    session: str | None = "session",
    turn: str | None = "turn",
    state: str | Sequence[str] = (),
    chosen: str = "chosen",
    propensity: str | None = "propensity",
    count: str | None = None,
    samples: int | str | None = None,
    reward: str = "reward",
    candidates: str | None = "candidates",
    keep: Sequence[str] = (),
    cluster: str | None = None,
    horizon: int | None = None,
    discount: float = 1.0,
    abstraction: AnyAbstraction | None = None,
) -> EpisodeLog:
    """A log from JSON Lines, one decision per line; nested fields have dotted names.

    Lines of a `session` are ordered by `turn`, a number or an ISO timestamp; without a session each
    line is one. `state` names what the router saw, `chosen` the route or tool that it took.
    `propensity` is its probability; or it is `count` of `samples` draws of the router (a field or a
    number), and `propensity` is left out. `candidates` is a list of the routes that could be taken;
    where it differs between lines it becomes part of the state, as the column `candidate set`, and
    `restrict_to_candidates` holds a target to it. `keep` names further fields, such as a latency,
    which `log.column` and rules then find. `cluster` is what sessions share, such as the user.
    Where a field such as `sample_rate` differs between sessions, they get weights by it.

    A session ends with its last line. Refused by name: a choice that is no candidate, propensities
    of 1 only, uniform ones that the choices contradict, two rates in one session.
    """
    source = open_source(path, CsvFormat())
    if not isinstance(source, JsonSource):
        raise UsageError(f"{source.describe()} is no file of JSON Lines (.jsonl, .jsonl.gz)")
    states = (state,) if isinstance(state, str) else tuple(state)
    if count is not None:
        propensity = None
    if (count is None) != (samples is None) or (count is None and propensity is None):
        raise UsageError("give propensity, or count and samples, the name of a field or a number")
    sampled = [name for name in source.names if _plain(name) in SAMPLING]
    drawn = samples if isinstance(samples, str) else None
    named = (session, turn, *states, chosen, propensity, count, drawn, reward, candidates, *keep)
    names = [name for name in dict.fromkeys((*named, cluster, *sampled)) if name is not None]
    _refuse_absent(source, names)
    lines = Lines(source, source.read(names, ()))
    weights, offered = _weights(lines, sampled), None
    episode = np.arange(lines.count) if session is None else lines.codes(session)
    columns = {name: lines.table.column(name) for name in (*states, reward, *keep)}
    columns |= {
        "session": pa.array(episode) if session is None else lines.table.column(str(session)),
        "turn": pa.array(_turns(lines, episode, turn)),
        "chosen": lines.table.column(chosen),
        "propensity": pa.array(_propensities(lines, propensity, count, samples)),
    }
    columns |= weights | ({} if cluster is None else {"cluster": lines.table.column(cluster)})
    if candidates is not None:
        offered = _offered(lines, chosen, candidates)
        columns["candidates"] = lines.table.column(candidates)
        if len(pc.unique(offered)) > 1:  # it differs between lines: a part of the state
            columns["candidate set"], states = offered, (*states, "candidate set")
    columns |= {} if states else {"state": pa.array(["any"] * lines.count)}
    _refuse_certain(columns["propensity"])
    _refuse_uniform(columns["propensity"], columns["chosen"], offered)
    return read_log(  # type: ignore[return-value]
        pa.table(columns),
        episode="session",
        step="turn",
        action="chosen",
        reward=reward,
        state=states or "state",
        behavior_prob="propensity",
        horizon=horizon,
        discount=discount,
        short_episodes="terminal",
        abstraction=abstraction,
        cluster=None if cluster is None else "cluster",
        weight=next(iter(weights), None),
        engine="arrays",
    )


@dataclass(frozen=True, eq=False)
class Lines:
    """The fields of all lines, and what they are called in messages."""

    source: JsonSource
    table: pa.Table

    @property
    def count(self) -> int:
        return int(self.table.num_rows)

    def place(self, row: int) -> Place:
        return self.source.place(row)

    def refuse(self, rule: Rule, name: str, bad: Mask, values: Any = None) -> None:
        faults = Faults(self.place, self.count)
        faults.rows(rule, name, bad, values)
        faults.raise_if_any(self.source.describe())

    def known(self, name: str) -> pa.ChunkedArray:
        """A field that every line must have."""
        column = self.table.column(name)
        self.refuse(MISSING, name, np.asarray(column.is_null().to_numpy()))
        return column

    def codes(self, name: str) -> npt.NDArray[Any]:
        return _codes(self.known(name))

    def numbers(self, name: str) -> Floats:
        column = self.known(name)
        if not is_number(column.type):
            raise InputError(f"{self.source.describe()}: {name!r} must hold numbers")
        return np.asarray(column.cast(pa.float64()).to_numpy())


def _refuse_absent(source: JsonSource, names: Sequence[str]) -> None:
    for name in names:
        if name not in source.names:
            listed = ", ".join(map(repr, source.names))
            raise InputError(
                f"{source.describe()} has no field {name!r}{nearest(name, source.names)} "
                f"(fields: {listed})"
            )


def _plain(name: str) -> str:
    return "".join(c for c in name.rpartition(".")[2].lower() if c.isalnum())


def _codes(column: Any) -> npt.NDArray[Any]:
    coded = one_array(pc.dictionary_encode(column))
    return np.asarray(coded.indices.to_numpy(zero_copy_only=False))


def _turns(lines: Lines, episode: npt.NDArray[Any], name: str | None) -> npt.NDArray[np.int64]:
    """(N,) 0, 1, 2, … within each session, in the order of the field."""
    if name is None:
        if len(np.unique(episode)) < lines.count:
            raise UsageError("turn=None is for sessions of one line; name what orders the lines")
        return np.zeros(lines.count, np.int64)
    column = lines.known(name)
    if is_text(column.type):
        try:
            column = column.cast(pa.timestamp("us", tz="UTC"))
        except pa.ArrowInvalid:
            column = column.cast(pa.timestamp("us"))
        column = column.cast(pa.int64())
    values = np.asarray(column.to_numpy())
    order = np.lexsort((values, episode))
    first = np.ones(lines.count, bool)
    first[1:] = np.diff(episode[order]) != 0
    same = np.zeros(lines.count, bool)
    same[order[1:]] = ~first[1:] & (np.diff(values[order]) == 0)
    lines.refuse(TIE, name, same, lines.table.column(name))
    starts = np.flatnonzero(first)
    turn = np.empty(lines.count, np.int64)
    turn[order] = np.arange(lines.count) - starts[np.cumsum(first) - 1]
    return turn


def _propensities(
    lines: Lines, propensity: str | None, count: str | None, samples: int | str | None
) -> Floats:
    """(N,) the logged probability, or k/n of k of n draws."""
    if count is None:
        return lines.numbers(str(propensity))
    k = lines.numbers(count)
    n = (
        lines.numbers(samples)
        if isinstance(samples, str)
        else np.full(lines.count, float(samples or 0))
    )
    bad = ~((k >= 1) & (k <= n) & (np.rint(k) == k))
    lines.refuse(COUNT, count, bad, lines.table.column(count))
    return np.asarray(k / n)


def _offered(lines: Lines, chosen: str, name: str) -> pa.Array:
    """(N,) the set of candidates of each line, as a text; the choice must be one of them."""
    lists = one_array(lines.known(name))
    if not pa.types.is_list(lists.type):
        raise InputError(f"{lines.source.describe()}: {name!r} must hold lists of names")
    members, of = _members(lists)
    odd = members.is_null() if members.null_count else pc.match_substring(members, SEPARATOR)
    if pc.any(odd).as_py():
        raise InputError(
            f"{lines.source.describe()}: a list of {name!r} holds null or a name with "
            f"{SEPARATOR!r}, which stands between the names of a set"
        )
    taken = one_array(lines.known(chosen).cast(pa.string()))
    same = pc.equal(members, taken.take(pa.array(of))).to_numpy(zero_copy_only=False)
    offered = np.bincount(of[same.astype(bool)], minlength=lines.count) > 0
    lines.refuse(NOT_OFFERED, chosen, ~offered, lines.table.column(chosen))
    sets = pc.binary_join(lists.cast(pa.list_(pa.string())), SEPARATOR).dictionary_encode()
    parts = [set(text.split(SEPARATOR)) for text in sets.dictionary.to_pylist()]
    texts = [SEPARATOR.join(sorted(names)) for names in parts]
    return pa.array(texts).take(sets.indices)


def _members(lists: pa.Array) -> tuple[pa.Array, npt.NDArray[Any]]:
    """All members of the lists as texts, and (M,) the number of the list of each."""
    return pc.list_flatten(lists).cast(pa.string()), pc.list_parent_indices(lists).to_numpy()


# ---- logs that cannot answer -------------------------------------------------------------------


def _weights(lines: Lines, names: list[str]) -> dict[str, pa.Array]:
    """The column of 1 over the probability with which each line was kept, unless all are alike."""
    product = np.ones(lines.count)
    for name in names:
        rates = lines.numbers(name)
        # OpenTelemetry's probability, or one line in N as others count it
        bad = ~(np.isfinite(rates) & (rates > 0)) | ((rates > 1) & np.any(rates < 1))
        lines.refuse(RATE, name, bad, lines.table.column(name))
        product *= np.where(rates > 1, 1 / rates, rates)
    if not np.all(product == 1):
        import warnings

        warnings.warn(
            f"{' and '.join(map(repr, names))}: lines were kept by sampling (rates from "
            f"{product.min():g} to {product.max():g}). That is fine where whole sessions were kept "
            "or dropped. Where single lines were, sessions lack turns, and the answer is wrong",
            InputWarning,
            stacklevel=3,
        )
    alike = bool(np.all(product == product[0]))
    return {} if alike else {f"1 over {' and '.join(names)}": pa.array(1 / product)}


def _refuse_certain(propensity: pa.Array) -> None:
    """An argmax router: it never does anything but its first choice."""
    if np.all(np.asarray(propensity) == 1.0):
        raise RefusedError(
            "deterministic",
            "every propensity is 1: the router always took its best route (argmax), so the log "
            "shows nothing of other routes. Let it explore: take another candidate with a small "
            "probability, and log the probability of the route that was taken",
        )


def _refuse_uniform(propensity: pa.Array, chosen: pa.Array, offered: pa.Array | None) -> None:
    """Propensities of 1/n mean that each of n candidates is as likely as any other:
    χ² = Σ (observed - expected)² / expected over the sets of candidates."""
    from scipy.special import chdtrc

    mu, action = np.asarray(propensity), _codes(chosen)
    names = pc.unique(chosen)
    of_set = np.zeros(len(mu), np.int64) if offered is None else _codes(offered)
    texts = [None] if offered is None else pc.unique(offered).to_pylist()
    chi2, df, rows = 0.0, 0, 0
    for code, text in enumerate(texts):
        among = of_set == code
        n = len(names) if text is None else text.count(SEPARATOR) + 1
        uniform = among & (np.abs(mu * n - 1) < 1e-3)
        expected = uniform.sum() / n
        if n < 2 or expected < LEAST_EXPECTED or not np.array_equal(uniform, among):
            continue
        observed = np.zeros(n)
        counts = np.bincount(action[among], minlength=len(names))
        shown = counts[counts > 0]
        observed[: len(shown)] = shown
        chi2 += float(np.sum((observed - expected) ** 2) / expected)
        df, rows = df + n - 1, rows + int(uniform.sum())
    if df and chdtrc(df, chi2) < CHANCE:
        raise RefusedError(
            "uniform-propensities",
            f"the propensities of {rows:,} lines are 1 over the number of candidates, and the "
            f"choices are not uniform (χ² = {chi2:,.0f} with {df} degrees of freedom): 1/n is not "
            "the probability by which these routes were chosen. Log the router's own probability, "
            "or estimate it: read_log(path, behavior_prob=None), then fit_behavior",
        )


# ---- targets among candidates ------------------------------------------------------------------


class RestrictedPolicy(WrappedPolicy):
    """π(a|x) 1{a ∈ C(x)} / Σ_{b ∈ C(x)} π(b|x), with the candidates C(x) of the line."""

    def __init__(self, policy: Policy, column: str) -> None:
        super().__init__(policy)
        self.column, self.scope = column, "row"
        self.name = f"{policy.name} among the candidates"
        self.reads = (*self.reads, column)

    def _allowed(self, log: EpisodeLog, actions: Labels) -> Mask:
        """(N, actions) whether each is a candidate."""

        def read() -> Mask:
            lists = one_array(log.source.column(self.column))
            members, of = _members(lists)
            code = pc.index_in(members, pa.array([str(label_text(a)) for a in actions.values]))
            code = np.asarray(code.fill_null(-1).to_numpy(zero_copy_only=False))
            allowed = np.zeros((len(lists), len(actions)), bool)
            allowed[of[code >= 0], code[code >= 0]] = True
            return allowed[log.steps.source_row]

        return log._once(f"candidates {self.column} {actions.digest()}", read)

    def _mass(self, log: EpisodeLog) -> Floats:
        """(N,) Σ_{b ∈ C(x)} π(b|x)"""

        def total() -> Floats:
            actions = self.policy.all_actions(log)
            allowed, mass = self._allowed(log, actions), np.zeros(log.steps.n_rows)
            for code, action in enumerate(actions.values):
                mass += np.where(allowed[:, code], self.policy.of_action(log, action), 0.0)
            faults = Faults(lambda row: log.place(row, None, None), len(mass))
            faults.rows(NO_MASS, self.column, ~(mass > 0))
            faults.raise_if_any("the target policy")
            return mass

        return log._once(f"mass {self.fingerprint()}", total)

    def probabilities(self, log: EpisodeLog) -> Floats:
        # the logged action is a candidate
        return np.asarray(np.minimum(self.policy.probabilities(log) / self._mass(log), 1.0))

    def of_action(self, log: EpisodeLog, action: Label) -> Floats:
        allowed = self._allowed(log, Labels((action,)))[:, 0]
        share = self.policy.of_action(log, action) / self._mass(log)
        return np.where(allowed, np.minimum(share, 1.0), 0.0)

    def fingerprint(self) -> str:
        return f"restricted:{digest_of(self.policy.fingerprint(), self.column)}"


def restrict_to_candidates(policy: Policy, column: str = "candidates") -> RestrictedPolicy:
    """The policy among the candidates of each line: its probabilities of these, made to add up to
    1. `column` is the list of candidates, as `read_decisions` keeps it. A line none of whose
    candidates the policy would take is refused."""
    return RestrictedPolicy(policy, column)
