"""Every block of commands in docs/cli.md runs in an empty folder, and every option and command has a place there."""

import re

import pytest
import typer.main
from conftest import ROOT
from test_readme import base_model, environment, run  # noqa: F401  two fixtures and a function

from mlx_rvqspec.cli import app

PAGE = (ROOT / "docs" / "cli.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.S)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.split("\n")[0][:30])
def test_a_block_of_commands_works(block, environment, tmp_path):  # noqa: F811
    run(f"set -e\n{block}", environment, tmp_path)
    for name in re.findall(r"(?:-o|>) (\w+\.\w+)", block):
        assert (tmp_path / name).stat().st_size > 0


def test_every_command_has_a_place():
    commands = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]
    missing = [name for name in commands if f"mlx-tts {name}" not in PAGE and f"`{name}" not in PAGE]
    assert not missing, f"docs/cli.md does not mention {missing}"


def test_the_exit_codes_are_those_of_the_readme():
    def table(text: str) -> list[str]:
        return re.findall(r"^\| (\d+) \|", text, re.M)

    assert table(PAGE) == table((ROOT / "README.md").read_text())
