"""The report of a comparison: what it says is what was computed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import reweigh as rw
from reweigh.decide.report import MOST_IN_CHART, comparison_page, ranked_rows, to_best
from reweigh.show.html import Section, Table, spec_of
from reweigh.show.text import span
from reweigh.system import rounded

from .samples import HOSTILE, compared_policies, many_policies, no_policy


@pytest.fixture(scope="module")
def three() -> rw.Comparison:
    return compared_policies()


@pytest.fixture(scope="module")
def many() -> rw.Comparison:
    return many_policies()


def tables(sections: tuple[Section, ...]) -> Iterator[Table]:
    for section in sections:
        yield from section.tables
        yield from (figure.table for figure in section.figures)


def texts(section: Section) -> str:
    facts = [f"{name}: {text}" for name, text in section.facts]
    return " ".join([section.intro, *section.notes, *section.missing, *facts])


def test_the_answer_is_the_best_with_its_corrected_interval(three: rw.Comparison) -> None:
    content = comparison_page(three)
    best = three.best
    assert best is not None
    assert isinstance(best.result, rw.Estimate)
    assert best.interval is not None
    own = best.result.interval()
    assert own is not None
    assert best.interval.high - best.interval.low > own.high - own.low  # it is corrected
    answer = content.answer
    value = rounded(best.result.value, best.result.standard_error)
    assert answer.sentence.startswith(f"The policy “{best.target}” is today's policy")
    assert f"both earn {value} per episode (95 % interval {span(best.interval)}" in answer.sentence
    assert f"{span(best.interval)}, corrected for choosing the best of 3)" in answer.sentence
    assert f"best of the 3 with probability {best.best:.0%}" in answer.more[0]
    assert answer.verdict == best.result.verdict.level
    assert "Which of these 3 policies" in answer.question
    assert "500 logged episodes" in answer.question


def test_the_policy_that_made_the_log_earns_just_what_it_earned(three: rw.Comparison) -> None:
    assert three.best is not None
    assert three.best.target == "as before"
    sentence = comparison_page(three).answer.sentence
    assert "is today's policy, but for rounding or estimation: both earn " in sentence


def test_the_ranking_holds_every_policy_and_the_differences_every_other(
    three: rw.Comparison,
) -> None:
    content = comparison_page(three)
    rows = ranked_rows(three)
    assert [row.label for row in rows] == [c.target for c in three.ranking]
    best = rows[0]
    values = {c.target: c.result.value for c in three.ranking if isinstance(c.result, rw.Estimate)}
    assert best.value == max(values.values())
    for name, difference in to_best(three):
        assert difference.value == pytest.approx(values[best.label] - values[name])
        assert difference.interval.low < difference.value < difference.interval.high
        assert difference.first == f"{best.label}, mis"
    sections = {section.name: section for section in content.sections}
    assert list(sections) == [
        "ranking", "differences", "checks", "estimators", "tried", "log", "computed",
    ]  # fmt: skip
    table = sections["ranking"].figures[0].table
    assert [row[0] for row in table.rows] == sorted(values, key=lambda name: -values[name])
    assert [row[1] for row in table.rows] == ["1", "2", "3"]
    assert sum(float(row[6].rstrip("%")) for row in table.rows) == pytest.approx(100, abs=2)
    [other] = sections["estimators"].tables
    assert other.caption == "The policies by wis"
    for entry in tables(content.sections):
        assert all(len(row) == len(entry.columns) for row in entry.rows)


def test_every_chart_has_the_color_of_the_estimator_that_ranks(three: rw.Comparison) -> None:
    from reweigh.show.charts import LOOKS

    for section in comparison_page(three).sections:
        for figure in section.figures:
            drawn = json.dumps(figure.draw().to_dict())
            assert LOOKS["mis"].color in drawn
            assert LOOKS["wis"].color not in drawn


def test_what_was_set_aside_is_reported() -> None:
    found = compared_policies(holdout=0.4)
    content = comparison_page(found)
    last = found.held_out
    assert last is not None
    assert isinstance(last.result, rw.Estimate)
    value = rounded(last.result.value, last.result.standard_error)
    assert f"The policy “{found.chosen}” is today's policy" in content.answer.sentence
    assert f"both earn {value} per episode" in content.answer.sentence
    assert f"from {found.n_held_out:,} episodes set aside)" in content.answer.sentence
    assert f"chosen on {found.n_episodes:,} episodes" in content.answer.more[0]
    assert "500 logged episodes" in content.answer.question
    [tried] = [s for s in content.sections if s.name == "tried"]
    assert f"{found.n_held_out:,}" in texts(tried)
    assert value in texts(tried)


def test_one_policy_is_compared_with_the_log_alone() -> None:
    log, targets = _one()
    found = rw.compare(log, targets, seed=1)
    content = comparison_page(found)
    assert content.title == "Is “only” better than the logged policy?"
    assert not list(to_best(found))
    names = [section.name for section in content.sections]
    assert "differences" not in names
    assert "estimators" not in names
    assert "corrected" not in content.answer.sentence
    assert content.answer.more == ()


def _one() -> tuple[rw.EpisodeLog, dict[str, rw.TablePolicy]]:
    from .samples import sampled

    log, target, _ = sampled()
    return log, {"only": target}


def test_policies_that_are_not_told_apart_are_named(many: rw.Comparison) -> None:
    content = comparison_page(many)
    near = [name for name, d in to_best(many) if d.interval.low <= 0]
    assert near
    assert "clearly better than" in content.answer.more[0]
    assert any("log more episodes (reweigh plan" in line for line in content.answer.better)
    drawn = [f for s in content.sections for f in s.figures]
    for figure in drawn:
        rows = figure.draw().to_dict()["datasets"].values()
        names = {row["estimator"] for data in rows for row in data if "estimator" in row}
        assert len(names) == MOST_IN_CHART
    for entry in tables(content.sections):
        if entry.caption == "The policies by mis":
            assert len(entry.rows) == 45


def test_a_red_winner_is_no_winner(three: rw.Comparison) -> None:
    few = rw.compare(*_few(), seed=1)
    content = comparison_page(few)
    assert content.answer.verdict == "red"
    assert content.answer.sentence.startswith("Not reliable: ")
    assert content.answer.more == ()
    assert "None of the 2 policies tried (a, b) can answer" in content.answer.help
    assert "do not base a decision on this page" in content.html()


def _few() -> tuple[rw.EpisodeLog, dict[str, rw.TablePolicy]]:
    from .samples import world

    made = world()
    one, other = made.target_array, made.behavior_array
    return made.simulate(8, 1), {"a": rw.TablePolicy(one), "b": rw.TablePolicy((one + other) / 2)}


def test_refusals_are_told() -> None:
    content = comparison_page(no_policy())
    assert content.answer.verdict == "refused"
    assert content.answer.sentence.startswith("No answer: ")
    assert content.answer.reasons[0].names == ("elsewhere, mis", "there too, mis")
    ranking = content.sections[0]
    assert ranking.tables[0].rows[0][2] == "refused"
    assert "No answer" in content.html()


def test_the_page_is_whole_small_and_the_same_again(three: rw.Comparison) -> None:
    page = comparison_page(three, command="reweigh compare log.csv").html()
    assert page == comparison_page(compared_policies(), command="reweigh compare log.csv").html()
    assert len(page.encode()) < 2_500_000
    assert "://" not in page.split("<script")[0]
    assert "reweigh compare log.csv" in page
    assert "hash of new rules" in page


def test_names_stay_text(many: rw.Comparison) -> None:
    page = comparison_page(many, title=HOSTILE[0]).html()
    outside = page.split("<script")  # the page's own scripts: data, library, code
    assert len(outside) == 4
    assert HOSTILE[2] not in page
    for section in comparison_page(many).sections:
        for figure in section.figures:
            labels = spec_of(figure.draw())["layer"]
            assert "undefined" not in json.dumps(labels)


def test_the_report_is_written_from_python(three: rw.Comparison, tmp_path: Path) -> None:
    path = three.report(tmp_path / "out.html", title="Which rules?")
    assert "<title>Which rules?</title>" in path.read_text(encoding="utf-8")
    with pytest.raises(rw.UsageError, match="exists"):
        three.report(path)
    three.report(path, overwrite=True)


def test_what_was_tried_is_counted(three: rw.Comparison) -> None:
    content = comparison_page(replace(three, tried=60))
    assert any("60 pairs" in line for line in content.answer.better)
    assert ("tried on this log", "60 pairs of a policy and an estimator") in content.sections[
        -1
    ].facts
