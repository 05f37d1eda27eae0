"""The pages, and what they link to."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))

FENCE = re.compile(r"^```.*?^```$", re.M | re.S)
INLINE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.M)


def links(page: Path) -> list[tuple[str, str]]:
    """The (path, anchor) of every link and picture of a page; links elsewhere are left out."""
    text = INLINE.sub("", FENCE.sub("", page.read_text(encoding="utf-8")))
    found = [link for link in LINK.findall(text) if not re.match(r"[a-z]+:", link)]
    return [(link.partition("#")[0], link.partition("#")[2]) for link in found]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as Python-Markdown and GitHub make them, and its ids."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    found = set(re.findall(r"<\w+ (?:id|name)=\"([^\"]+)\"", text))
    for heading in HEADING.findall(text):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\s-]", "", words).strip().lower()
        found.add(re.sub(r"[\s]+", "-", slug))
    return found


def broken(page: Path) -> list[str]:
    """Links of a page that lead to no file or no heading."""
    wrong = []
    for path, anchor in links(page):
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            wrong.append(f"{path}: no such file")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            wrong.append(f"{path}#{anchor}: no such heading")
    return wrong
