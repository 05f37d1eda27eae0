"""What `--json` prints, as types; the JSON Schemas are derived from them (`schema.py`).

A key that a command prints and that is not here, or the other way round, fails
`tests/cli/test_schema.py`. Keys may be added; renaming or removing one needs a new SCHEMA_VERSION.
A record whose JSON is its fields stands here as itself.
"""

# Without postponed annotations: a TypedDict reads its optional keys from them.
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from reweigh.errors import Fault
from reweigh.evaluation.memories import Trial
from reweigh.show.record import Change
from reweigh.theory.plan_result import Goal
from reweigh.trust.gates import Level

Number = float | None  # null for what is not a finite number
Texts = list[str]
VerdictLevel = Literal["green", "amber", "red"]

# --- parts


class Reason(TypedDict):
    code: Annotated[str, "A short name of the reason that does not change with the wording."]
    reason: str


class Refused(TypedDict):
    refused: Reason


class Interval(TypedDict):
    low: Annotated[Number, "null: not bounded on this side."]
    high: Annotated[Number, "null: not bounded on this side."]
    level: float
    method: str
    standard_error: Number


class Gain(TypedDict):
    value: Annotated[Number, "Value of the target less that of the behavior policy."]
    standard_error: Number
    p_value: Annotated[Number, "One-sided, of: the target is not better than the behavior."]
    at_most: Annotated[bool, "True: computed from sums; the error and p are upper limits."]
    interval: Annotated[Interval | None, "null where the verdict is red."]


class Gate(TypedDict):
    name: str
    level: Annotated[Level, "unknown: the check could not be computed, and text says why."]
    value: Annotated[Number, "What was measured."]
    text: Annotated[str, "What was found, in words."]
    advice: Annotated[str, "What to do about it."]
    limit: Annotated[str, "From where on it is amber or red."]
    per_step: list[Number] | None
    step: Annotated[int | None, "Where it is worst."]
    state: str | None
    action: str | None
    hint: Annotated[bool, "True: it never changes the verdict."]


class Diagnostics(TypedDict):
    worst_ess: Annotated[Number, "Effective number of episodes at the worst step."]
    worst_step: int | None
    unseen_mass: Annotated[Number, "Share of the target's probability that the log has no data on."]
    rare_mass: Annotated[Number, "The same on states seen fewer than 10 times at their step."]
    placebo: Annotated[Number, "The estimate if every reward were 1; should be placebo_expected."]
    placebo_error: Number
    placebo_expected: Number


class Sensitivity(TypedDict):
    estimator: str
    value: Number
    standard_error: Number
    changes: list[Change]
    untried: str


class Bounds(TypedDict):
    gamma: Annotated[float, "How many times the odds of the logged actions may be off."]
    low: Number
    high: Number


class Confounding(TypedDict):
    value: Annotated[float, "Of dm, which Γ = 1 gives."]
    behavior_value: Number
    bounds: list[Bounds]
    tipping: Annotated[Number, "The Γ from which there may be no gain, or no loss; null: none."]
    most: Annotated[float, "The largest Γ that was tried for it."]
    unseen: Annotated[float, "The share of the target's behavior that no bound covers."]


class Memory(TypedDict):
    memory: Annotated[int, "How many past steps were used."]
    why: str
    tried: list[Trial]


class Beside(TypedDict):
    """Another estimator on the same log."""

    estimator: str
    value: Number
    difference: Annotated[Number, "Its value less the answer's."]
    error: Annotated[Number, "The standard error of the difference."]
    beyond: Annotated[bool | None, "True where chance does not explain it; null: not known."]
    error_at_most: Annotated[bool, "Whether the error is only a limit."]
    refused: Annotated[str | None, "Why it has no value."]


