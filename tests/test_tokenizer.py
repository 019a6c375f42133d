"""Text ids are those of the official tokenizer class, without its library."""

import json

import pytest
from conftest import ROOT, TINY

from mlx_rvqspec.config import read_config
from mlx_rvqspec.tokenizer import load_tokenizer

ROWS = json.loads((ROOT / "tests" / "golden" / "text_ids.json").read_text())


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(TINY, read_config(TINY))


def test_there_are_thirty_recorded_texts():
    assert len({row["text"] for row in ROWS}) == 30


@pytest.mark.parametrize("row", ROWS, ids=lambda row: ascii(row["text"])[:30])
def test_ids_equal_the_official_ones(tokenizer, row):
    assert tokenizer.encode(row["text"]).ids == row["ids"]


def test_nothing_is_said_on_loading(capfd):
    load_tokenizer(TINY, read_config(TINY))
    assert capfd.readouterr() == ("", "")
