"""Speech that does not end by itself: noticed at the same frame however it is made, and treated as asked."""

import mlx.core as mx
import numpy as np
import pytest
from conftest import TINY
from test_rounds_speech import random_drafter, uncompiled

from mlx_rvqspec import guard
from mlx_rvqspec.batch import Input
from mlx_rvqspec.commands.batch import Counts, keep, make
from mlx_rvqspec.commands.shared import silent
from mlx_rvqspec.generate import Engine, Speech
from mlx_rvqspec.guard import NUM_QUIET_KEPT, Piece, SilenceWatch, Trimmer, attempt_seed
from mlx_rvqspec.load import load_model
from mlx_rvqspec.manifest import Record, key_of, read_rows
from mlx_rvqspec.owner import owner
from mlx_rvqspec.sampling import Sampling
from mlx_rvqspec.spec_decode.drafter import Form
from mlx_rvqspec.utterance import GenerationError, Steps

RATE_HZ, SAMPLES = 12.5, 1920
PATIENCE = round(guard.PATIENCE_S * RATE_HZ)


def sound(levels: list[float]) -> np.ndarray:
    """Frames of noise with these RMS values."""
    noise = np.random.default_rng(0).standard_normal((len(levels), SAMPLES))
    noise /= np.sqrt(np.square(noise).mean(axis=1, keepdims=True))
    return (noise * np.array(levels)[:, None]).astype(np.float32).ravel()


def pieces(levels: list[float], size: int, reason: str) -> list[Piece]:
    found = []
    for begin in range(0, len(levels), size):
        part = levels[begin : begin + size]
        codes = np.arange(begin, begin + len(part))[:, None].repeat(16, 1)
        found.append(Piece(codes, codes, sound(part), None if begin + size < len(levels) else reason, 0.0))
    return found


def judged(levels: list[float], size: int, reason: str, trim: bool = False) -> tuple[int, str | None]:
    """How many frames are kept, and how they end."""
    watch, kept = SilenceWatch(RATE_HZ), []

    def watched():
        for piece in pieces(levels, size, reason):
            piece = watch.judge(piece)
            yield piece
            if piece.reason:
                return

    kept = [piece for piece in (map(Trimmer(watch).take, watched()) if trim else watched()) if piece]
    codes = np.concatenate([piece.codes for piece in kept])[:, 0]
    assert codes.tolist() == list(range(len(codes)))
    assert all(len(piece.audio) == SAMPLES * len(piece.codes) > 0 for piece in kept)
    assert [piece.reason for piece in kept[:-1]] == [None] * (len(kept) - 1)
    return len(codes), kept[-1].reason


@pytest.mark.parametrize("size", [1, 3, 4, 16, 100])
def test_silence_ends_speech_at_the_same_frame_at_every_chunk_size(size: int):
    speech, hush = [0.1] * 20, [0.0005] * (PATIENCE + 9)
    assert judged(speech + hush, size, "length") == (20 + PATIENCE, "silence")
    assert judged(speech + hush, size, "length", trim=True) == (20 + NUM_QUIET_KEPT, "silence")
    assert judged(hush, size, "length") == (PATIENCE, "silence")
    with pytest.raises(GenerationError, match="nothing but silence"):
        judged(hush, size, "length", trim=True)


@pytest.mark.parametrize("size", [1, 4, 100])
@pytest.mark.parametrize("trim", [False, True])
def test_a_pause_is_no_end_and_nothing_of_it_is_lost(size: int, trim: bool):
    levels = [0.0] * 10 + [0.1] * 5 + [0.0005] * (PATIENCE - 1) + [0.1] * 5 + [0.0] * 12
    assert judged(levels, size, "stop", trim) == (len(levels), "stop")
    whisper = [0.3] * 5 + [0.004] * 2 * PATIENCE  # 37 dB below the loudest
    assert judged(whisper, size, "stop", trim) == (len(whisper), "stop")