class Answered(TypedDict):
    """One estimator's answer."""

    estimator: str
    policy: Annotated[str, "What the target is called in a sentence."]
    value: Annotated[Number, "What the target would have earned per episode."]
    standard_error: Number
    error_method: str
    interval: Interval | None
    p_value: Annotated[Number, "One-sided, of: the target is not better than the behavior."]
    gain: Gain | Refused
    chosen: Annotated[str | None, "Why --estimators auto chose it."]
    memory: Annotated[Memory | None, "Which memory was chosen, with --memory auto."]
    beside: Annotated[list[Beside], "The paper's estimators, beside the default answer."]
    verdict: Annotated[VerdictLevel, "red: do not base a decision on this value."]
    reliable: Annotated[bool, "False where the verdict is red: then do not quote its interval."]
    unchecked: Annotated[dict[str, str], "Assumptions that could not be tested, and why."]
    gates: list[Gate]
    warnings: Texts
    n_episodes: int
    horizon: int
    discount: float
    behavior_value: Annotated[Number, "What was earned per episode in the log."]
    diagnostics: Diagnostics
    sql: Annotated[str | None, "The queries behind it, where an engine used SQL."]


class Unanswered(Refused):
    """An estimator that refused to answer, and why."""

    estimator: str
    value: None
    standard_error: None
    interval: None
    verdict: None
    reliable: Literal[False]
    warnings: Texts
    n_episodes: int
    horizon: int


class Log(TypedDict):
    """A log whose rows were read."""

    source: str
    episodes: int
    rows: int
    horizon: int
    discount: float
    states: int
    state_examples: Texts
    state_columns: Texts
    abstraction: str | None
    actions: int | None
    action_examples: Texts | None
    continuous_actions: bool
    hidden_rows: int
    terminated_early: int
    truncated: int
    reward_range: list[float]
    behavior_prob_range: list[float] | None
    behavior_prob_from: str | None
    mean_return: float
    notes: Texts


class ScannedLog(TypedDict):
    """A log of which an engine returned sums only."""

    source: str
    engine: str
    columns: dict[str, str | Texts]
    horizon: int | None
    discount: float
    state_columns: Texts
    abstraction: str | None
    continuous_actions: bool
    behavior_prob_from: str | None
    notes: NotRequired[Texts]
    episodes: NotRequired[int]
    rows: NotRequired[int | None]
    states: NotRequired[int]
    actions: NotRequired[int | None]
    truncated: NotRequired[int]


class MomentsFile(TypedDict):
    moments: Annotated[str, "The file's name."]
    episodes: int


AnyLog = Log | ScannedLog | MomentsFile


class Certificate(TypedDict):
    """Bounds that hold for every number of episodes, if `assumes` is true."""

    low: float
    high: float
    level: float
    side: Literal["both", "lower", "upper"]
    reward_range: list[float]
    trivial: list[float]
    n_episodes: int
    horizon: int
    gain: list[float]
    p_value: float
    seed: int
    largest_ratio: Number
    compared: dict[str, list[float]]
    method: str
    assumes: Texts


# --- what the commands print


class Output(TypedDict):
    schema_version: Literal[1]


class OfEvaluate(TypedDict):
    interval_refused: NotRequired[Annotated[Reason, "Why the requested interval is missing."]]
    sensitivity: NotRequired[Annotated[Sensitivity, "With --sensitivity."]]


class AnsweredEvaluation(Answered, OfEvaluate):
    pass


class UnansweredEvaluation(Unanswered, OfEvaluate):
    pass


class Group(TypedDict):
    """The answer for the episodes whose first row has this value in the column."""

    group: Annotated[str | float | bool | None, "The value; null where it is missing."]
    name: str
    n_episodes: int
    share: Annotated[float, "Of all episodes."]
    result: Answered | Unanswered


class Groups(TypedDict):
    column: str
    estimator: str
    level: Annotated[float, "Of all intervals together."]
    each_level: float
    together: Annotated[Number, "The mean of the groups' values by their shares."]
    groups: list[Group]


class Evaluate(Output):
    estimates: list[AnsweredEvaluation | UnansweredEvaluation]
    behavior_value: Annotated[Number, "What was earned per episode in the log."]
    log: AnyLog
    seed: Annotated[int | None, "Of the resampling; null: nothing was drawn."]
    tried: Annotated[int, "Pairs of target and estimator tried on this log so far."]
    certificate: Certificate | Refused | None
    disagreement: Annotated[str | None, "Estimators that differ more than their errors explain."]
    groups: Annotated[Groups | None, "The answer by groups of episodes, with --slice."]
    confounding: Annotated[Confounding | Refused | None, "With --confounding."]
    warnings: Texts
    report: Annotated[str | None, "The path of the report, with --report."]
    version: str


