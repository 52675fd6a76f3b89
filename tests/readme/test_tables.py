"""README.md's tables, commands and links agree with the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.cli.main import commands
from gateway.config import load
from gateway.config.fields import RUNTIMES
from gateway.errors import CATEGORIES
from normalizers import registry
from tests.readme.examples import PAGE, ROOT

TEXT = PAGE.read_text("utf-8")


def section(title: str) -> str:
    found = TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    assert found, f"README.md has no section {title!r}"
    return found


def rows(text: str) -> list[list[str]]:
    """The cells of the tables, without heads and rules."""
    lines = re.findall(r"^\| *(`.*?) *\|$", text, re.MULTILINE)
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)] for line in lines]


def test_errors() -> None:
    shown = [row for row in rows(section("API")) if row[1].isdecimal()]
    assert shown == [
        [f"`{name}`", str(error.default_status), f"`{error.type}`", f"`{error.default_code}`"]
        for name, error in CATEGORIES.items()
    ]


def test_formats() -> None:
    shown = [name for row in rows(section("Tool-call formats"))[1:] for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(shown) == sorted(registry.names())


def test_engines() -> None:
    shown = {row[0].strip("`") for row in rows(section("Engines"))[1:]}
    assert shown == {*RUNTIMES, "pkg.mod:Class"}


def test_commands() -> None:
    named = set(re.findall(r"`([a-z][a-z-]*)`", section("Commands").partition("\n\nEach")[0]))
    assert named == set(commands())


def test_configuration_of_ten_lines(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```yaml\n(.*?)^```$", section("Configuration"), re.MULTILINE | re.DOTALL)
    assert len(example.splitlines()) == 10
    file = tmp_path / "config.yaml"
    file.write_text(example, "utf-8")
    assert load(file, {}).resolve(None).port == 8080


PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")]


@pytest.mark.parametrize("page", sorted(str(page.relative_to(ROOT)) for page in PAGES))
def test_links_lead_somewhere(page: str) -> None:
    file = ROOT / page
    local = [link for link in re.findall(r"\]\(([^)#]+)\)", file.read_text("utf-8")) if "://" not in link]
    assert [link for link in local if not (file.parent / link).exists()] == []


@pytest.mark.parametrize("page", sorted(str(page.relative_to(ROOT)) for page in PAGES))
def test_each_row_of_a_table_is_one_line_with_all_its_cells(page: str) -> None:
    text = re.sub(r"^ *```.*?^ *```$", "", (ROOT / page).read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    tables = re.findall(r"(?:^ *\|.*\n)+", text, re.MULTILINE)
    for rows in ([row.strip() for row in table.splitlines()] for table in tables):
        assert [row for row in rows if not row.endswith("|")] == []
        assert {len(re.split(r"(?<!\\)\|", row)) for row in rows} == {len(re.split(r"(?<!\\)\|", rows[1]))}, rows[0]


CONFIGURATIONS = [
    (f"{page.relative_to(ROOT)} {number}", text)
    for page in [PAGE, *sorted(ROOT.glob("docs/*.md"))]
    for number, text in enumerate(
        re.findall(r"^```yaml\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    )
    if not text.startswith("model_list:")  # LiteLLM's
]


@pytest.mark.parametrize("text", [text for _, text in CONFIGURATIONS], ids=[name for name, _ in CONFIGURATIONS])
def test_each_piece_of_configuration_loads(text: str, tmp_path: Path) -> None:
    """A piece without models stands in a file that has one."""
    file = tmp_path / "config.yaml"
    head = "" if "\nmodels:" in text else "active_model: e\nmodels: {e: {runtime: echo}}\n"
    file.write_text(head + text, "utf-8")
    assert load(file, {}).notes == ()


def test_ci_runs_the_test_command_of_the_readme() -> None:
    commands = re.findall(r"^(scripts/\w+) ", TEXT.partition("```sh\n")[2].partition("```")[0], re.MULTILINE)
    assert commands == ["scripts/serve", "scripts/test"]
    script = (ROOT / ".ci/run").read_text("utf-8")
    assert '    scripts/test "$@" &&' in script
    assert "\ntests ||" in script