def test_speech_that_ends_without_a_sound_is_silence():
    assert judged([0.0005] * 6, 4, "stop") == (6, "silence")
    assert judged([0.0005] * 6, 4, "length") == (6, "length")  # the caller's limit


def test_seeds_of_attempts():
    seeds = [attempt_seed(7, attempt) for attempt in range(3)]
    assert seeds == [7, (7 + 2654435769) % 2**32, (7 + 2 * 2654435769) % 2**32]
    assert attempt_seed(2**32 - 1, 2) < 2**32


def endless(monkeypatch: pytest.MonkeyPatch, decode: str) -> Engine:
    """A model that never ends and is heard for three frames."""
    monkeypatch.setattr(guard, "PATIENCE_S", 0.4)
    drafter = random_drafter(Form(3, 1, True, 2, 4, 4, "noise")) if decode == "spec" else None
    engine = owner().run(lambda: Engine(load_model(TINY), uncompiled, drafter=drafter, num_nodes=16))
    steps = Steps(engine._model, Sampling(), uncompiled, drafter=drafter, num_nodes=16)
    without_end = steps.allowed & (mx.arange(steps.allowed.size) != steps.eos)
    mx.eval(without_end)  # here: an array is evaluated in the thread that made it
    steps.allowed = without_end

    def speech_step(codes, done):
        num_frames = codes.shape[1]
        levels = [0.1 if frame < 3 else 0.0 for frame in range(done, done + num_frames)]
        return mx.array(sound(levels)[None]), done + num_frames

    monkeypatch.setattr(engine._reader, "steps_for", lambda *_: steps)
    monkeypatch.setattr(engine._reader, "_speech_step", speech_step)
    monkeypatch.setattr(type(engine._model.speech_decoder), "initial_state", lambda *_: 0)
    return engine


