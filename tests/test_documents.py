"""README and docs: of the promised length, without a dead link or a module that is not there, and in one form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

import core

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
DOCUMENTS = sorted([README, ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
HEADINGS = ["Status", "Context", "Decision", "Consequences"]
WIDTH = 120
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_PLACE = re.compile(r"`((?:core|app|pages|tests|benchmarks|deploy|docs|sample_runs)/[\w./-]*)`")
_NAMED = re.compile(r"\bdocs/[\w/-]+\.md\b")


def written(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def prose(text: str) -> str:
    """Without blocks of code and output."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)


def too_long(text: str) -> list[str]:
    """Lines beyond the width; tables and what a program printed have theirs."""
    text = re.sub(r"^(```\w*)\n.*?^```$", lambda block: "" if block[1] == "```" else block[0], text, flags=re.M | re.S)
    return [line for line in text.splitlines() if len(line) > WIDTH and not line.startswith("|")]


def anchors(text: str) -> set[str]:
    """What a heading can be linked by."""
    titles = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def dead_links(page: Path, text: str) -> list[str]:
    dead = []
    for link in _LINK.findall(prose(text)):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(text if target == page else written(target))):
            dead.append(link)
    return dead


def missing_places(text: str) -> list[str]:
    """Files and folders of ours that a text names and that are not there; `x` stands for a name to be chosen."""
    places = (place for place in _PLACE.findall(prose(text)) if "x" not in PurePosixPath(place).with_suffix("").parts)
    return [place for place in places if not (ROOT / place).exists()]


def headings(text: str) -> list[str]:
    return re.findall(r"^## (.+)$", text, re.M)


def sources() -> Iterator[Path]:
    for folder in ("core", "app", "pages", "benchmarks", "deploy", "tests"):
        yield from (
            path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".js", ".sql", ".toml", ".conf")
        )


def test_the_readme_is_at_most_120_lines_of_at_most_120_characters():
    lines = written(README).splitlines()
    assert len(lines) <= 120
    assert [line for line in lines if len(line) > 120] == []


def test_the_readme_begins_with_what_it_is_and_was_run_on_a_picture_and_two_commands():
    opening = written(README).partition("\n## Six things")[0]
    about = re.match(r"# ULPscope\n\n(\*\*Is it .+?)\n\n!\[.+\]\(docs/images/.+\)\n", opening, re.S)
    assert about is not None
    assert len(about[1].splitlines()) <= 5
    assert "CPU only" in about[1]
    assert "Q4_1" in opening
    assert [line.split()[:2] for line in re.findall(r"^make.+$", opening, re.M)] == [["make", "run"], ["make", "test"]]


def test_each_of_the_six_things_takes_three_lines():
    six = re.findall(r"^(\*\*\d\. .+?)\n\n", written(README), re.M | re.S)
    assert [text[2] for text in six] == list("123456")
    assert all(len(text.splitlines()) <= 3 for text in six)


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_document_wraps_links_to_what_is_there_and_names_modules_that_are_there(page):
    text = written(page)
    assert too_long(text) == []
    assert dead_links(page, text) == []
    assert missing_places(text) == []


def test_a_long_line_a_dead_link_and_a_module_that_is_gone_would_be_found():
    assert too_long("x" * 121 + "\n| " + "y" * 130 + " |\n```\n" + "z" * 130 + "\n```\n") == ["x" * 121]
    linked = "# Here\n[a](docs/none.md) [b](LICENSE) [c](docs/paths.md#no-such) [d](#here)"
    assert dead_links(README, linked) == ["docs/none.md", "docs/paths.md#no-such"]
    assert missing_places("`core/no.py` `app/main.py` `pages/x.py`") == ["core/no.py"]


def test_the_documents_that_code_and_help_texts_name_are_there():
    named = {name for path in sources() for name in _NAMED.findall(written(path))} - {"docs/none.md"}
    assert "docs/gates.md" in named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_document_is_reached_from_the_readme():
    seen, waiting = set(), [README]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        for link in _LINK.findall(prose(written(page))):
            target = (page.parent / link.partition("#")[0]).resolve()
            waiting += sorted(target.glob("*.md")) if target.is_dir() else [target] * target.is_file()
    assert [str(page.relative_to(ROOT)) for page in DOCUMENTS if page not in seen] == []


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_has_status_context_decision_and_consequences(page):
    text = written(page)
    assert headings(text) == HEADINGS
    assert re.match(rf"# {page.name[:4]}: ", text)
    assert all(part.strip() for part in re.split(r"^## .+$", text, flags=re.M)[1:])


def test_a_decision_without_its_consequences_would_be_found():
    text = written(DECISIONS[0])
    assert headings(text.replace("## Consequences", "**Consequences**")) != HEADINGS


CHANGE_KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}  # of Keep a Changelog


def changelog_faults(text: str, version: str) -> list[str]:
    """Where a changelog is not in the form of Keep a Changelog, or its newest entry not of this version."""
    blocks = re.findall(r"^## (.+)$", text, re.M)
    newest = next((block for block in blocks if block != "[Unreleased]"), "")
    faults = [] if re.fullmatch(rf"\[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d", newest) else [f"newest: {newest}"]
    return faults + [kind for kind in re.findall(r"^### (.+)$", text, re.M) if kind not in CHANGE_KINDS]


def test_the_changelogs_newest_entry_is_of_the_packages_version():
    assert changelog_faults(written(ROOT / "CHANGELOG.md"), core.__version__) == []


def test_a_version_without_its_entry_would_be_found():
    assert changelog_faults(
        "# Changelog\n\n## [Unreleased]\n\n### Added (more)\n\n## [0.1.0] - 2026-01-01\n", "0.2.0"
    ) == ["newest: [0.1.0] - 2026-01-01", "Added (more)"]
    assert changelog_faults("## [Unreleased]\n\n### Added\n", "0.2.0") == ["newest: "]
