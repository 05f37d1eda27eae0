"""reweigh init and --config: proposed roles, the file that holds them, and who wins."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reweigh.cli.command import comment_line, setting_line, toml_value
from reweigh.cli.init import LONGEST_WORD, breakable
from reweigh.cli.init.roles import EXACT, KNOWN, PART, rating, words

from .commands import POLICY, Command, log_table, write_log, write_policy

ROLES = {
    "episode": "episode",
    "step": "step",
    "state": ["state"],
    "action": "action",
    "reward": "reward",
    "behavior_prob": "behavior_prob",
}


def renamed(table: pa.Table, **names: str) -> pa.Table:
    return table.rename_columns([names.get(name, name) for name in table.column_names])


def proposed(command: Command, folder: Path, table: pa.Table, *more: str) -> tuple[Any, Any]:
    """What init says of a table, and what it writes."""
    log = folder / "log.parquet"
    pq.write_table(table, log)
    ran = command("init", log, "-o", folder / "c.toml", "--overwrite", "--json", *more)
    assert ran.code == 0, ran.err
    return ran.json(), tomllib.loads((folder / "c.toml").read_text(encoding="utf-8"))


# --- proposals -------------------------------------------------------------------------------


def test_the_usual_names_are_found_and_written(command: Command, tmp_path: Path) -> None:
    told, config = proposed(command, tmp_path, log_table())
    assert config == {"log": [str(tmp_path / "log.parquet")], **ROLES, "target_prob": "pi"}
    assert told["undecided"] == {}
    assert told["missing"] == told["doubts"] == told["unused"] == []


@pytest.mark.parametrize(
    "names",
    [
        {"episode": "patientID", "step": "t", "state": "s", "action": "treatment", "reward": "r"},
        {"episode": "traj-id", "step": "timestep", "state": "obs", "action": "a"},
        {"episode": "Episode ID", "step": "TimeStep", "behavior_prob": "pscore", "pi": "pi_e"},
        {"behavior_prob": "propensity score", "pi": "Target Probability", "reward": "outcome"},
        {"behavior_prob": "mu"},
    ],
)
def test_usual_names_of_others_are_known(
    names: dict[str, str], command: Command, tmp_path: Path
) -> None:
    told, _ = proposed(command, tmp_path, renamed(log_table(), **names))
    for role, plain in ROLES.items():
        key = plain if isinstance(plain, str) else plain[0]
        assert told["roles"][role]["columns"] == [names.get(key, key)], role
        assert not told["roles"][role]["guess"]
    assert told["roles"]["target_prob"]["columns"] == [names.get("pi", "pi")]


def test_names_in_another_language_are_guessed_from_the_content(
    command: Command, tmp_path: Path
) -> None:
    names = {
        "episode": "患者",
        "step": "回",
        "state": "état",
        "action": "Maßnahme",
        "reward": "räntä",
        "behavior_prob": "шанс",
    }
    table = renamed(log_table().drop_columns(["pi"]), **names)
    told, config = proposed(command, tmp_path, table)
    for role in ("episode", "step", "reward", "behavior_prob"):
        assert told["roles"][role] == told["roles"][role] | {
            "columns": [names[role]],
            "guess": True,
        }
    # two columns of labels are left: which of them is the state is not guessed
    assert told["undecided"]["state"] == ["état", "Maßnahme"]
    assert told["undecided"]["action"] == ["état", "Maßnahme"]
    assert config["episode"] == "患者"
    assert "state" not in config
    text = (tmp_path / "c.toml").read_text(encoding="utf-8")
    assert '# state = "état"\n# state = "Maßnahme"\n' in text
    chosen = text.replace('# state = "état"', 'state = "état"')
    chosen = chosen.replace('# action = "Maßnahme"', 'action = "Maßnahme"')
    (tmp_path / "c.toml").write_text(chosen, encoding="utf-8")
    ran = command("check", "--config", tmp_path / "c.toml", "--json")
    assert ran.code == 0, ran.err
    assert ran.json()["log"]["episodes"] == 60


def test_two_names_that_fit_equally_are_left_open(command: Command, tmp_path: Path) -> None:
    table = renamed(log_table(), reward="rew").append_column("payoff", pa.array(np.ones(180)))
    told, config = proposed(command, tmp_path, table)
    assert told["undecided"] == {"reward": ["rew", "payoff"]}
    assert "reward" not in config
    printed = command("init", tmp_path / "log.parquet", "-o", tmp_path / "d.toml").out
    assert "undecided (by name): rew, payoff; choose one" in printed.replace("\n", " ")


def test_the_own_name_of_a_role_wins(command: Command, tmp_path: Path) -> None:
    table = log_table().append_column("payoff", pa.array(np.ones(180)))
    told, config = proposed(command, tmp_path, table)
    assert config["reward"] == "reward"
    assert told["unused"] == ["payoff"]


def test_without_propensities_they_are_estimated(
    command: Command, tmp_path: Path, policy: Path
) -> None:
    table = log_table().drop_columns(["behavior_prob", "pi"])
    told, config = proposed(command, tmp_path, table)
    assert config["fit_behavior"] is True
    assert any("estimated by counts" in text for text in told["missing"])
    ran = command("evaluate", "--config", tmp_path / "c.toml", "--target", policy)
    assert ran.code == 0
    assert "behavior probabilities: estimated" in ran.out


@pytest.mark.parametrize(
    ("values", "word"),
    [
        (np.log([0.5, 0.25]), "log-probabilities"),
        ([0.5, 1.5], "[0.5, 1.5]"),
    ],
)
def test_what_is_named_like_a_probability_and_is_none(
    values: Any, word: str, command: Command, tmp_path: Path
) -> None:
    table = log_table(behavior_prob=np.resize(values, 180))
    told, config = proposed(command, tmp_path, table)
    assert "behavior_prob" not in config
    assert any(word in text for text in told["doubts"])
    assert config["fit_behavior"] is True


def test_steps_that_count_from_one_are_told(command: Command, tmp_path: Path) -> None:
    told, config = proposed(command, tmp_path, log_table(step=np.tile([1, 2, 3], 60)))
    assert config["step"] == "step"
    assert told["repairs"] == {"step": "'step' counts from 1, and reweigh counts from 0"}
    told, _ = proposed(command, tmp_path, log_table(step=np.tile([7, 8, 9], 60)))
    assert "counts from 7" in told["repairs"]["step"]
    told, _ = proposed(command, tmp_path, log_table(step=np.tile([0, 1, 1], 60)))
    assert any("not 0, 1, 2" in text for text in told["doubts"])


def test_steps_from_one_are_told_whatever_they_are_called(command: Command, tmp_path: Path) -> None:
    table = renamed(log_table(), episode="who", step="visit")
    at = table.column_names.index("visit")
    table = table.set_column(at, "visit", pa.array(table["visit"].to_numpy() + 1))
    told, config = proposed(command, tmp_path, table)
    assert (config["episode"], config["step"]) == ("who", "visit")
    assert "'visit' counts from 1" in told["repairs"]["visit"]


def test_the_next_state_is_known_by_its_values(command: Command, tmp_path: Path) -> None:
    table = log_table()
    state = table["state"].to_numpy()
    following = np.append(state[1:], 0)
    told, _ = proposed(command, tmp_path, table.append_column("après", pa.array(following)))
    assert told["roles"]["next_state"]["columns"] == ["après"]
    wrong = table.append_column("next_state", pa.array(1 - following))
    told, config = proposed(command, tmp_path, wrong)
    assert "next_state" not in config
    assert any("not the next row's 'state'" in text for text in told["doubts"])


def test_flags_must_stand_at_the_end(command: Command, tmp_path: Path) -> None:
    last = np.tile([False, False, True], 60)
    told, config = proposed(command, tmp_path, log_table().append_column("done", pa.array(last)))
    assert config["terminated"] == "done"
    assert any("time limit" in text for text in told["doubts"])
    early = np.tile([True, False, False], 60)
    told, config = proposed(
        command, tmp_path, log_table().append_column("terminated", pa.array(early))
    )
    assert "terminated" not in config
    assert any("before the last step" in text for text in told["doubts"])


def test_short_episodes_that_nothing_explains(command: Command, tmp_path: Path) -> None:
    table = log_table().slice(0, 179)
    told, config = proposed(command, tmp_path, table)
    assert any("1 episode is shorter" in text for text in told["missing"])
    assert "short_episodes" not in config
    assert '# short_episodes = "terminal"' in (tmp_path / "c.toml").read_text(encoding="utf-8")


def test_several_columns_of_one_state_and_fractions(command: Command, tmp_path: Path) -> None:
    table = log_table().drop_columns(["state"])
    rng = np.random.default_rng(0)
    table = table.append_column("state_bp", pa.array(rng.normal(size=180)))
    table = table.append_column("state_hr", pa.array(rng.integers(0, 3, 180)))
    told, config = proposed(command, tmp_path, table)
    assert config["state"] == ["state_bp", "state_hr"]
    assert config["bins"] == [3, 0]  # 180 rows, 3 values: 20 rows a state
    edges = [float(edge) for edge in told["bins"]["state_bp"].split(",")]
    below = np.searchsorted(edges, table["state_bp"].to_numpy(), side="right")
    assert np.abs(np.bincount(below) - 60).max() <= 1  # edges are shown with six digits


def test_a_log_without_episodes_says_what_to_add(command: Command, tmp_path: Path) -> None:
    told, _ = proposed(command, tmp_path, log_table().drop_columns(["episode", "step"]))
    assert any("number the rows" in text for text in told["missing"])
    assert any("run init with --bandit" in text for text in told["missing"])


def test_how_a_csv_is_written_is_found_out(command: Command, tmp_path: Path) -> None:
    table = log_table().drop_columns(["pi"])
    lines = [";".join(table.column_names)]
    lines += [
        ";".join(str(value).replace(".", ",") for value in row.values())
        for row in table.to_pylist()
    ]
    path = tmp_path / "a b;c.csv"
    path.write_text("\ufeff" + "\r\n".join(lines) + "\r\n", encoding="utf-8")
    ran = command("init", path, "-o", tmp_path / "c.toml")
    assert ran.code == 0, ran.err
    assert "delimiter ';', decimal sign ','" in ran.out
    config = tomllib.loads((tmp_path / "c.toml").read_text(encoding="utf-8"))
    assert (config["delimiter"], config["decimal"]) == (";", ",")
    ran = command("check", "--config", tmp_path / "c.toml", "--json")
    assert ran.code == 0, ran.err
    assert ran.json()["log"]["rows"] == 180


def test_ids_with_leading_zeros_stay_texts(command: Command, tmp_path: Path) -> None:
    ids = [f"{i:03d}" for i in range(60) for _ in range(3)]
    path = write_log(tmp_path / "log.csv", log_table(episode=ids))
    ran = command("init", path, "-o", tmp_path / "c.toml", "--json")
    assert ran.json()["roles"]["episode"]["columns"] == ["episode"]


HOSTILE = ['"quoted"', "a\nb", "tab\there", "[bold]x[/bold]", "#no comment", "\x7f", "\x1b[31mred"]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_arrive_and_are_not_obeyed(
    name: str, command: Command, tmp_path: Path
) -> None:
    _, config = proposed(command, tmp_path, renamed(log_table(), reward=name))
    assert config["reward"] == name
    ran = command("check", "--config", tmp_path / "c.toml", "--json")
    assert ran.code == 0, ran.err
    printed = command("init", tmp_path / "log.parquet", "-o", tmp_path / "d.toml").out
    assert "\x1b" not in printed
    assert "\x7f" not in printed


def test_a_first_look_at_a_large_file_is_partial(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reweigh.cli.init import columns

    monkeypatch.setattr(columns, "ROWS", 50)  # ends inside an episode
    told, config = proposed(command, tmp_path, log_table())
    assert (told["rows"], told["whole"]) == (50, False)
    assert {key: config[key] for key in ROLES} == ROLES
    assert told["missing"] == []  # that the last episode is cut is no fault of the log


# --- files that cannot be used ---------------------------------------------------------------


def test_an_existing_configuration_is_kept(command: Command, log: Path, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("old")
    ran = command("init", log, "-o", config)
    assert ran.code == 2
    assert "exists; give another name or pass --overwrite" in ran.err
    assert config.read_text() == "old"
    assert command("init", log, "-o", config, "--overwrite").code == 0
    assert tomllib.loads(config.read_text())["episode"] == "episode"


@pytest.mark.parametrize(
    ("content", "code", "word"),
    [
        (b"", 3, "empty"),
        (b"a,a\n1,2\n", 3, "twice"),
        (b"a,b\n", 3, "no rows"),
        (b"a,b\n1,2\n1\n", 3, "ragged-row"),
        (b"a,b\n1,\xff\n", 3, "UTF-8"),
        (b"\x80\x04", 3, "pickle"),
    ],
)
def test_broken_files_are_refused(
    content: bytes, code: int, word: str, command: Command, tmp_path: Path
) -> None:
    (tmp_path / "log.csv").write_bytes(content)
    ran = command("init", tmp_path / "log.csv", "-o", tmp_path / "c.toml")
    assert ran.code == code
    assert word in ran.err
    assert not (tmp_path / "c.toml").exists()


def test_moments_are_no_log(command: Command, log: Path, policy: Path, tmp_path: Path) -> None:
    sums = tmp_path / "m.parquet"
    assert command("moments", log, "--target", policy, "-o", sums).code == 0
    ran = command("init", sums, "-o", tmp_path / "c.toml")
    assert ran.code == 2
    assert "moments" in ran.err


# --- the configuration -----------------------------------------------------------------------


def write_config(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def other_log(tmp_path: Path) -> Path:
    """A log under other names, in a folder whose own name is a pattern."""
    folder = tmp_path / "site [1]*"
    folder.mkdir()
    return write_log(folder / "day.csv", renamed(log_table(), reward="R", behavior_prob="mu"))


CONFIG = 'log = ["day.csv"]\nreward = "R"\nbehavior_prob = "mu"\ntarget_prob = "pi"\n'


def test_every_command_reads_the_file(command: Command, other_log: Path, tmp_path: Path) -> None:
    folder = other_log.parent
    config = write_config(folder / "c.toml", CONFIG + "[plan]\nhalf_width = 0.1\n")
    plain = ("--reward", "R", "--behavior-prob", "mu")
    value = command("evaluate", other_log, *plain, "--target-prob", "pi", "--json").json()
    assert command("evaluate", "--config", config, "--json").json() == value
    assert command("check", "--config", config).code == 0
    compared = command("compare", "--config", config, "--json").json()
    assert compared["n_episodes"] == 60
    assert command("plan", "--config", config).code == 0
    sums = tmp_path / "m.parquet"
    assert command("moments", "--config", config, "-o", sums).code == 0
    by_sums = command("evaluate", sums, "--json").json()
    assert by_sums["estimates"][0]["value"] == pytest.approx(value["estimates"][0]["value"])


def test_patterns_are_seen_from_the_file(command: Command, other_log: Path) -> None:
    config = write_config(other_log.parent / "c.toml", CONFIG.replace("day.csv", "d*.csv"))
    assert command("check", "--config", config, "--json").json()["log"]["rows"] == 180


def test_the_command_line_wins(command: Command, log: Path, policy: Path, tmp_path: Path) -> None:
    text = (
        'log = "log.csv"\nbehavior_prob = "nowhere"\ntarget = "nowhere.csv"\nhorizon = 2\n'
        '[evaluate]\nestimators = "wis"\n'
    )
    config = write_config(tmp_path / "c.toml", text)
    ran = command(
        "evaluate", "--config", config, "--fit-behavior", "--target-prob", "pi", "--json",
        "--estimators", "dm", "--horizon", "3",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    told = ran.json()
    assert told["estimates"][0]["estimator"] == "dm"
    assert told["log"]["horizon"] == 3
    assert told["log"]["behavior_prob_from"].startswith("estimated")


def test_options_of_a_command_stand_in_its_table(
    command: Command, log: Path, policy: Path, tmp_path: Path
) -> None:
    text = 'log = "log.csv"\ntarget = "policy.csv"\n[evaluate]\nestimators = "wis"\nlevel = 0.9\n'
    config = write_config(tmp_path / "c.toml", text + "reward_range = [-9, 9]\njson = true\n")
    told = command("evaluate", "--config", config).json()
    assert [entry["estimator"] for entry in told["estimates"]] == ["wis"]
    assert told["estimates"][0]["interval"]["level"] == 0.9
    assert told["certificate"] is not None


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('rewad = "r"', "there is no option 'rewad'; did you mean 'reward'?"),
        ('behavior-prob = "mu"', "did you mean 'behavior_prob'?"),
        ('estimators = "mis"', "write it below [evaluate]"),
        ('[evaluate]\nestimator = "mis"', "[evaluate] has no option 'estimator'; did you mean"),
        ("[plan]\nhalfwidth = 1", "[plan] has no option 'halfwidth'; did you mean 'half_width'?"),
        ("[evaluat]\nx = 1", "there is no option 'evaluat'; did you mean 'evaluate'?"),
        ("evaluate = 1", "must be a table"),
        ("horizon = 2.5", "horizon must be a whole number; got 2.5"),
        ('discount = "1"', "discount must be a number; got '1'"),
        ("discount = true", "discount must be a number"),
        ("reward = 3", "reward must be one text; got 3"),
        ('fit_behavior = "yes"', "fit_behavior must be true or false"),
        ("target = 3", "target must be the path of one file"),
        ('target = ["a.csv", "b.csv"]', "target must be the path of one file"),
        ("[evaluate]\nreward_range = [1]", "[evaluate] reward_range must be a list of 2 values"),
        ("a = ", "is not valid TOML"),
        ("a = 1\na = 2", "is not valid TOML"),
    ],
)
def test_what_the_file_says_wrongly(
    text: str, word: str, command: Command, log: Path, tmp_path: Path
) -> None:
    config = write_config(tmp_path / "c.toml", text)
    ran = command("evaluate", log, "--config", config, "--target-prob", "pi")
    if "target" in text:
        ran = command("evaluate", log, "--config", config)
    assert ran.code == 2
    assert word in ran.err
    assert str(config) in ran.err
    line = 1 if text.startswith("[evaluat]") else text.count("\n") + 1
    assert f"line {line}" in ran.err


def test_a_configuration_that_is_not_there_or_too_large(
    command: Command, log: Path, tmp_path: Path
) -> None:
    assert command("check", log, "--config", tmp_path / "no.toml").code == 6
    large = write_config(tmp_path / "large.toml", "#" * (1 << 20) + "\n")
    ran = command("check", log, "--config", large)
    assert ran.code == 2
    assert "larger than 1 MB" in ran.err


def test_several_targets_for_compare(command: Command, log: Path, tmp_path: Path) -> None:
    write_policy(tmp_path / "a.csv")
    write_policy(tmp_path / "b.csv", POLICY.replace("0.4", "0.2").replace("0.6", "0.8"))
    config = write_config(tmp_path / "c.toml", 'log = "log.csv"\ntarget = ["a.csv", "b.csv"]\n')
    told = command("compare", "--config", config, "--json").json()
    assert [entry["target"] for entry in told["contenders"]] == ["a", "b"]


def test_a_compare_without_a_log_says_so(command: Command, policy: Path) -> None:
    ran = command("compare", "--target", policy)
    assert ran.code == 2
    assert "there is no LOG" in ran.err


# --- names and TOML --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "name", "expected"),
    [
        ("episode", "Episode", EXACT),
        ("episode", "patientId", KNOWN),
        ("episode", "episode step", 0),
        ("step", "episode step", PART),
        ("state", "next_state", 0),
        ("next_state", "s'", KNOWN),
        ("action", "action_prob", 0),
        ("behavior_prob", "action_prob", KNOWN),
        ("reward", "wort", 0),
        ("state", "estado", 0),
    ],
)
def test_what_names_say(role: str, name: str, expected: int) -> None:
    assert rating(role, name) == expected


def test_words_of_a_name() -> None:
    assert words("patientID-2") == ["patient", "id", "2"]
    assert words("ＳＴＡＴＥ") == ["state"]
    assert words("état du patient") == ["état", "du", "patient"]


no_surrogates = st.text(st.characters(exclude_categories=["Cs"]))


@given(no_surrogates, no_surrogates)
def test_what_is_written_is_read_back(value: str, comment: str) -> None:
    lines = [setting_line("a", value, comment), comment_line(comment)]
    lines += [setting_line("b", value, comment, off=True), setting_line("c", [value])]
    assert tomllib.loads("\n".join(lines)) == {"a": value, "c": [value]}


def test_other_values_of_toml() -> None:
    assert toml_value(True) == "true"
    assert tomllib.loads(f"x = {toml_value(0.1)}") == {"x": 0.1}


LINES = """# roles
log = ["log.csv"]
episode = "episode"
note = '''
reward = "in a text, and no key"
'''
behavior_prob = "mu"
# reward = "gain"
# reward = "loss"

