"""Numbers as text have as many digits as they deserve, and never zeros for what is small; the words
are plain (retired phrases)."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

import reweigh as rw
from reweigh.system import rounded
from reweigh.worlds import random_mdp


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (2.30712, 0.0416, "2.307"),
        (12345.678, 250.0, "12,346"),
        (0.0, 1e-40, "0.000000000000"),
        (2.30712e-100, 4.16e-102, "2.307e-100"),
        (-2.30712e-13, 4.16e-15, "-2.307e-13"),
        (1e-30, 3e-20, "1.0e-30"),
        (1.5, 3e-20, "1.5000000000000000e+00"),
        (1.5, None, "1.5"),
    ],
)
def test_digits_are_those_that_the_error_supports(
    value: float, error: float | None, text: str
) -> None:
    assert rounded(value, error) == text


@pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
@pytest.mark.parametrize("name", ["mis", "dm", "mis-pooled", "wis"])
def test_an_interval_of_tiny_rewards_is_that_of_the_others_made_small(name: str) -> None:
    world = random_mdp(1)
    log = world.simulate(400, 0)
    small = log.with_rewards(log.steps.reward * 1e-100, None)
    usual = rw.evaluate(log, world.target, name).interval()
    tiny = rw.evaluate(small, world.target, name).interval()
    assert usual is not None
    assert tiny is not None
    # A square of a square is lost below 1e-154: there the error comes from the influence values.
    assert (tiny.high - tiny.low) * 1e100 == pytest.approx(usual.high - usual.low, rel=0.05)
    assert "e-100" in str(tiny)


# --- the words

ROOT = Path(__file__).parents[1]
# Where people read: pages, and the source with its messages, docstrings and comments.
PLACES = (
    "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "docs",
    "src/reweigh", "studies/reweigh_studies", "studies/scripts",
)  # fmt: skip
COLUMNS = ("behavior behaviour logging", "cancelled canceled")  # of `reweigh init`
RETIRED = {  # pattern: what to write
    r"speaks? (for|up|against)\b|spoke (for|against)": "rests on; the reasons against it",
    r"(told|untold|asked)\b(?! for\b)": "is shown, was requested, needs",
    r"is evaluated in memory|no episodes: evaluated": "needs individual episodes",
    r"looks? at something that": "use information that is not in the state",
    r"an interval from so few": "too few episodes for a reliable interval",
    r"none to trust|not to be trusted|no interval to trust": "not reliable",
    r"to be believed|be believed\b|may I (believe|trust)": "reliable",
    r"tak(e|es|en|ing) (it|them|these|this|\w+ \w+) for (the )?(truth|given|one)\b": "ignores that",
    r"(on|on \w+) grounds\b|grounds (for|to)\b": "reasons",
    r"witness(es)?\b": "say what was seen",
    r"(?<!-)nearer\b(?!-)": "closer",
    r"for want of\b": "because there is no",
    r"anew\b": "again",
    r"who(so)?ever\b": "if you",
    r"in the place of\b": "instead of",
    r"slow to settle": "unstable",
    r"by (its|their) nature\b": "leave it out",
    r"at hand\b": "available",
    r"of one's own\b|of (your|my) own\b": "your own",
    r"leaves? the house": "leaves the site",
    r"(nobody|no one) should decide": "do not base a decision on it",
    r"decide on (it|this number|them)\b": "base a decision on it",
    r"what came before a state": "The state is not Markov: earlier steps still predict",
    r"cannot speak|falls? silent": "has no data on",
    r"it is no\b": "it is not a",
    r"as it must\b|gone on with|has eaten|makes? no table|must know every": "plain words",
    r"(what is )?asked of (an?|it)\b|told of\b|knows the truth|keeps its contract": "plain words",
    r"nobody (knows|should)\b|with the reasons at hand": "plain words",
    r"hitherto|thereof|therein|thereby|whence|wherein": "current words",
    r"behaviours?\b|colour(s|ed)?\b|favour\w*|honour\w*|neighbour\w*": "American spelling",
    r"(normal|organ|optim|real|general|recogn|summar|visual|random|penal|regular|initial)"
    r"is(e|es|ed|ing|ation)\b": "American spelling",
    r"(model|label|cancel|travel)l(ed|ing|er)\b|catalogue|centre\b|analyse[sd]?\b|grey\b|"
    r"whilst\b": "American spelling",
}


BREAK = re.compile(r"[\"']\s*\n\s*f?[\"']")  # between the parts of one text
PLACEHOLDER = re.compile(r"\{[^{}\n]*\}")  # in a text, whose name nobody reads


def prose(text: str, suffix: str) -> str:
    """What people read in a file, with single spaces: a page without its code blocks; of a module
    its comments and texts, those that are joined in one piece."""
    if suffix == ".py":
        kinds = (tokenize.STRING, tokenize.COMMENT)
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        parts = [token.string.removeprefix("# ") for token in tokens if token.type in kinds]
        return " ".join(PLACEHOLDER.sub("{}", BREAK.sub("", "\n".join(parts))).split())
    return " ".join(re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S).split())


def retired_in(text: str) -> list[str]:
    found = []
    for pattern, instead in RETIRED.items():
        for match in re.finditer(rf"\b(?:{pattern})", text, re.I):
            if match.group(0).isupper() or any(match.group(0) in c and c in text for c in COLUMNS):
                continue  # a constant; names that users' columns may have
            around = text[max(match.start() - 40, 0) : match.end() + 30]
            found.append(f"“{match.group(0)}” (better: {instead}) in: … {around} …")
    return found


FILES = sorted(
    path
    for place in PLACES
    for path in ([ROOT / place] if (ROOT / place).is_file() else (ROOT / place).rglob("*"))
    if path.suffix in (".md", ".txt", ".py")
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_retired_phrase_is_used(path: Path) -> None:
    assert retired_in(prose(path.read_text(encoding="utf-8"), path.suffix)) == []


@pytest.mark.parametrize(
    "text",
    [
        "3 of 2,000 episodes speak for the target",
        "sums hold no episodes: evaluated in memory it is told",
        "no interval to trust",
        "the error takes them for the truth",
        "a target nearer to the behavior",
        "the behaviour of the policy",
        "shares are normalised",
    ],
)
def test_a_retired_phrase_is_noticed(text: str) -> None:
    assert retired_in(text)


def test_a_phrase_over_two_lines_is_noticed() -> None:
    assert retired_in(prose("# The mean is slow\n# to settle\n", ".py"))
    assert not retired_in(prose('told = f"{told[0]} rows"\n', ".py"))
    assert retired_in(prose('text = (\n    "their mean is slow "\n    f"to settle"\n)', ".py"))
    assert retired_in(prose('"""The mean is slow\n    to settle."""', ".py"))
    assert not retired_in(prose('"The estimate is unstable"', ".py"))
    assert not retired_in(prose("```text\nno interval to trust\n```\n", ".md"))


# --- the names

VAGUE = {"found", "made", "own", "told", "asked", "given", "shown", "speaks"}
LATER = ("sums/engines/", "trust/gates/", "kernels/")  # names there change with their next rewrite


def quantities(tree: ast.Module) -> set[str]:
    """The names that others read: of constants, classes, functions and fields."""
    names = {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    fields = [s for n in ast.walk(tree) if isinstance(n, ast.ClassDef) for s in n.body]
    for statement in [*tree.body, *fields]:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        targets += [statement.target] if isinstance(statement, ast.AnnAssign) else []
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def test_names_say_the_quantity() -> None:
    source = ROOT / "src" / "reweigh"
    vague = {
        f"{path.relative_to(source)}: {name}"
        for path in source.rglob("*.py")
        if not str(path.relative_to(source)).startswith(LATER)
        for name in quantities(ast.parse(path.read_text(encoding="utf-8")))
        if VAGUE & {*name.lower().strip("_").split("_")}
    }
    assert not vague
