"""What coding assistants are told is true: every command, option and page that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

import reweigh as rw
from reweigh.cli.app import COMMANDS, app
from reweigh.cli.schema import TEXT

from .commands import Command

DOCS = Path(__file__).parents[2] / "docs"
TEXTS = {"skill": TEXT, "llms.txt": DOCS / "llms.txt"}


def options() -> dict[str, set[str]]:
    """The options of every command."""
    group = typer.main.get_command(app)
    context = typer.Context(group)
    found = {}
    for name in COMMANDS:
        one = group.get_command(context, name)  # type: ignore[attr-defined]
        found[name] = {flag for p in one.params for flag in (*p.opts, *p.secondary_opts)}
        found[name] |= {"--help", "-h"}
    return found


def wrong_in(text: str) -> list[str]:
    """Commands and options in it that do not exist."""
    known = options()
    every = set().union(*known.values())
    wrong = []
    for code in re.findall(r"`([^`\n]+)`", text):
        words = code.split()
        if words[0] == "reweigh" and len(words) > 1 and words[1] != "COMMAND":
            if words[1] not in known:
                wrong.append(code)
                continue
            flags = {w for w in words[2:] if re.fullmatch(r"--?[a-z][a-z-]*", w)}
            wrong += [f"{words[1]} {flag}" for flag in flags - known[words[1]]]
        wrong += [w for w in words if re.fullmatch(r"--[a-z][a-z-]*", w) and w not in every]
        wrong += [code for name in re.findall(r"\brw\.(\w+)", code) if not hasattr(rw, name)]
    return wrong


@pytest.mark.parametrize("name", TEXTS)
def test_every_command_and_option_exists(name: str) -> None:
    text = TEXTS[name].read_text(encoding="utf-8")
    assert wrong_in(text) == []
    assert len(re.findall(r"`reweigh \w+", text)) >= 3


def test_one_that_does_not_exist_is_noticed() -> None:
    assert wrong_in("`reweigh evalute x`") == ["reweigh evalute x"]
    assert wrong_in("`reweigh plan --strict`") == ["plan --strict"]
    assert wrong_in("`--nonsense`") == ["--nonsense"]
    assert wrong_in("`rw.nonsense(1)`") == ["rw.nonsense(1)"]


def test_the_skill_names_every_command_for_daily_use(command: Command) -> None:
    ran = command("skill")
    assert ran.code == 0
    for name in set(COMMANDS) - {"reproduce", "skill"}:
        assert f"reweigh {name}" in ran.out
    for key in ("verdict", "gates", "unchecked", "interval", "gain", "refused"):
        assert f"`{key}`" in ran.out


def test_every_page_that_llms_txt_names_exists() -> None:
    text = TEXTS["llms.txt"].read_text(encoding="utf-8")
    pages = re.findall(r"\]\(([^)]+)\)", text)
    assert len(pages) > 10
    for page in pages:
        assert (DOCS / page).exists(), page