[evaluate]
level = 3
"""


def test_where_a_configuration_says_what(tmp_path: Path) -> None:
    from reweigh.cli.command import lines_of

    found = lines_of(tmp_path / "c.toml", LINES)
    assert found.at == {
        ("", "log"): 2, ("", "episode"): 3, ("", "note"): 4, ("", "behavior_prob"): 7,
        ("", "evaluate"): 11, ("evaluate", "level"): 12,
    }  # fmt: skip
    assert found.off == {"reward": [8, 9]}
    assert found.of("level", "evaluate").endswith("c.toml', line 12")
    assert found.of("step").endswith("c.toml'")


@pytest.mark.parametrize(
    ("lines", "code", "note"),
    [
        # an option with a value that only the command can judge
        (["", "discount = 2.5"], 2, "line 2 sets discount = 2.5"),
        (['short_episodes = "maybe"'], 2, 'line 1 sets short_episodes = "maybe"'),
        (["", "[evaluate]", 'estimators = "mis,mos"'], 2, 'line 3 sets estimators = "mis,mos"'),
        (["[evaluate]", "", "level = 2.0"], 2, "line 3 sets level = 2.0"),
        # a column that is not there
        (["", 'reward = "gain"'], 3, 'line 2 sets reward = "gain"'),
        # a file that is not there
        (["", "", 'target = "nowhere.csv"'], 6, 'line 3 sets target = "nowhere.csv"'),
    ],
)
def test_errors_name_the_line_that_they_come_from(
    lines: list[str], code: int, note: str, command: Command, log: Path, tmp_path: Path
) -> None:
    config = write_config(tmp_path / "c.toml", "\n".join(lines))
    target = [] if "target" in note else ["--target-prob", "pi"]
    ran = command("evaluate", log, "--config", config, *target)
    assert ran.code == code
    assert f"{str(config)!r}, {note}" in ran.err
    if len(target):  # what was typed is not blamed on the file
        plain = command("evaluate", log, *target, "--discount", "2.5")
        assert str(config) not in plain.err


def test_a_role_that_init_left_open_is_found_again(command: Command, tmp_path: Path) -> None:
    """The error of the next command leads to the lines that wait for a decision."""
    table = renamed(log_table(), reward="rew").append_column("payoff", pa.array(np.ones(180)))
    told, config = proposed(command, tmp_path, table)
    assert told["undecided"] == {"reward": ["rew", "payoff"]}
    assert "reward" not in config
    ran = command("check", "--config", tmp_path / "c.toml")
    assert ran.code == 3
    text = (tmp_path / "c.toml").read_text().splitlines()
    lines = [k for k, line in enumerate(text, 1) if line.startswith("# reward = ")]
    assert len(lines) == 2
    wanted = f"leaves reward open: remove the # before one of the lines {lines[0]}, {lines[1]}"
    assert wanted in ran.err


def test_a_role_that_the_file_does_not_name_is_told(command: Command, tmp_path: Path) -> None:
    write_log(tmp_path / "log.csv", log_table().rename_columns(
        ["episode", "step", "state", "action", "gain", "behavior_prob", "pi"]
    ))  # fmt: skip
    config = write_config(tmp_path / "c.toml", 'log = ["log.csv"]')
    ran = command("check", "--config", config)
    assert ran.code == 3
    assert f"{str(config)!r} names no column for reward" in ran.err


# --- a copy that is right ----------------------------------------------------------------------


def untidy(folder: Path) -> Path:
    """A log as it is exported: steps from 1, percentages, yes and no, a semicolon, commas."""
    rng = np.random.default_rng(5)
    lines = ["Ticket;Visit;Mood;Routed to;Chosen with (%);Points;Closed?"]
    for k in range(40):
        steps = 3 if k % 4 else 2
        for t in range(1, steps + 1):
            act = int(rng.integers(0, 2))
            closed = "yes" if t == steps and steps < 3 else "no"
            gain = f"{rng.normal():.2f}".replace(".", ",")
            lines.append(f"T-{k};{t};{('calm', 'angry')[k % 2]};{('bot', 'agent')[act]};"
                         f"{(37.5, 62.5)[act]}%;{gain};{closed}")  # fmt: skip
    path = folder / "tickets.csv"
    path.write_text("\n".join(lines).replace("37.5", "37,5").replace("62.5", "62,5") + "\n")
    return path


def test_a_tidy_copy_keeps_the_contract(command: Command, tmp_path: Path) -> None:
    log = untidy(tmp_path)
    before = log.read_bytes()
    told = command("init", log, "-o", tmp_path / "c.toml").out
    assert "--tidy log.parquet" in told
    assert command("check", "--config", tmp_path / "c.toml").code == 3
    tidy = tmp_path / "tidy.parquet"
    ran = command("init", log, "-o", tmp_path / "d.toml", "--tidy", tidy, "--json")
    assert ran.code == 0, ran.err
    found = ran.json()
    assert found["tidy"] == str(tidy)
    assert set(found["repairs"]) == {"Visit", "Chosen with (%)", "Closed?"}
    assert {role: c["columns"] for role, c in found["roles"].items()} == {
        "episode": ["Ticket"], "step": ["Visit"], "state": ["Mood"], "action": ["Routed to"],
        "reward": ["Points"], "behavior_prob": ["Chosen with (%)"], "terminated": ["Closed?"],
    }  # fmt: skip
    config = tomllib.loads((tmp_path / "d.toml").read_text(encoding="utf-8"))
    assert config["log"] == [str(tidy)]
    assert not {"delimiter", "decimal", "fit_behavior", "short_episodes"} & set(config)
    ran = command("check", "--config", tmp_path / "d.toml", "--json")
    assert ran.code == 0, ran.err
    about = ran.json()["log"]
    assert (about["episodes"], about["horizon"], about["terminated_early"]) == (40, 3, 10)
    assert about["behavior_prob_range"] == [0.375, 0.625]
    copy = pq.read_table(tidy)
    assert copy["Visit"].to_pylist()[:5] == [0, 1, 0, 1, 2]
    assert copy["Closed?"].to_pylist()[:3] == [False, True, False]
    assert log.read_bytes() == before
    assert command("init", log, "-o", tmp_path / "e.toml", "--tidy", tidy).code == 2  # it exists
    assert command("init", log, "-o", tmp_path / "e.toml", "--tidy", tmp_path / "x.csv").code == 2


def test_a_cell_that_cannot_be_put_right_is_refused(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Roles are proposed from the first rows; all of them are copied."""
    from reweigh.cli.init import columns

    log = untidy(tmp_path)
    text = log.read_text().splitlines()
    text[-1] = text[-1].replace("no", "perhaps").replace("%", "")
    log.write_text("\n".join(text) + "\n")
    monkeypatch.setattr(columns, "ROWS", 60)
    tidy = tmp_path / "tidy.parquet"
    ran = command("init", log, "-o", tmp_path / "c.toml", "--tidy", tidy)
    assert ran.code == 3
    assert "yes or no must stand here" in ran.err
    assert "a percentage is written like" in ran.err
    assert f"row {len(text) - 1}" in ran.err
    assert not tidy.exists()
    assert not (tmp_path / "c.toml").exists()


