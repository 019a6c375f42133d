"""Text that arrives in pieces: spoken as if it had been whole, from its first words on."""

import random

import numpy as np
import pytest
from conftest import TINY
from hypothesis import given, settings
from hypothesis import strategies as st
from test_passages import PIECES
from test_rounds_speech import engine as speculating

from mlx_rvqspec.config import read_config
from mlx_rvqspec.feed import Feed
from mlx_rvqspec.generate import Engine, load
from mlx_rvqspec.load import load_tokenizer
from mlx_rvqspec.sampling import Sampling
from mlx_rvqspec.text import speakable

TOKENIZER = load_tokenizer(TINY, read_config(TINY))
NUMERALS = ["1", "20", "1,200", "1984", "$5", "NZ$ 5", ".", ", ", " ", " x", " kg", " million", "-", ":30", "th", "s"]
NUMERALS += [
    " BBC",
    " No. ",
    "+4",
    "%",
    "a",
    "\n",
    "\n\n",
    "= = ",
    " & ",
    " + ",
    " Nov. ",
    " 5 May",
    "1/2",
    "U.S.",
    "p.m.",
]
TEXT = "Yes, I am here. Are you?"


@pytest.fixture(scope="module")
def engine() -> Engine:
    return load(TINY, compile=False)


def passages(pieces: list[str], passage_s: float = 2.0, in_words: bool = False) -> list[tuple[str, list[int]]]:
    """Text and tokens of each passage; what was certain must never be taken back."""
    feed, found, certain = Feed(TOKENIZER, passage_s, in_words=in_words), [], []
    more = iter([*pieces, None])
    while not feed.empty:
        while not feed.ended:
            piece = next(more)
            feed.close() if piece is None else feed.add(piece)
            assert feed.ids[: len(certain)] == certain
            certain = list(feed.ids)
        if speakable(feed.text):
            found.append((feed.text, feed.ids))
        certain = []
        last = feed.last
        feed.go_on()
        certain = list(feed.ids)
        while not feed.closed and not feed.ready and not feed.ended:
            piece = next(more)
            feed.close() if piece is None else feed.add(piece)
            certain = list(feed.ids)
        assert not last or feed.empty
    return found


@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=60), st.randoms(use_true_random=False))
def test_passages_do_not_depend_on_the_pieces(parts: list[str], rng: random.Random):
    text = "".join(parts)
    whole = passages([text])
    assert passages(list(text)) == whole
    cuts = sorted(rng.choices(range(len(text) + 1), k=5))
    assert passages([text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)])]) == whole
    spoken = "".join("".join(passage.split()) for passage, _ in whole)
    if speakable(text):
        assert [c for c in spoken if speakable(c)] == [c for c in compose(text) if speakable(c)]
    for passage, ids in whole:
        begin, end = "<|im_start|>assistant\n", "<|im_end|>\n<|im_start|>assistant\n"
        assert ids == TOKENIZER.encode(begin + passage + end).ids[3:-5]


@settings(deadline=None, max_examples=300)
@given(st.lists(st.sampled_from(NUMERALS), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_numerals_are_read_as_if_the_text_had_been_whole(parts: list[str], rng: random.Random):
    text = "".join(parts)
    whole = passages([text], in_words=True)
    assert passages(list(text), in_words=True) == whole
    cuts = sorted(rng.choices(range(len(text) + 1), k=5))
    assert passages([text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)])], in_words=True) == whole
    assert not any(c in "0123456789" for passage, _ in whole for c in passage)


def compose(text: str) -> str:
    return text.replace("e\u0301", "é")


def test_passages_end_at_sentences_and_paragraphs():
    found = passages(["It is so. " * 4, "\n", "\nNext, ", "then.\n \nLast"], 4.0)
    assert [text for text, _ in found] == ["It is so. It is so. It is so.", "It is so.", "Next, then.", "Last"]


@pytest.mark.parametrize("size", [1, 7, 100])
def test_codes_are_those_of_the_whole_text(engine: Engine, size: int):
    options = {"speaker": "ryan", "seed": 3, "sampling": Sampling(max_frames=12), "chunk_frames": 4}
    pieces = [TEXT[begin : begin + size] for begin in range(0, len(TEXT), size)]
    whole = engine.speak(TEXT, text_feed="stream", **options)
    chunks = list(engine.stream(iter(pieces), **options))
    np.testing.assert_array_equal(np.concatenate([chunk.codes for chunk in chunks]), whole.codes)
    np.testing.assert_array_equal(np.concatenate([chunk.audio for chunk in chunks]), whole.audio)
    assert [chunk.is_final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].finish_reason == whole.finish_reason and chunks[-1].stats.frames == len(whole.codes)


def test_pieces_are_spoken_by_speculation_as_by_plain_decoding():
    fast, options = speculating(), {"speaker": "ryan", "seed": 3, "sampling": Sampling(max_frames=8)}
    plain = fast.speak(TEXT, text_feed="stream", decode="plain", **options)
    pieces = fast.speak([TEXT[:9], TEXT[9:]], decode="spec", **options)
    assert pieces.stats.rounds < plain.stats.rounds
    np.testing.assert_array_equal(pieces.codes, plain.codes)
    np.testing.assert_array_equal(pieces.audio, plain.audio)


def test_speech_begins_before_the_text_is_complete(engine: Engine):
    asked = []

    def writer():
        for word in TEXT.split(" "):
            asked.append(word)
            yield word + " "

    stream = engine.stream(writer(), speaker="ryan", seed=3, chunk_frames=1)
    first = next(stream)
    assert len(first.codes) == 1 and 0 < len(asked) < len(TEXT.split(" "))
    stream.close()


def test_paragraphs_have_pauses_and_the_end_may_come_late(engine: Engine):
    options = {"speaker": "ryan", "seed": 3, "chunk_frames": 4, "paragraph_pause_s": 0.5}
    whole = engine.speak("Yes.\n\nStop now.", text_feed="stream", **options)
    chunks = list(engine.stream(["Yes.\n\nStop now.\n\n", "", "\n"], **options))
    np.testing.assert_array_equal(np.concatenate([chunk.codes for chunk in chunks]), whole.codes)
    assert sum(len(chunk.audio) for chunk in chunks) == len(whole.audio)
    assert chunks[-1].is_final and chunks[-1].finish_reason == whole.finish_reason
    assert chunks[-1].depths.shape == chunks[-1].codes.shape
    assert [a.passage for a in chunks[-1].stats.attempts] == [0, 1]


@pytest.mark.parametrize(
    "pieces, options, reason",
    [
        ([], {}, "text is empty"),
        (["", " \n"], {}, "text is empty"),
        (["..."], {}, "nothing to say"),
        (["a", 5], {}, "a piece of the text is int"),
        (["a\udce9"], {}, "not valid UTF-8"),
        (["a"], {"text_feed": "full"}, "need the whole text"),
        (["a"], {"on_runaway": "retry"}, "need the whole text"),
        (["a"], {"speaker": "cedar"}, "unknown speaker"),
    ],
)
def test_what_cannot_be_spoken_is_said(engine: Engine, pieces: list, options: dict, reason: str):
    with pytest.raises(ValueError, match=reason):
        list(engine.stream(pieces, **{"speaker": "ryan", **options}))