class LogFine(Output):
    ok: Literal[True]
    faults: Annotated[list[Fault], "Empty."]
    warnings: Texts
    log: Log


class LogFaulty(Output):
    ok: Literal[False]
    faults: Annotated[list[Fault], "Every broken rule of the log's contract."]


class Diagnosis(TypedDict):
    estimator: str
    verdict: VerdictLevel
    unchecked: dict[str, str]
    gates: list[Gate]


class NoDiagnosis(Refused):
    estimator: str
    verdict: None


class Diagnoses(Output):
    """With --diagnose."""

    diagnoses: list[Diagnosis | NoDiagnosis]
    log: AnyLog
    warnings: Texts
    version: str


class Difference(TypedDict):
    first: str
    second: str
    value: Annotated[Number, "Value of the first less that of the second."]
    standard_error: Number
    interval: Interval
    p_value: Number


class OfCompare(TypedDict):
    name: str
    target: str
    reasons: Annotated[Texts, "Why the verdict is not green, the worst first."]
    simultaneous_interval: Annotated[Interval | None, "Holds for all contenders at once."]
    no_interval: str | None
    over_behavior: Difference | None
    probability_best: Number


class AnsweredContender(Answered, OfCompare):
    pass


class UnansweredContender(Unanswered, OfCompare):
    pass


Contender = AnsweredContender | UnansweredContender


class AutoChoice(TypedDict):
    estimator: str
    why: dict[str, str]


class Compare(Output):
    contenders: list[Contender]
    behavior_value: Number
    level: float
    pairs: list[Difference]
    disagreeing: Annotated[list[Difference], "Estimators of one target that differ too much."]
    tried: int
    seed: int
    n_episodes: int
    chosen: Annotated[str | None, "With --holdout: the target that was best on the first part."]
    held_out: Annotated[Contender | None, "With --holdout: the same on the other part."]
    n_held_out: int
    warnings: Texts
    auto: AutoChoice | None
    general_warnings: Texts
    version: str
    report: str | None


class Need(TypedDict):
    estimator: str
    episodes: Annotated[int | None, "How many it needs to reach the goal."]
    variance: Number
    times: Annotated[Number, "Episodes as a multiple of the reference's."]
    value: Number
    difference: Number
    now: Annotated[Number, "Half-width or power that the pilot has already."]
    ess: Number
    warnings: Texts
    refused: NotRequired[Reason]


class Part(TypedDict):
    state: str
    step: int
    share: Number
    target: Number
    visits: Number
    wanted: NotRequired[Number]


class Others(TypedDict):
    pairs: int
    share: Number


class Decomposition(TypedDict):
    estimator: str
    start: Number
    largest: list[Part]
    others: Others
    by_step: list[Number]


class Plan(Output):
    goal: Goal
    source: str
    pilot_episodes: int | None
    horizon: int
    reference: str
    episodes: Annotated[int, "How many episodes the reference estimator needs."]
    estimators: list[Need]
    decomposition: Annotated[Decomposition | None, "Where the variance comes from."]
    warnings: Texts
    log: AnyLog
    version: str


class Role(TypedDict):
    columns: Texts
    why: str
    guess: bool


class Init(Output):
    config: str
    rows: int
    whole: Annotated[bool, "False: only the first rows were looked at."]
    roles: dict[str, Role]
    undecided: dict[str, Texts]
    missing: Annotated[Texts, "Questions that the configuration leaves open."]
    doubts: Texts
    unused: Texts
    settings: dict[str, Any]
    bins: Annotated[dict[str, str], "By column: the edges of its bins, in the rows looked at."]
    repairs: Annotated[dict[str, str], "By column: what is wrong with its values."]
    tidy: str | None


# The shapes of each command's --json.
OUTPUTS: dict[str, tuple[type, ...]] = {
    "init": (Init,),
    "check": (LogFine, LogFaulty, Diagnoses),
    "evaluate": (Evaluate,),
    "compare": (Compare,),
    "plan": (Plan,),
}