@pytest.mark.parametrize(
    ("name", "values", "is_share"),
    [
        ("propensity", [50.0, 25.0], True),
        ("mu", ["50 %", "25%"], True),
        ("chosen (%)", [50, 25], True),
        ("propensity", ["150%", "25%"], False),
        ("propensity", [50.0, 0.0], False),  # a logged action cannot have the probability 0
        ("propensity", [1.5, 0.5], False),  # rounded badly, and no percentage
    ],
)
def test_percentages_are_told_from_other_numbers(
    name: str, values: Any, is_share: bool, command: Command, tmp_path: Path
) -> None:
    table = log_table().drop_columns(["behavior_prob", "pi"])
    table = table.append_column(name, pa.array((values * 90)[:180]))
    told, config = proposed(command, tmp_path, table)
    assert (config.get("behavior_prob") == name) == is_share
    assert (name in told["repairs"]) == is_share
    if is_share:
        copy = tmp_path / "copy.parquet"
        proposed(command, tmp_path, table, "--tidy", str(copy))
        assert pq.read_table(copy)[name].to_pylist()[:2] == [0.5, 0.25]


def test_a_flag_is_known_by_where_it_stands(command: Command, tmp_path: Path) -> None:
    table = log_table().slice(0, 179)
    gone = [False] * 178 + [True]
    told, config = proposed(command, tmp_path, table.append_column("left us", pa.array(gone)))
    assert config["terminated"] == "left us"
    assert told["roles"]["terminated"]["guess"] is True
    early = [True] + [False] * 178
    told, config = proposed(command, tmp_path, table.append_column("new", pa.array(early)))
    assert "terminated" not in config


