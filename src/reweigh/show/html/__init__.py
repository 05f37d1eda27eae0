"""A page as one HTML file: offline, self-contained, the same bytes for the same results."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, BinaryIO, Literal

import jinja2

from reweigh.show.charts import ON_DARK, PALETTE, TITLES, steps
from reweigh.show.first_screen import Reason, by_concerned
from reweigh.show.record import PER_EPISODE, Facts
from reweigh.show.text import LONGEST_STATE, display_names, one_of, plain, sentence
from reweigh.system.files import write_atomically
from reweigh.trust.breakdown import Heat

DIGITS = 4  # of the shares in the heat map
LONGEST_SEARCHED = 120  # characters of a state's name
LONGEST_LABEL = 180  # pixels of a state's name
OPEN_SECTIONS = 2  # the others open by a click
BADGES = {
    "green": "Reliable",
    "amber": "Use with caution",
    "red": "Not reliable",
    "refused": "No answer",
}
MARKS = {"green": "✓", "amber": "!", "red": "✕", "unknown": "?"}
Cells = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Answer:
    """The top of a page, in words.

    question   the question, and how much data answers it
    sentence   the answer, made by `answer_sentence`; more: what else to say of it
    verdict    "refused" where no estimator answered
    table      the estimators or policies, five at most
    reasons    the most important ones; hidden: how many more there are; alone: they can concern
               only one estimator, which needs no name
    help       who else can answer, or what would help where nobody can
    unchecked  what the verdict knows nothing about, each with the reason
    better     what would make the answer more precise
    """

    question: str
    sentence: str
    verdict: Literal["green", "amber", "red", "refused"]
    more: tuple[str, ...] = ()
    table: Table | None = None
    reasons: tuple[Reason, ...] = ()
    hidden: int = 0
    alone: bool = False
    help: str = ""
    unchecked: tuple[str, ...] = ()
    better: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def badge(self) -> str:
        return BADGES[self.verdict]

    @property
    def why(self) -> dict[str, list[Reason]]:
        """The reasons by whom they concern."""
        return {"": list(self.reasons)} if self.alone else by_concerned(self.reasons)


@dataclass(frozen=True, eq=False)
class Table:
    """Texts in rows; `numbers` are the columns that are set to the right; a `folded` table opens
    by a click."""

    caption: str
    columns: Cells
    rows: tuple[Cells, ...]
    numbers: frozenset[int] = frozenset()
    folded: bool = True
    marks: bool = False  # cells are levels, shown as marks


@dataclass(frozen=True, eq=False)
class Figure:
    """A chart: name is that of its question in `TITLES`; text the answer in words; `draw` makes
    it; table its data."""

    name: str
    text: str
    table: Table
    draw: Callable[[], Any]

    @property
    def title(self) -> str:
        return TITLES[self.name]


@dataclass(frozen=True, eq=False)
class Section:
    """missing says what was not computed, and why; `facts` are pairs of a name and a text."""

    name: str
    title: str
    intro: str = ""
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    facts: Facts = ()
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    heat: Heat | None = None
    wide: bool = False  # figures stand one below the other


@dataclass(frozen=True, eq=False)
class Page:
    """What stands on a page. `simulated`: the truth is known, and shown; `unit` is what values are
    per, in the reader's words."""

    title: str
    answer: Answer
    sections: tuple[Section, ...]
    remarks: tuple[str, ...]
    simulated: bool = False
    unit: str = PER_EPISODE

    def html(self, words: Callable[[str], str] = str) -> str:
        """The page as text. Messages are written for Python; `words` puts them into those of the
        reader."""
        code, library = _resource("page.js"), _library()
        per = f"per {one_of(self.unit)}"

        def say(text: str) -> str:
            return words(text).replace(PER_EPISODE, per)

        return _template().render(
            page=self,
            sections=self.sections,
            style=_colors() + _resource("page.css"),
            library=library,
            code=code,
            data=_json(_said(_data(self.sections), say)),
            policy=_policy_of([library, code]),
            marks=MARKS,
            open_sections=OPEN_SECTIONS,
            say=say,
            sentence=sentence,
        )

    def write(
        self,
        path: str | Path,
        inputs: Iterable[Path],
        *,
        overwrite: bool,
        words: Callable[[str], str] = str,
    ) -> Path:
        """The page as a file, whole or not at all, over none of the inputs."""
        content = self.html(words).encode()

        def write(stream: BinaryIO) -> None:
            stream.write(content)

        write_atomically(path, write, overwrite=overwrite, inputs=inputs)
        return Path(path)


