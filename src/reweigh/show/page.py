"""The report as one HTML file: offline, self-contained, the same bytes for the same results."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, BinaryIO

import jinja2

from reweigh.decide.comparison_result import Comparison
from reweigh.evaluation.result import Estimate
from reweigh.log.log import EpisodeLog
from reweigh.policy.base import Policy
from reweigh.show import charts, draw, draw_places
from reweigh.show.basis import Result, basis_of
from reweigh.show.colors import on_dark
from reweigh.show.compared import Compared, compared
from reweigh.show.compared_sections import compared_sections
from reweigh.show.content import Content, gather
from reweigh.show.figures import Figure
from reweigh.show.records import Answer, Heat
from reweigh.show.sections import MARKS, Section, sections_of
from reweigh.system.output import files_behind, write_atomically
from reweigh.theory.plan_text import plain, shown_names
from reweigh.trust.intervals import Interval

DIGITS = 4  # of the shares in the heat map
LONGEST_SEARCHED = 120  # characters of a state's name
PALETTE = tuple(
    dict.fromkeys(
        [
            *(look.color for look in (*charts.LOOKS.values(), charts.OTHER)),
            draw.GREY,
            draw.INK,
            draw.MORE,
            draw.LESS,
        ]
    )
)


def write_report(
    results: Sequence[Result],
    path: str | Path,
    *,
    overwrite: bool = False,
    main: Estimate | None = None,
    intervals: Sequence[Interval | None] | None = None,
    log: EpisodeLog | None = None,
    target: Policy | None = None,
    words: Callable[[str], str] = str,
    **told: Any,
) -> Path:
    """Write the report of these results. `told` is what stands beside the numbers: the parameters
    of `reweigh.show.content.gather`. `words` puts a message into the words of the reader's road
    to it: messages are written for Python."""
    basis = basis_of(results, main=main, intervals=intervals, log=log, target=target)
    inputs = files_behind(basis.log, basis.target, basis.stored)
    return _written(html_of(gather(basis, **told), words), path, inputs, overwrite=overwrite)


def write_comparison(
    found: Comparison,
    path: str | Path,
    *,
    overwrite: bool = False,
    words: Callable[[str], str] = str,
    **told: Any,
) -> Path:
    """Write the report of a comparison. `told` are the parameters of
    `reweigh.show.compared.compared`."""
    answers = [c.result for c in found.contenders if isinstance(c.result, Estimate)]
    inputs = files_behind(*(answer.grounds.evidence for answer in answers), told.get("log"))
    page = comparison_html(compared(found, **told), words)
    return _written(page, path, inputs, overwrite=overwrite)


def _written(text: str, path: str | Path, inputs: Iterable[Path], *, overwrite: bool) -> Path:
    page = text.encode()

    def write(stream: BinaryIO) -> None:
        stream.write(page)

    write_atomically(path, write, overwrite=overwrite, inputs=inputs)
    return Path(path)


@dataclass(frozen=True, eq=False)
class Page:
    """What stands on a page. `simulated`: the truth is known, and shown."""

    title: str
    answer: Answer
    sections: tuple[Section, ...]
    remarks: tuple[str, ...]
    simulated: bool = False


def html_of(content: Content, words: Callable[[str], str] = str) -> str:
    """The page of an evaluation."""
    page = Page(
        content.title,
        content.answer,
        sections_of(content),
        content.remarks,
        content.truth is not None,
    )
    return _rendered(page, words, content.heat if isinstance(content.heat, Heat) else None)


def comparison_html(content: Compared, words: Callable[[str], str] = str) -> str:
    """The page of a comparison."""
    page = Page(content.title, content.answer, compared_sections(content), content.remarks)
    return _rendered(page, words)


def _rendered(page: Page, words: Callable[[str], str], heat: Heat | None = None) -> str:
    figures = [figure for section in page.sections for figure in section.figures]
    code, style = _resource("page.js"), _colors() + _resource("page.css")
    data = _json(_data(heat, figures))
    return _template().render(
        page=page,
        sections=page.sections,
        style=style,
        library=_library(),
        code=code,
        data=data,
        policy=_policy_of([_library(), code]),
        marks=MARKS,
        say=words,
    )


def _data(heat: Heat | None, figures: Iterable[Figure]) -> dict[str, Any]:
    found: dict[str, Any] = {"specs": {f.name: spec_of(f.draw()) for f in figures}, "heat": None}
    if heat is not None:
        found["heat"] = _heat(heat)
        for show in ("difference", "target", "log"):
            chart = draw_places.marginals(None, show, longest=180)
            found["specs"][show] = spec_of(chart)
        found["titles"] = {show: draw.TITLES[show] for show in ("difference", "target", "log")}
    return found


def _heat(heat: Heat) -> dict[str, Any]:
    """The heat map's table, by columns."""
    shown = shown_names(heat.names, plain)
    return {
        "names": [plain(name)[:LONGEST_SEARCHED] for name in heat.names],
        "labels": [shown[name] for name in heat.names],
        "first": heat.first.tolist(),
        "last": heat.last.tolist(),
        "target": _short(heat.target.reshape(-1).tolist()),
        "log": _short(heat.behavior.reshape(-1).tolist()),
        "others": heat.others,
        "page": draw_places.SHOWN_STATES,
        "height": draw_places.STATE_HEIGHT,
    }


def _short(values: Iterable[float]) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values]


def spec_of(chart: Any) -> dict[str, Any]:
    """A chart as the page draws it: as wide as there is room, in the page's own colours."""
    spec: dict[str, Any] = chart.to_dict()
    for name in ("config", "$schema"):
        spec.pop(name, None)
    spec["width"] = "container"
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    painted: dict[str, Any] = _painted(spec)
    return painted


def _painted(value: Any) -> Any:
    """Colours become variables of the style sheet, so that light, dark and print are its matter;
    what is no finite number becomes null."""
    if isinstance(value, str):
        return f"var({_variable(value)})" if value in PALETTE else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _painted(item) for key, item in value.items()}
    return [_painted(item) for item in value] if isinstance(value, list) else value


def _variable(color: str) -> str:
    return f"--c{color[1:].lower()}"


def _colors() -> str:
    """The palette as variables, light and dark."""
    light = "".join(f"{_variable(color)}:{color};" for color in PALETTE)
    dark = "".join(f"{_variable(color)}:{on_dark(color)};" for color in PALETTE)
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme: dark){{:root{{{dark}}}}}\n"


def _json(value: Any) -> str:
    """JSON that may stand inside a script element: nothing in it can end the element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def _policy_of(scripts: Iterable[str]) -> str:
    """Only these scripts may run, and nothing may be asked for."""
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