def test_the_log_s_own_policy_is_written(command: Command, log: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.csv"
    ran = command("check", log, "--write-policy", own)
    assert ran.code == 0, ran.err
    assert f"the logged policy: {own}" in ran.out
    table = pacsv.read_csv(own)
    assert table.column_names == ["state", "action", "prob"]
    assert table.num_rows == 4
    prob = table["prob"].to_numpy().reshape(2, 2)
    assert prob.sum(axis=1) == pytest.approx([1, 1], abs=1e-12)
    assert (prob == 0.5).all()  # the logged propensity, not the share of the rows
    ran = command("evaluate", log, "--target", own)
    assert ran.code == 0
    assert "is today's policy, but for rounding or estimation: both earn" in ran.out
    assert command("check", log, "--write-policy", own).code == 2  # it is not replaced
    assert command("check", log, "--write-policy", tmp_path / "p.csv", "--diagnose").code == 2


def test_shares_stand_in_for_propensities_that_depend_on_more(
    command: Command, tmp_path: Path
) -> None:
    """In state 0 the propensities vary from row to row; in state 1 they add up to 0.9999."""
    table = log_table()
    state, action = table["state"].to_numpy(), table["action"].to_numpy()
    mu = np.where(state == 1, np.where(action == 1, 0.3333, 0.6666), 0.4)
    mu[np.flatnonzero(state == 0)[0]] = 0.6
    log = write_log(
        tmp_path / "log.csv",
        table.set_column(table.column_names.index("behavior_prob"), "behavior_prob", pa.array(mu)),
    )
    own = tmp_path / "own.csv"
    assert command("check", log, "--write-policy", own).code == 0
    prob = pacsv.read_csv(own)["prob"].to_numpy().reshape(2, 2)
    assert prob[0, 1] == pytest.approx(action[state == 0].mean(), abs=1e-4)
    assert prob[1] == pytest.approx([2 / 3, 1 / 3], abs=1e-12)


def test_shares_add_up_to_one() -> None:
    from reweigh.cli.check import PARTS, rounded_shares

    counts = np.random.default_rng(1).integers(0, 50, (500, 7))
    counts[:, 0] += 1
    parts = np.rint(PARTS * rounded_shares(counts))
    assert (parts.sum(axis=1) == PARTS).all()
    assert np.abs(parts / PARTS - counts / counts.sum(axis=1, keepdims=True)).max() < 1 / PARTS


def test_a_target_in_the_file_is_no_hindrance_to_check(
    command: Command, log: Path, policy: Path, tmp_path: Path
) -> None:
    config = write_config(tmp_path / "c.toml", 'log = ["log.csv"]\ntarget = "policy.csv"')
    assert command("check", "--config", config).code == 0
    assert command("check", "--config", config, "--diagnose").code == 0
    assert command("check", log, "--target", policy).code == 2


@pytest.mark.parametrize("header", ["ward,drug,prob", "state,drug,prob", "ward,action,prob",
                                    "state,action,prob"])  # fmt: skip
def test_a_policy_s_columns_may_be_named_as_in_the_log(
    header: str, command: Command, tmp_path: Path
) -> None:
    table = renamed(log_table(), state="ward", action="drug")
    log = write_log(tmp_path / "log.csv", table)
    named = ["--state", "ward", "--action", "drug"]
    own = tmp_path / "own.csv"
    assert command("check", log, *named, "--write-policy", own).code == 0
    lines = own.read_text().splitlines()
    assert lines[0] == '"ward","drug","prob"'
    own.write_text("\n".join([header, *lines[1:]]) + "\n")
    ran = command("evaluate", log, *named, "--target", own, "--quiet")
    assert ran.code == 0, ran.err


def test_the_own_policy_of_several_columns(command: Command, tmp_path: Path) -> None:
    table = renamed(log_table(), action="drug").append_column("ward", pa.array(["a", "b"] * 90))
    log = write_log(tmp_path / "log.csv", table)
    named = ["--state", "state", "--state", "ward", "--action", "drug"]
    own = tmp_path / "own.csv"
    assert command("check", log, *named, "--write-policy", own).code == 0
    assert own.read_text().splitlines()[0] == '"state","ward","drug","prob"'
    ran = command("evaluate", log, *named, "--target", own, "--quiet")
    assert ran.code == 0, ran.err


# --- ordinary logs ---------------------------------------------------------------------------


def visits(dates: list[str], **more: Any) -> pa.Table:
    """Two visits of each of 40 patients, at these dates (two for each)."""
    n = 40
    return pa.table(
        {
            "patient": np.repeat(np.arange(n), 2),
            "charttime": dates,
            "ward": np.tile(["icu", "er", "er", "icu"], n // 2),
            "treatment": np.tile(["a", "b", "a"], n)[: 2 * n],
            "outcome": np.arange(2.0 * n),
            "propensity": np.full(2 * n, 0.5),
            **more,
        }
    )


@pytest.mark.parametrize(
    ("pattern", "first"),
    [
        ("{d:02}.{m:02}.2024 {h:02}:30", "2024-01-02 08:30"),
        ("{d}/{m}/2024 {h:02}:30:05", "2024-01-02 08:30:05"),
        ("{m}/{d}/2024", "2024-01-02"),
    ],
)
def test_dates_that_are_not_iso_are_put_right(
    pattern: str, first: str, command: Command, tmp_path: Path
) -> None:
    days = [(day, 1 + day % 3) for day in range(2, 22) for _ in range(2)]
    dates = [pattern.format(d=d + k, m=m, h=8 + k) for d, m in days for k in range(2)]
    dates[0] = pattern.format(d=2, m=1, h=8)
    table = visits(dates)
    told, _ = proposed(command, tmp_path, table)
    assert told["roles"]["time"]["columns"] == ["charttime"]
    assert "wants ISO" in told["repairs"]["charttime"]
    told, _ = proposed(command, tmp_path, table, "--tidy", str(tmp_path / "tidy.parquet"))
    assert pq.read_table(tmp_path / "tidy.parquet")["charttime"][0].as_py() == first


def test_dates_that_cannot_be_told_apart_are_named(command: Command, tmp_path: Path) -> None:
    told, _ = proposed(command, tmp_path, visits(["01/02/2024", "03/02/2024"] * 40))
    assert "charttime" not in told["repairs"]
    assert any("'charttime' is named like time, but" in text for text in told["doubts"])


def test_an_id_of_its_own_in_every_row_is_never_the_state(command: Command, tmp_path: Path) -> None:
    n = 60
    clicks = pa.table(
        {
            "uuid": [f"{7919 * k:016x}" for k in range(n)],
            "country": pa.array([None, "de", "fr"] * (n // 3)),
            "segment": ["young", "old"] * (n // 2),
            "ad": np.tile(["x", "y", "z"], n // 3),
            "p": np.tile([0.5, 0.3, 0.2], n // 3),
            "clicked": np.arange(n) % 7 == 0,
        }
    )
    told, config = proposed(command, tmp_path, clicks)
    assert config["bandit"] is True
    assert told["roles"]["episode"]["columns"] == ["uuid"]
    assert told["roles"]["state"]["columns"] == ["segment"]
    assert told["roles"]["reward"]["columns"] == ["clicked"]
    assert "wants numbers" in told["repairs"]["clicked"]
    proposed(command, tmp_path, clicks, "--tidy", str(tmp_path / "tidy.parquet"))
    assert pq.read_table(tmp_path / "tidy.parquet")["clicked"].to_pylist()[:8] == [1, *[0] * 6, 1]


def test_what_is_known_after_the_action_is_no_state(command: Command, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    dates = [f"2024-01-{1 + k % 2:02} 08:00" for k in range(80)]
    latency, pressure = rng.random(80), rng.normal(70, 5, 80)
    told, _ = proposed(command, tmp_path, visits(dates, latency_ms=latency, map_bp=pressure))
    assert told["roles"]["state"]["columns"] == ["ward", "map_bp"]
    assert told["unused"] == ["latency_ms"]


@pytest.mark.parametrize(
    ("role", "name"),
    [
        ("episode", "attributes.gen_ai.conversation.id"),
        ("action", "attributes.gen_ai.response.model"),
        ("reward", "metadata.requester_metadata.feedback"),
        ("state", "attributes.router.task"),
        ("behavior_prob", "attributes.router.propensity"),
    ],
)
def test_the_last_parts_of_a_nested_name_count(role: str, name: str) -> None:
    assert rating(role, name) == KNOWN


def test_long_names_are_broken_behind_their_parts() -> None:
    name = "metadata.requester_metadata.propensity"
    assert breakable(f"x {name}").replace("\n", "") == f"x {name}"
    assert all(line.endswith((".", "_")) for line in breakable(name).split("\n")[:-1])
    assert max(map(len, breakable(name).split("\n"))) <= LONGEST_WORD