def _data(sections: Iterable[Section]) -> dict[str, Any]:
    """The charts, and the heat map's table."""
    data: dict[str, Any] = {"specs": {}, "heat": None}
    for section in sections:
        data["specs"] |= {figure.name: spec_of(figure.draw()) for figure in section.figures}
    for heat in (section.heat for section in sections if section.heat is not None):
        data["heat"] = _heat(heat)
        for show in steps.SHOWS:
            data["specs"][show] = spec_of(steps.marginals(None, show, longest=LONGEST_LABEL))
        data["titles"] = {show: TITLES[show] for show in steps.SHOWS}
    return data


def _heat(heat: Heat) -> dict[str, Any]:
    """The heat map's table, by columns."""
    labels = display_names(heat.names, plain, LONGEST_STATE)
    target, log = (
        [float(f"{value:.{DIGITS}g}") for value in shares.reshape(-1).tolist()]
        for shares in (heat.target, heat.behavior)
    )
    return {
        "names": [plain(name)[:LONGEST_SEARCHED] for name in heat.names],
        "labels": [labels[name] for name in heat.names],
        "first": heat.first.tolist(),
        "last": heat.last.tolist(),
        "target": target,
        "log": log,
        "others": heat.others,
        "page": steps.STATES_AT_ONCE,
        "height": steps.STATE_HEIGHT,
    }


def spec_of(chart: Any) -> dict[str, Any]:
    """A chart as the page draws it: as wide as there is room, in the page's own colors."""
    spec: dict[str, Any] = chart.to_dict()
    for name in ("config", "$schema"):
        spec.pop(name, None)
    spec["width"] = "container"
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    painted: dict[str, Any] = _painted(spec)
    return painted


def _painted(value: Any) -> Any:
    """Colors become variables of the style sheet, so that light, dark and print are its matter;
    what is no finite number becomes null."""
    if isinstance(value, str):
        return f"var({_variable(value)})" if value in PALETTE else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _painted(item) for key, item in value.items()}
    return [_painted(item) for item in value] if isinstance(value, list) else value


def _said(value: Any, say: Callable[[str], str]) -> Any:
    """The titles of axes and tooltips in the reader's words."""
    if isinstance(value, Mapping):
        return {
            key: say(item) if key == "title" and isinstance(item, str) else _said(item, say)
            for key, item in value.items()
        }
    return [_said(item, say) for item in value] if isinstance(value, list) else value


def _variable(color: str) -> str:
    return f"--c{color[1:].lower()}"


def _colors() -> str:
    """The palette as variables, light and dark."""
    light = "".join(f"{_variable(color)}:{color};" for color in PALETTE)
    dark = "".join(f"{_variable(color)}:{ON_DARK.get(color, color)};" for color in PALETTE)
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme: dark){{:root{{{dark}}}}}\n"


def _json(value: Any) -> str:
    """JSON that may stand inside a script element: nothing in it can end the element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def _policy_of(scripts: Iterable[str]) -> str:
    """Only these scripts may run, and nothing may be loaded."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in scripts
    )
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:"


@functools.cache
def _library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script."""
    import vl_convert

    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle.replace("</script", "<\\/script")


def _resource(name: str) -> str:
    return resources.files("reweigh.show").joinpath("templates", name).read_text("utf-8")


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("reweigh.show", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html")
