"""An estimator of another package: found by its entry point, and shown wherever ours are."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from capped_is import capped, capped_is
from test_own_table import TARGET, by_hand, read, rows

import reweigh as rw
from reweigh import system as entry_points
from reweigh.cli.app import run
from reweigh.testing import check_estimator

HERE = Path(__file__).parent
SOURCE = HERE / "capped_is.py"
NAME = "capped-is"
pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder on the path, as pip leaves it behind."""
    site = tmp_path / "site"
    about = site / "capped_is-1.0.dist-info"
    about.mkdir(parents=True)
    shutil.copy(SOURCE, site)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: capped-is\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[reweigh.estimators]\n{NAME} = capped_is:capped_is\n")
    monkeypatch.syspath_prepend(str(site))
    entry_points.forget()
    yield
    entry_points.forget()


def value_by_hand(data) -> float:
    return float(np.sum(0.9 ** np.arange(7) * by_hand(data)["cy"])) / 300


def test_it_conforms() -> None:
    check_estimator(capped_is())


@pytest.mark.parametrize("engine", ["arrays", "stream", "duckdb"])
def test_every_engine_gives_its_value_and_influence(engine: str) -> None:
    estimate = rw.evaluate(read(rows(), engine), TARGET, capped_is())
    assert estimate.value == pytest.approx(value_by_hand(rows()), rel=1e-12)
    in_memory = rw.evaluate(read(rows()), TARGET, capped_is())
    both = estimate.interval(method="cluster"), in_memory.interval(method="cluster")
    assert both[0].standard_error == pytest.approx(both[1].standard_error, rel=1e-9)
    assert estimate.verdict.level == in_memory.verdict.level
    assert estimate.behavior_value == pytest.approx(in_memory.behavior_value, rel=1e-12)


def test_its_error_is_that_of_a_mean_over_episodes() -> None:
    """v is the mean of x_i = Σ_t γ^t c_it y_it, whose error is known."""
    prob = {("a", 0): 0.1, ("a", 1): 0.9, ("b", 0): 0.3, ("b", 1): 0.7}
    x: dict[str, float] = {}
    product = 1.0
    for row in rows().to_pylist():
        product = 1.0 if row["step"] == 0 else product
        product *= prob[row["state"], row["action"]] / row["mu"]
        earned = 0.9 ** row["step"] * min(product, 5.0) * row["reward"]
        x[row["episode"]] = x.get(row["episode"], 0.0) + earned
    estimate = rw.evaluate(read(rows()), TARGET, capped_is())
    expected = np.std(list(x.values())) / np.sqrt(len(x))
    assert estimate.standard_error == pytest.approx(expected, rel=1e-8)


def test_with_a_cap_that_nothing_reaches_it_is_is() -> None:
    free = rw.Table("free", ("t",), {"cy": "least(running_product, 1e9) * reward"})

    class Free(rw.TableWeights):
        tables = (free,)
        multiplies = whole_episodes = True
        formula = "IS"

        def description(self, recipe):
            return "IS"

        def per_step(self, sums):
            table = sums.tables["free"]
            return sums.discount**table.t * table.cy / sums.n

    log = read(rows())
    own, ours = (rw.evaluate(log, TARGET, e) for e in (rw.Recipe("free", Free()), rw.is_()))
    assert own.value == pytest.approx(ours.value, rel=1e-12)
    assert own.standard_error == pytest.approx(ours.standard_error, rel=1e-8)
    for method in ("jackknife", "percentile", "bootstrap-t"):
        ends = [e.interval(method=method, replicates=399, seed=3) for e in (own, ours)]
        assert (ends[0].low, ends[0].high) == pytest.approx((ends[1].low, ends[1].high), rel=1e-7)


@pytest.mark.parametrize("engine", ["arrays", "stream", "duckdb"])
def test_saved_sums_serve_it(engine: str, tmp_path: Path) -> None:
    for part in (1, 2):
        sums = rw.moments(read(rows(part), engine), TARGET, [capped_is()])
        sums.save(tmp_path / f"{part}.parquet")
    both = rw.load_moments(tmp_path / "1.parquet") + rw.load_moments(tmp_path / "2.parquet")
    estimate = rw.evaluate(both, None, capped_is())
    halves = [value_by_hand(rows(part)) for part in (1, 2)]
    assert estimate.value == pytest.approx(np.mean(halves), rel=1e-12)
    assert estimate.error_method == "jackknife (50 blocks)"
    with pytest.raises(rw.RefusedError, match="have no sums of the kind 'capped'"):
        rw.evaluate(rw.moments(read(rows()), TARGET, ["mis"]), None, capped_is())


@pytest.mark.parametrize("engine", ["arrays", "stream", "duckdb"])
def test_the_command_line_and_the_report_show_it(
    installed: None, engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, policy = tmp_path / "log.parquet", tmp_path / "policy.csv"
    pq.write_table(rows(), log)
    policy.write_text("state,action,prob\na,0,0.1\na,1,0.9\nb,0,0.3\nb,1,0.7\n")
    call = ["evaluate", str(log), "--target", str(policy), "--behavior-prob", "mu",
            "--terminated", "terminated", "--horizon", "7", "--discount", "0.9",
            "--engine", engine, "--estimators", f"mis,{NAME}"]  # fmt: skip
    page = tmp_path / "page.html"
    assert run([*call, "--report", str(page)]) == 0
    assert NAME in capsys.readouterr().out
    assert "products capped at 5" in page.read_text("utf-8")
    assert run([*call, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["estimates"]
    assert told[1]["estimator"] == NAME
    assert told[1]["value"] == pytest.approx(value_by_hand(rows()), rel=1e-12)


def test_contributing_shows_this_code() -> None:
    guide = (HERE.parents[1] / "CONTRIBUTING.md").read_text("utf-8")
    source = SOURCE.read_text("utf-8")
    assert f"```python\n{source}```" in guide
    declaration = source[source.index("capped = rw.Table(") : source.index("\n\n\nclass")]
    assert f"```python\nimport reweigh as rw\n\n{declaration}\n" in guide
    assert capped.columns.keys() == {"c", "c2", "cy"}
