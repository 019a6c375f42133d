"""Texts spoken side by side: each as if alone, in order, one result or one error for each."""

import threading

import numpy as np
import pytest
from conftest import TINY
from test_rounds_speech import engine as speculating

from mlx_rvqspec.batch import Input
from mlx_rvqspec.generate import Engine, Speech, load
from mlx_rvqspec.sampling import Sampling
from mlx_rvqspec.utterance import GenerationError, Utterance

SHORT = Sampling(max_frames=8)
TEXTS = [
    Input("Hello.", "ryan", seed=3),
    Input("A text with rather more words in it.", "serena"),
    Input("Yes.", "ryan"),
]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return load(TINY, compile=False)


def alone(engine: Engine, item: Input, **options) -> Speech:
    seed = 5 if item.seed is None else item.seed
    return engine.speak(item.text, speaker=item.speaker, seed=seed, **options)


@pytest.mark.parametrize("text_feed", ["full", "stream"])
def test_a_row_has_the_codes_and_samples_of_a_run_alone(engine: Engine, text_feed: str):
    options = {"sampling": SHORT, "text_feed": text_feed}
    for item, speech in zip(TEXTS, engine.speak_batch(TEXTS, seed=5, **options)):
        expected = alone(engine, item, **options)
        assert isinstance(speech, Speech)
        np.testing.assert_array_equal(speech.codes, expected.codes)
        np.testing.assert_array_equal(speech.audio, expected.audio)
        assert (speech.finish_reason, speech.stats.seed) == (expected.finish_reason, expected.stats.seed)
        assert speech.stats.frames == expected.stats.frames and speech.stats.rounds == expected.stats.rounds


def test_speculation_with_rows_at_different_slots():
    fast = speculating()
    for item, speech in zip(TEXTS, fast.speak_batch(TEXTS, seed=5, sampling=SHORT, decode="spec")):
        expected = alone(fast, item, sampling=SHORT, decode="plain")
        assert isinstance(speech, Speech)
        np.testing.assert_array_equal(speech.codes, expected.codes)
        assert speech.stats.rounds < expected.stats.rounds


def test_rows_that_have_ended_are_left_out(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    """Hello. ends after 7 frames: a text that goes on has a batch of its own from then on."""
    widths = []
    enqueue = Utterance._enqueue
    monkeypatch.setattr(
        Utterance, "_enqueue", lambda self, frame: widths.append(len(self.rows)) or enqueue(self, frame)
    )
    pair = [TEXTS[0], Input("Yes.", "ryan", seed=3)]
    limit = Sampling(max_frames=10)
    hello, yes = engine.speak_batch(pair, sampling=limit)
    assert widths[0] == 2 and widths[-1] == 1
    assert isinstance(yes, Speech) and isinstance(hello, Speech) and len(hello.codes) == 7
    np.testing.assert_array_equal(yes.codes, alone(engine, pair[1], sampling=limit).codes)


def test_one_result_or_one_error_for_each_input_in_order(engine: Engine):
    inputs = [Input("", "ryan"), TEXTS[0], Input("Hi", "cedar"), Input("Hi", "ryan", seed=-1)]
    blank, hello, unknown, seed = engine.speak_batch(inputs, batch_size=1)
    assert isinstance(hello, Speech) and len(hello.codes) == 7
    assert [str(error).split(";")[0] for error in (blank, unknown, seed)] == [
        "text is empty",
        "unknown speaker 'cedar'",
        "seed is -1",
    ]
    assert engine.speak_batch([]) == []
    for options in ({"batch_size": 0}, {"on_runaway": "no"}, {"decode": "spec"}):
        with pytest.raises(ValueError):
            engine.speak_batch(["Hi"], **options)


def test_a_row_that_breaks_leaves_the_others_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    sound = engine._reader._sound

    def broken(frames, chunk_frames, state, number):
        if len(frames) == 7:  # Hello. whole
            raise GenerationError("audio from frame 0 on is not finite")
        return sound(frames, chunk_frames, state, number)

    monkeypatch.setattr(engine._reader, "_sound", broken)
    hello, other, _ = engine.speak_batch(TEXTS, seed=5, sampling=SHORT)
    assert isinstance(hello, GenerationError) and isinstance(other, Speech)


def test_long_texts_and_retries_are_those_of_speak(engine: Engine):
    item = Input("Hello.\n\nWell, yes.", "ryan", seed=3)
    (speech,) = engine.speak_batch([item], sampling=SHORT, on_runaway="retry")
    expected = alone(engine, item, sampling=SHORT, on_runaway="retry")
    assert isinstance(speech, Speech)
    np.testing.assert_array_equal(speech.codes, expected.codes)
    assert [a.seed for a in speech.stats.attempts if a.passage == 0] == [3]
    whole = alone(engine, item, sampling=Sampling(max_frames=20))
    (speech,) = engine.speak_batch([item], sampling=Sampling(max_frames=20))
    assert isinstance(speech, Speech) and speech.stats.attempts == whole.stats.attempts
    np.testing.assert_array_equal(speech.audio, whole.audio)
    (error,) = engine.speak_batch([item], sampling=SHORT, on_runaway="error")
    assert isinstance(error, GenerationError) and "did not end by itself" in str(error)


def test_other_requests_get_their_turn(engine: Engine):
    done = []
    batch = threading.Thread(
        target=lambda: done.append(engine.speak_batch(TEXTS, seed=5, sampling=Sampling(max_frames=12))) or done
    )
    batch.start()
    engine.speak("Hi", speaker="ryan", seed=1, sampling=Sampling(max_frames=2))
    assert not done
    batch.join()
    assert all(isinstance(speech, Speech) for speech in done[0])
