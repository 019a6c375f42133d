"""Every block of commands in docs/ runs in an empty folder; what is named there exists, and what exists has a place."""

import re

import pytest
import typer.main
from conftest import ROOT
from test_readme import base_model, environment, run  # noqa: F401  two fixtures and a function

from mlx_rvqspec.cli import app

PAGE = (ROOT / "docs" / "cli.md").read_text()
README = (ROOT / "README.md").read_text()
PAGES = {path.name: path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))}
BLOCKS = [block for page in PAGES.values() for block in re.findall(r"```sh\n(.*?)```", page, re.S)]
COMMANDS = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]
MISSPELT = {"--speker"}  # shown with what it is answered
OTHERS = {"--install-completion", "--show-completion", "--version", "--help"}


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.split("\n")[0][:30])
def test_a_block_of_commands_works(block, environment, tmp_path):  # noqa: F811
    (tmp_path / "texts.jsonl").write_text('{"text": "Hello."}')
    run(f"set -e\n{block}", environment, tmp_path)
    for name in re.findall(r"(?:-o|>) (\w+\.\w+)", block):
        assert (tmp_path / name).stat().st_size > 0


def test_every_command_has_a_place():
    missing = [name for name in COMMANDS if f"mlx-tts {name}" not in PAGE and f"`{name}" not in PAGE]
    assert not missing, f"docs/cli.md does not mention {missing}"


def options_of(command) -> set[str]:
    inner = [part for name in getattr(command, "commands", {}).values() for part in options_of(name)]
    return {name for option in command.params for name in option.opts if name.startswith("--")} | {*inner}


def test_every_option_of_speak_has_a_place():
    missing = [name for name in options_of(COMMANDS["speak"]) if name not in PAGE + README + PAGES["long_texts.md"]]
    assert not missing, f"no page mentions {missing}"


@pytest.mark.parametrize("name", ["README.md", *PAGES])
def test_every_option_that_a_page_names_exists(name):
    known = OTHERS.union(*map(options_of, COMMANDS.values()))
    scripts = "".join(path.read_text() for path in (ROOT / "bench").glob("*.py"))
    known |= set(re.findall(r'add_argument\("(--[a-z-]+)"', scripts))
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGES.get(name, README)))
    assert named <= known | MISSPELT, named - known


def test_every_page_that_has_python_is_known():
    """Blocks of Python are run from README.md only (tests/test_readme.py): none hides elsewhere."""
    assert [name for name, page in PAGES.items() if "```python" in page] == []


def test_the_exit_codes_are_those_of_the_readme():
    def table(text: str) -> list[str]:
        return re.findall(r"^\| (\d+) \|", text, re.M)

    assert table(PAGE) == table((ROOT / "README.md").read_text())