@pytest.fixture(params=["plain", "spec"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Engine:
    return endless(monkeypatch, request.param)


def speak(engine: Engine, text: str = "OK", **options) -> Speech:
    return engine.speak(text, speaker="ryan", seed=3, chunk_frames=4, **options)


def test_each_policy(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    kept = speak(engine)
    assert (len(kept.codes), kept.finish_reason) == (3 + 5, "silence")
    cut = speak(engine, on_runaway="trim")
    assert (len(cut.codes), cut.finish_reason) == (3 + NUM_QUIET_KEPT, "silence")
    np.testing.assert_array_equal(cut.audio, kept.audio[: len(cut.audio)])
    with pytest.raises(GenerationError, match="'OK' did not end by itself but by silence"):
        speak(engine, on_runaway="error")
    with pytest.raises(ValueError, match="on_runaway is 'again'; expected one of keep, trim, retry, error"):
        speak(engine, on_runaway="again")


def test_a_retry_has_the_codes_of_its_own_seed_and_is_told(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    seeds = [attempt_seed(3, attempt) for attempt in range(3)]
    tried = speak(engine, on_runaway="retry")
    assert [(a.seed, a.frames, a.finish_reason) for a in tried.stats.attempts] == [(s, 8, "silence") for s in seeds]
    last = engine.speak("OK", speaker="ryan", seed=seeds[2])
    np.testing.assert_array_equal(tried.codes, last.codes)  # the last attempt is kept
    assert tried.finish_reason == "silence" and tried.stats.frames == 8
    assert (tried.stats.rounds == 8 * 15) == (tried.stats.decode == "plain")

    monkeypatch.setattr(guard, "PATIENCE_S", 100)
    limit = Sampling(max_frames=4)
    assert [a.seed for a in speak(engine, on_runaway="retry", sampling=limit).stats.attempts] == seeds
    calls = []
    judge = SilenceWatch.judge
    monkeypatch.setattr(
        SilenceWatch,
        "judge",
        lambda self, piece: calls.append(1) or judge(self, piece)._replace(reason=("length", "stop")[len(calls) - 1]),
    )
    second = speak(engine, on_runaway="retry", sampling=limit)
    assert [a.finish_reason for a in second.stats.attempts] == ["length", "stop"] and second.finish_reason == "stop"


@pytest.mark.parametrize("on_runaway", ["keep", "trim", "retry"])
def test_every_policy_gives_speculation_the_frames_of_plain(monkeypatch: pytest.MonkeyPatch, on_runaway: str):
    spec, plain = (speak(endless(monkeypatch, decode), on_runaway=on_runaway) for decode in ("spec", "plain"))
    assert (spec.stats.decode, plain.stats.decode) == ("spec", "plain")
    np.testing.assert_array_equal(spec.codes, plain.codes)
    np.testing.assert_array_equal(spec.audio, plain.audio)
    assert (spec.finish_reason, spec.stats.attempts) == (plain.finish_reason, plain.stats.attempts)


def test_text_in_pieces_is_watched_too(engine: Engine):
    """All policies but a retry, which cannot be had where nothing can be taken back."""
    options = {"speaker": "ryan", "seed": 3, "chunk_frames": 4}
    kept = list(engine.stream(["O", "K"], **options))
    assert sum(len(chunk.codes) for chunk in kept) == 8 and kept[-1].finish_reason == "silence"
    cut = list(engine.stream(["O", "K"], on_runaway="trim", **options))
    assert sum(len(chunk.codes) for chunk in cut) == 3 + NUM_QUIET_KEPT
    with pytest.raises(GenerationError, match="'OK' did not end by itself but by silence"):
        list(engine.stream(["O", "K"], on_runaway="error", **options))


def test_a_batch_follows_each_policy(engine: Engine):
    rows = [Input("OK", "ryan", seed=3), Input("Yes.", "ryan", seed=4)]
    for on_runaway, row in (("keep", 0), ("trim", 1), ("retry", 0)):
        made = engine.speak_batch(rows, on_runaway=on_runaway)[row]
        alone = engine.speak(rows[row].text, speaker="ryan", seed=rows[row].seed, on_runaway=on_runaway)
        assert isinstance(made, Speech)
        np.testing.assert_array_equal(made.codes, alone.codes)
        assert (made.finish_reason, made.stats.attempts) == (alone.finish_reason, alone.stats.attempts)
    for made in engine.speak_batch(rows, on_runaway="error"):
        assert isinstance(made, GenerationError) and "did not end by itself" in str(made)


def test_a_retry_hands_nothing_out_that_it_takes_back(engine: Engine):
    chunks = list(engine.stream("OK", speaker="ryan", seed=3, chunk_frames=2, on_runaway="retry"))
    assert sum(len(chunk.codes) for chunk in chunks) == 8 == chunks[-1].stats.frames
    assert [chunk.is_final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_a_long_text_goes_on_after_a_runaway_and_says_so(engine: Engine):
    speech = speak(engine, "One.\n\nTwo.")
    assert [(a.passage, a.finish_reason) for a in speech.stats.attempts] == [(0, "silence"), (1, "silence")]
    assert speech.finish_reason == "silence" and len(speech.codes) == 16


@pytest.mark.parametrize("on_runaway, runaways", [("keep", 1), ("trim", 0)])
def test_trimmed_silence_is_no_runaway_of_a_batch(engine: Engine, tmp_path, on_runaway: str, runaways: int):
    defaults = {"speaker": "ryan", "voice": None, "language": "auto", "instruct": None, "seed": 3}
    (row,), made, kept = read_rows(['{"text": "OK"}'], "wav", defaults), Counts(1), Counts(1)
    make(engine, [row], [row], {"on_runaway": on_runaway}, Record(tmp_path, ""), {}, made, silent)
    assert keep(Record(tmp_path, ""), row, key_of(row, {}), kept, on_runaway)
    assert (made.made, made.runaways, kept.kept, kept.runaways) == (1, runaways, 1, runaways)
