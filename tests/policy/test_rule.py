"""Rules as policies: the grammar and its faults, what a rule answers, and every engine alike."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reweigh as rw
from reweigh.policy import has_columns, holds_rule
from reweigh.policy.rule_text import Compared, IsMissing, Joined, Not, parse

HOSPITAL = "if map_bp < 65: vasopressor=0.9, none=0.1; else: none=1"
ROUTER = (
    "if tokens <= 200 and not (team in ('search', 'ads')): small=1; else: small=0.25, large=0.75"
)


def probabilities(text: str) -> list[dict[Any, float]]:
    return [branch.probabilities for branch in parse(text).branches]


# ---- the grammar -------------------------------------------------------------------------------


def test_branches_with_their_actions() -> None:
    assert probabilities(HOSPITAL) == [{"vasopressor": 0.9, "none": 0.1}, {"none": 1.0}]
    assert probabilities("0=1/4, -1=3/4") == [{0: 0.25, -1: 0.75}]
    assert probabilities("'gpt-4o'=.5, \"it''s\"=5e-1") == [{"gpt-4o": 0.5, "it''s": 0.5}]
    assert probabilities("'it''s'=1") == [{"it's": 1.0}]


def test_a_file_may_have_comments_and_a_line_for_each_action() -> None:
    text = """
    # first line of treatment
    if map_bp < 65:      # mmHg
        vasopressor=0.9
        none=0.1
    elif lactate > 4 or
         lactate is missing:
        vasopressor=0.5, none=0.5
    else:
        none=1
    """
    assert probabilities(text) == [
        {"vasopressor": 0.9, "none": 0.1},
        {"vasopressor": 0.5, "none": 0.5},
        {"none": 1.0},
    ]


def condition(text: str) -> Any:
    return parse(f"if {text}: a=1").branches[0].condition


def test_conditions() -> None:
    bp = Compared("bp", "<", (65.0,))
    assert condition("bp < 65") == condition("65 > bp") == condition("((bp < 65))") == bp
    assert condition("60 <= bp < 65") == Joined(True, (Compared("bp", ">=", (60.0,)), bp))
    assert condition("not bp < 65") == Not(bp)
    assert condition("x == -1.5e2") == Compared("x", "==", (-150.0,))
    assert condition("died == true") == Compared("died", "==", (1.0,))
    assert condition("ward not in ('a', 'b',)") == Not(Compared("ward", "in", ("a", "b")))
    assert condition("`mean bp` is not missing") == Not(IsMissing("mean bp"))
    assert condition("meta.user_id == 'x'") == Compared("meta.user_id", "==", ("x",))
    # "and" binds before "or"
    a, b, c = (Compared(name, "<", (1.0,)) for name in "abc")
    assert condition("a<1 or b<1 and c<1") == Joined(False, (a, Joined(True, (b, c))))


FAULTS = {
    "": (1, 1, "the rule is empty"),
    "if bp < : a=1": (1, 9, "a column, a number or a text belongs here, not ':'"),
    "if bp = 3: a=1": (1, 7, "write == to compare"),
    "if bp: a=1": (1, 6, "a condition compares a column"),
    "if 3 < 4: a=1": (1, 4, "one side of a comparison must be a column"),
    "if bp < sbp: a=1": (1, 9, "not with a column"),
    "if ward < 'icu': a=1": (1, 9, "texts are compared by ==, != and in"),
    "if bp < 3 & hr < 4: a=1": (1, 11, "write 'and' instead of '&'"),
    "if bp < 3: a=0.5, a=0.5": (1, 19, "the action 'a' stands twice"),
    "if bp < 3: a=0.5,\n b=0.4": (1, 1, "branch 1 (line 1) must add up to 1; they add up to 0.9"),
    "if bp < 3: a=1\nelif bp < 5: a=.5, b=.6": (
        2, 1, "branch 2 (line 2) must add up to 1; they add up to 1.1",
    ),
    "if bp < 3: a=1; else: b=2": (1, 25, "a probability lies between 0 and 1; got 2"),
    "if bp < 3: a=-1": (1, 15, "a probability lies between 0 and 1; got -1"),
    "if bp < 3: a==1": (1, 13, "write = for the probability"),
    "if bp < 3: gpt-4o=1": (1, 15, "stands in quotes"),
    "if bp < 3: not=1": (1, 12, "stands in quotes"),
    "if bp < 3 a=1": (1, 11, "':' belongs after the condition, not 'a'"),
    "if bp < 3: a=1; else if bp < 4: a=1": (1, 17, "write 'elif' for 'else if'"),
    "if bp < 3: a=1; else: a=1; elif bp < 4: a=1": (1, 28, "no branch can follow"),
    "if bp < 3: a=1; if bp < 4: a=1": (1, 17, "begin with 'elif' or 'else'"),
    "else: a=1": (1, 1, "a rule begins with 'if'"),
    "if bp < 3: a=1/0": (1, 16, "no number is divided by 0"),
    "if bp < 1e999: a=1": (1, 9, "too large"),
    "if bp < 3 or bp == 'x': a=1": (1, 20, "compared with a text here and with a number before"),
    "if ward == 'icu: a=1": (1, 12, "the quote ' is never closed"),
    "if bp < 3: a=.5.2": (1, 16, "belongs here"),
    "if bp < 3: 1.5=1": (1, 12, "an action is a name or a whole number"),
    "if bp < 3: 1=0.5, '1'=0.5": (1, 19, "written as a number and as a text"),
    "if bp < 3 AND hr < 2: a=1": (1, 11, "':' belongs after the condition, not 'AND'"),
    "if bp ¤ 3: a=1": (1, 7, "the character '¤' means nothing here"),
    "if (bp < 3: a=1": (1, 11, "')' belongs at the end of the parentheses, not ':'"),
    "if bp in 3: a=1": (1, 10, "'(' belongs after 'in', not '3'"),
    "if bp is 3: a=1": (1, 10, "'missing' belongs after 'is', not '3'"),
    "if bp < 3: a=1 b=0": (1, 16, "belongs here, not 'b'"),
}  # fmt: skip


@pytest.mark.parametrize("text", FAULTS)
def test_a_fault_names_line_and_column_and_points_at_it(text: str) -> None:
    line, column, message = FAULTS[text]
    with pytest.raises(rw.UsageError) as raised:
        rw.RulePolicy(text)
    head, shown, caret = str(raised.value).split("\n")
    assert head.startswith(f"the rule, line {line}, column {column}: ")
    assert message in head
    assert len(caret) - 5 == column - 1
    assert shown[4:] == (text.split("\n") or [""])[line - 1]


def test_of_a_long_line_the_part_around_the_fault_is_shown() -> None:
    text = f"if {' and '.join(['bp < 3'] * 40)} und: a=1"
    with pytest.raises(rw.UsageError, match="not 'und'") as raised:
        parse(text)
    _, shown, caret = str(raised.value).split("\n")
    assert len(shown) <= 76
    assert shown[len(caret) - 1 :].startswith("und:")


@pytest.mark.parametrize("opening", ["(", "not ", "(not "])
def test_what_is_nested_too_deeply_is_refused(opening: str) -> None:
    with pytest.raises(rw.UsageError, match="more than 50 parentheses"):
        parse(f"if {opening * 5_000}bp < 3: a=1")


def test_many_parts_are_no_deep_tree() -> None:
    text = f"if {' or '.join(f'bp == {k}' for k in range(70, 3_000))}: a=1; else: b=1"
    log = small_log(rows=100)
    assert set(rw.RulePolicy(text).of_action(log, "a").tolist()) == {0.0, 1.0}


def test_a_text_without_end_is_refused() -> None:
    with pytest.raises(rw.UsageError, match="at most 100,000 are read"):
        parse("a=1 " * 50_000)


WORDS = [
    "if", "elif", "else", "and", "or", "not", "in", "is", "missing", "true", "bp", "ward", "'icu'",
    "<", "<=", "==", "!=", "=", ":", ";", ",", "(", ")", "-", "/", "3", "0.5", "1", "a", "b", "\n",
    "#", "`x y`", "'", "`", "&&", "1e999", "é", "\0", "\ud800", "٣", "²",
]  # fmt: skip


@given(st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join) | st.text(max_size=200))
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        rule = rw.RulePolicy(text)
    except rw.UsageError:
        return
    assert np.allclose(rule.table.sum(axis=1), 1)


@given(st.data())
def test_a_changed_rule_is_a_rule_or_our_error(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(ROUTER)))
    until = data.draw(st.integers(at, len(ROUTER)))
    changed = ROUTER[:at] + data.draw(st.text(max_size=3)) + ROUTER[until:]
    with contextlib.suppress(rw.UsageError):
        assert rw.RulePolicy(changed).branches


# ---- what it answers ---------------------------------------------------------------------------


def table(rows: int = 300, *, missing: bool = False, seed: int = 0) -> pa.Table:
    """Episodes of three steps with a number, a text, a truth value and a state."""
    rng = np.random.default_rng(seed)
    n = rows - rows % 3
    bp = rng.integers(40, 90, n).astype(float)
    holes = rng.random(n) < 0.2 if missing else np.zeros(n, bool)
    return pa.table(
        {
            "episode": np.arange(n) // 3,
            "step": np.arange(n) % 3,
            "state": rng.integers(0, 3, n),
            "bp": pa.array(bp, mask=holes),
            "lactate": pa.array(np.where(holes, np.nan, rng.random(n) * 8)),
            "ward": pa.array(rng.choice(["icu", "er", "o'neil; --"], n), mask=holes),
            "ventilated": rng.random(n) < 0.5,
            "action": rng.choice(["a", "b", "c"], n),
            "reward": rng.random(n),
            "behavior_prob": np.full(n, 1 / 3),
        }
    )


def small_log(rows: int = 300, **options: Any) -> rw.EpisodeLog:
    log = rw.read_log(table(rows), **options)
    assert isinstance(log, rw.EpisodeLog)
    return log


def of_row(row: dict[str, Any]) -> dict[str, float]:
    """The rule below, as a person would follow it."""
    if row["bp"] < 60 and not (row["ward"] == "icu" or row["ventilated"]):
        return {"a": 0.7, "b": 0.3}
    if 60 <= row["bp"] < 75 or (row["ward"] in ("er", "o'neil; --") and row["lactate"] > 4):
        return {"b": 0.5, "c": 0.5}
    return {"a": 0.2, "b": 0.3, "c": 0.5}


RULE = """
if bp < 60 and not (ward == 'icu' or ventilated == true): a=0.7, b=0.3
elif 60 <= bp < 75 or ward in ('er', 'o''neil; --') and lactate > 4: b=0.5, c=0.5
else: a=0.2, b=0.3, c=0.5
"""


def test_every_row_has_the_probabilities_of_its_branch() -> None:
    log, target = small_log(), rw.RulePolicy(RULE)
    expected = [of_row(row) for row in table().to_pylist()]
    for action in ("a", "b", "c", "d"):
        by_row = np.empty(log.steps.n_rows)
        by_row[log.steps.source_row] = target.of_action(log, action)
        assert by_row.tolist() == [row.get(action, 0.0) for row in expected]
    taken = [
        row.get(a, 0.0) for row, a in zip(expected, table()["action"].to_pylist(), strict=True)
    ]
    assert target.probabilities(log).tolist() == [taken[row] for row in log.steps.source_row]


ATOMS = [
    ("bp < 60", lambda row: None if row["bp"] is None else row["bp"] < 60),
    ("lactate > 4", lambda row: None if np.isnan(row["lactate"]) else row["lactate"] > 4),
    ("ward == 'icu'", lambda row: None if row["ward"] is None else row["ward"] == "icu"),
    ("ward is missing", lambda row: row["ward"] is None),
    ("ventilated == 1", lambda row: row["ventilated"]),
]


def random_condition(rng: random.Random, depth: int) -> tuple[str, Any]:
    """A condition and its slow answer: true, false, or None where it cannot be known."""
    if depth == 0:
        return rng.choice(ATOMS)
    kind = rng.choice(["and", "or", "not"])
    parts = [random_condition(rng, depth - 1) for _ in range(1 if kind == "not" else 2)]
    if kind == "not":
        text, answer = parts[0]
        return f"not ({text})", lambda row: None if answer(row) is None else not answer(row)
    settles = kind == "or"

    def joined(row: dict[str, Any]) -> bool | None:
        answers = [answer(row) for _, answer in parts]
        return settles if settles in answers else None if None in answers else not settles

    return f"({f') {kind} ('.join(text for text, _ in parts)})", joined


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("engine", ["arrays", "stream", "duckdb"])
def test_random_conditions_with_missing_cells(seed: int, engine: str) -> None:
    """Rows that can be decided agree with the slow answer; the others are refused by number."""
    rng = random.Random(seed)
    text, answer = random_condition(rng, 3)
    rows = table(60, missing=True, seed=seed)
    target = rw.RulePolicy(f"if {text}: a=0.6, b=0.4; else: a=0.1, c=0.9")
    undecided = [row for row in rows.to_pylist() if answer(row) is None]
    log = rw.read_log(rows, engine=engine)
    if undecided:
        with pytest.raises(rw.InputError, match="rule-missing") as raised:
            rw.moments(log, target)
        needed = {name for name in target.reads if name != "ventilated"}
        episodes = {(place.episode, place.step) for f in raised.value.faults for place in f.places}
        assert episodes <= {(row["episode"], row["step"]) for row in undecided}
        assert {f.places[0].column for f in raised.value.faults} <= needed
        return
    shares = [
        {"a": 0.6, "b": 0.4} if answer(row) else {"a": 0.1, "c": 0.9} for row in rows.to_pylist()
    ]
    expected = [
        share.get(a, 0.0) for share, a in zip(shares, rows["action"].to_pylist(), strict=True)
    ]
    sums = rw.moments(log, target)
    assert sums.model is not None or sums.transitions is not None
    cells = sums.model if sums.model is not None else sums.transitions
    assert cells is not None
    assert cells.pi.sum() == pytest.approx(sum(expected))


@pytest.mark.parametrize("engine", ["stream", "duckdb"])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_engines_agree(engine: str, kind: str, tmp_path: Path) -> None:
    import pyarrow.csv as pacsv
    import pyarrow.parquet as pq

    path, target = (
        tmp_path / f"log.{kind}",
        rw.RulePolicy(RULE.replace("ventilated == true", "lactate < 2")),
    )
    rows = table(600).drop_columns(["ventilated"])
    pacsv.write_csv(rows, path) if kind == "csv" else pq.write_table(rows, path)
    for recipe in (rw.mis(), rw.wis(), rw.dm(), rw.ssd_is(), rw.trajectory_is()):
        here, there = (
            rw.evaluate(rw.read_log(path, engine=name), target, recipe)
            for name in ("arrays", engine)
        )
        assert there.value == pytest.approx(here.value, rel=1e-9)


def test_a_rule_sees_what_binning_hides() -> None:
    """Two rows of one state may have different branches."""
    binned = small_log(state="bp", abstraction=rw.Rounding(0.01))
    target = rw.RulePolicy("if bp < 60: a=1; else: b=0.5, c=0.5")
    bp = binned.column("bp")
    assert len(binned.states) < 4
    assert target.of_action(binned, "a").tolist() == (bp < 60).astype(float).tolist()


def test_a_rule_of_the_state_is_the_table() -> None:
    log = small_log(3_000)
    as_table = rw.TablePolicy({0: {"a": 1}, 1: {"a": 0.5, "b": 0.5}, 2: {"a": 0.5, "b": 0.5}})
    as_rule = rw.RulePolicy("if state == 0: a=1; else: a=.5, b=.5")
    for recipe in (rw.mis(), rw.dm(), rw.wdr()):
        one, other = (rw.evaluate(log, target, recipe) for target in (as_table, as_rule))
        assert other.value == pytest.approx(one.value, rel=1e-12)


# ---- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["arrays", "stream", "duckdb"])
@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            "if lactat < 3: a=1; else: b=1",
            "column 4: the log has no column 'lactat'; did you mean 'lactate'?",
        ),
        ("if bp < 60: a=1; else: d=1", "column 24: the log has no action 'd' "),
        (
            "if ward < 60: a=1; else: b=1",
            "the column 'ward' holds text, and is compared with a num",
        ),
        ("if bp == 'x': a=1; else: b=1", "the column 'bp' holds numbers, and is compared with a t"),
        (
            "if bp < 60 and reward > 0: a=1; else: b=1",
            "column 16: the column 'reward' is the log's reward, which is known only after the act",
        ),
        ("if action == 'a': a=1; else: b=1", "column 4: the column 'action' is the log's action"),
    ],
)
def test_unknown_names_and_wrong_kinds(engine: str, rule: str, message: str) -> None:
    with pytest.raises(rw.UsageError, match="line 1") as raised:
        rw.evaluate(rw.read_log(table(), engine=engine), rw.RulePolicy(rule), rw.mis())
    assert message in str(raised.value)


@pytest.mark.parametrize("engine", ["arrays", "stream", "duckdb"])
def test_rows_without_a_branch_are_named(engine: str) -> None:
    rows = table(30)
    target = rw.RulePolicy("if bp < 60: a=1; elif bp >= 61: b=1")
    rows = rows.set_column(3, "bp", pa.array([*[50.0] * 7, 60.5, *[70.0] * 22]))
    with pytest.raises(rw.InputError, match="rule-uncovered") as raised:
        rw.evaluate(rw.read_log(rows, engine=engine), target, rw.mis())
    [fault] = raised.value.faults
    assert (fault.count, fault.total) == (1, 30)
    assert [(place.row, place.episode, place.step) for place in fault.places] == [(8, 2, 1)]
    assert fault.places[0].value == {"bp": 60.5}


def test_nearly_one_is_normalized_with_a_warning() -> None:
    with pytest.warns(rw.InputWarning, match="branch 1 .line 1. add up to 1 only within"):
        target = rw.RulePolicy("a=0.3333333, b=0.3333333, c=0.3333333")
    assert np.allclose(target.table, 1 / 3, rtol=1e-15)


def test_the_same_rule_written_otherwise_has_the_same_fingerprint() -> None:
    one = rw.RulePolicy("if bp < 60: a=1; else: b=1")
    assert one.fingerprint() == rw.RulePolicy("if bp<60:a=1 ;\n else:b=1 # so").fingerprint()
    assert one.fingerprint() != rw.RulePolicy("if bp < 61: a=1; else: b=1").fingerprint()


# ---- files -------------------------------------------------------------------------------------


def test_a_rule_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.rule"
    path.write_bytes(b"\xef\xbb\xbf# a rule\nif bp < 60: a=1\nelse: b=1\n")
    target = rw.read_policy(path)
    assert isinstance(target, rw.RulePolicy)
    assert (target.name, target.files) == (str(path), (path,))
    with pytest.raises(rw.UsageError, match="name the columns of a table"):
        rw.read_policy(path, state="bp")
    path.write_text("# a rule\nif bp < 60: a=1 else b=1\n")
    with pytest.raises(rw.UsageError, match=r"policy.rule', line 2, column 22: ':' belongs after"):
        rw.read_policy(path)
    path.write_bytes(b"if bp < 60:\n a\xff=1")
    with pytest.raises(rw.InputError, match="line 2: save the file as UTF-8"):
        rw.read_policy(path)
    with pytest.raises(rw.ResourceError, match="cannot read"):
        rw.read_policy(tmp_path / "none.rule")


@pytest.mark.parametrize(
    ("text", "is_rule"),
    [
        ("if x < 65 and y > 2: a=0.6, b=0.4\nelse: a=1\n", True),
        ("# a comment\n\na=0.5, b=0.5\n", True),
        ("state,action,prob\n0,a,1\n", False),
        ("state;action;prob\n0;a;1\n", False),
        ("####" * 2000, False),
    ],
)
def test_a_text_file_that_begins_like_a_rule_is_one(
    text: str, is_rule: bool, tmp_path: Path
) -> None:
    path = tmp_path / "policy.txt"
    path.write_text(text, encoding="utf-8")
    assert holds_rule(path) is is_rule
    assert has_columns(path) is not is_rule
    if is_rule:
        assert isinstance(rw.read_policy(path), rw.RulePolicy)
