"""Numerals, units and letters in words: the table of what is read how, and what must hold for any text."""

import json
import shutil
import time
from pathlib import Path

import pytest
from conftest import TINY
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_rvqspec.config import ModelError, read_config
from mlx_rvqspec.english import in_words
from mlx_rvqspec.load import load_tokenizer
from mlx_rvqspec.prompt import build_prompt, choose_voice

READ = {
    "I count 1 2 3 4 5.": "I count one two three four five.",
    "1, 2, and 3.": "one, two, and three.",
    "Call 555-0100, 1,200 kg, 3.14, 2026-11-29": "Call five five five, zero one zero zero, "
    "one thousand two hundred kilograms, three point one four, November twenty ninth twenty twenty six",
    "+49 170 1234567": "plus four nine, one seven zero, one two three four five six seven",
    "007 or 0": "zero zero seven or zero",
    "In 1984, 1,984 of 1905 and 2005 in 1900": "In nineteen eighty four, one thousand nine hundred eighty four of "
    "nineteen oh five and two thousand five in nineteen hundred",
    "2012 kg, 1500 m": "two thousand twelve kilograms, one thousand five hundred metres",
    "the 1990s, the 80s": "the nineteen nineties, the eighties",
    "1st, 22nd, 100th, 5th-8th": "first, twenty second, one hundredth, fifth-eighth",
    "at 3:30, 12:05, 9:00 or 17:00": "at three thirty, twelve oh five, nine o'clock or seventeen hundred",
    "10:30:15": "ten thirty fifteen",
    "$5 million, $1.50, $1, £3.01, €2.5": "five million dollars, one dollar and fifty cents, one dollar, "
    "three pounds and one pence, two point five euros",
    "-5 °C, 1 m, 50% and 16GB": "minus five degrees Celsius, one metre, fifty percent and sixteen gigabytes",
    "10-12 men, 4x4, No. 5": "ten to twelve men, four by four, number five",
    "version 3.11.7": "version three point eleven point seven",
    "MP3, B2B, 5'10\"": "em pee three, bee two bee, five ten\"",
    "The BBC and TVs in the USA, e.g. at 5 p.m.": "The bee bee see and tee vees in the you ess ay, for example "
    "at five pee em",
    "the 97.5th": "the ninety seven point fifth",
    "1ST, 3RD, Henry VIII": "first, third, Henry eight",
    "the U.S., J. K. and D.C.": "the you ess, jay. kay. and dee see",
    "DON'T, I'M, TODAY'S, MR. SMITH, HMM": "DON'T, I'M, TODAY'S, MR. SMITH, HMM",
    "$1.2bn, $5M, $10 m, US$5, -$5, $.50, 10€": "one point two billion dollars, five million dollars, ten million "
    "dollars, "
    "five you ess dollars, minus five dollars, fifty cents, ten euros",
    "$5-$10, $3-4 million": "five to ten dollars, three to four million dollars",
    "1990-1995, mid-1990s, the 1900s": "nineteen ninety to nineteen ninety five, mid-nineteen nineties, the "
    "nineteen hundreds",
    "11/29/2026, 29/11/2026, Nov 29, 2026, 5 May": "November twenty ninth twenty twenty six, November twenty ninth "
    "twenty "
    "twenty six, November twenty ninth, twenty twenty six, fifth of May",
    "9am-5pm, 8:30-9:30, 5:00pm, 4 PM": "nine ay em to five pee em, eight thirty to nine thirty, five pee em, four "
    "pee em",
    "50%-60%, 24/7, 9/11": "fifty to sixty percent, twenty four seven, nine eleven",
    "1/2 cup, 2 1/2, 1½ and ¾": "one half cup, two and a half, one and a half and three quarters",
    "(555) 123-4567, 1-800-555-0199, 020 7946 0958": "five five five, one two three, four five six seven, one, "
    "eight zero "
    "zero, five five five, zero one nine nine, zero two zero, seven nine four six, zero nine five eight",
    "AT&T, Q&A, 5&6": "ay tee and tee, cue and ay, five and six",
    "2+2=4, 3 + 4, C++, 18+": "two plus two equals four, three plus four, see plus plus, eighteen plus",
    "10 000, 5-kg, 50 m², 30 mins, 5 s": "ten thousand, five kilograms, fifty square metres, thirty minutes, five "
    "seconds",
    "#5, Fig. 3, pp. 10-12, .5": "number five, figure three, pages ten to twelve, zero point five",
    "Plan B & C": "Plan bee and see",
    "1,000,000 and 1234567": "one million and one million two hundred thirty four thousand five hundred sixty seven",
    "1,2001": "one,two thousand one",
    "1" * 20: " ".join(["one"] * 20),
}  # fmt: skip


@pytest.mark.parametrize("text", READ)
def test_what_is_read(text: str):
    assert in_words(text) == READ[text]


@pytest.mark.parametrize(
    "text", ["Hello, I am here. OK? STOP. NASA's A-team", "It's a fox; well-known: yes!", "Ünïcode ² ٣ 五"]
)
def test_what_stays(text: str):
    assert in_words(text) == text


@settings(deadline=None, max_examples=1000)
@given(st.text("0123456789.,-:/$£%°+x'@& aABs", max_size=40))
def test_no_digit_is_left_or_lost(text: str):
    words = in_words(text)
    assert not set(words) & set("0123456789")
    assert bool(words.strip()) == bool(text.strip())


@pytest.mark.parametrize("part", ["1", "9,99", "1-", "0 ", "$", "1.", "+1 ", "12:", "x1", "BC", "a.m.", "1/", "May 5 "])
def test_nothing_takes_long(part: str):
    begin = time.perf_counter()
    in_words(part * (3000 // len(part)))
    assert time.perf_counter() - begin < 3  # a tenth of a second on a quiet machine


def folder_that_reads(tmp_path: Path, reader: object) -> Path:
    folder = shutil.copytree(TINY, tmp_path / "model", copy_function=shutil.copy)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"text_reader": reader}))
    return folder


def test_only_a_folder_that_says_so_reads_in_words(tmp_path: Path):
    config, reading = read_config(TINY), read_config(folder_that_reads(tmp_path, "english"))
    tokenizer, voice = load_tokenizer(TINY, config), choose_voice(config, config.speakers[0])
    for feed in ("full", "stream"):
        as_written = build_prompt(config, tokenizer, "I have 5.", voice, feed)
        assert as_written != build_prompt(config, tokenizer, "I have five.", voice, feed)
        assert build_prompt(reading, tokenizer, "I have 5.", voice, feed) == build_prompt(
            config, tokenizer, "I have five.", voice, feed
        )


def test_an_unknown_reader_is_refused(tmp_path: Path):
    with pytest.raises(ModelError, match="text_reader is 'french'; expected 'english' or none"):
        read_config(folder_that_reads(tmp_path, "french"))
