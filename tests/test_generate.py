"""Seeds that hold, streams that equal whole utterances, and an engine that threads and early closes leave intact."""

import asyncio
import itertools
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlx_rvqspec import cache
from mlx_rvqspec.generate import Engine, load
from mlx_rvqspec.layers import lay_out
from mlx_rvqspec.load import load_model
from mlx_rvqspec.prompt import build_prompt, choose_voice, embed_prompt
from mlx_rvqspec.sampling import Sampling
from mlx_rvqspec.utterance import GenerationError, Line, Steps, Utterance, speak_line

GOLDEN = Path(__file__).parent / "golden" / "tiny_customvoice"
TEXT = "Hello there."
SHORT = Sampling(max_frames=7)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return load(GOLDEN, compile=False)


def codes(engine: Engine, seed: int, max_frames: int = 5) -> list[list[int]]:
    return engine.speak(TEXT, speaker="ryan", seed=seed, sampling=Sampling(max_frames=max_frames)).codes.tolist()


def test_seed_holds_in_every_thread_and_process(engine: Engine) -> None:
    first = codes(engine, 1)
    assert codes(engine, 2) != first
    assert codes(engine, 1) == first
    with ThreadPoolExecutor(3) as pool:
        jobs = [pool.submit(codes, engine, seed) for seed in (1, 2, 1)]
        one, two, again = (job.result() for job in jobs)
    assert one == again == first != two

    async def in_thread() -> list[list[int]]:
        return await asyncio.to_thread(codes, engine, 1)

    assert asyncio.run(in_thread()) == first
    program = (
        f"from tests.test_generate import codes, load, GOLDEN; print(codes(load(GOLDEN, compile=False), 1) == {first})"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_longer_runs_begin_with_shorter_ones(engine: Engine) -> None:
    """Noise belongs to (seed, frame): neither the length limit nor earlier requests move it."""
    assert codes(engine, 6, 7)[:3] == codes(engine, 6, 3)


def test_stream_equals_speak_at_every_chunk_size(engine: Engine) -> None:
    whole = engine.speak(TEXT, speaker="ryan", seed=6, sampling=SHORT)
    assert whole.finish_reason == "length" and len(whole.audio) == 1920 * len(whole.codes) == 1920 * 7
    for chunk_frames in (1, 2, 3, 7, 8):
        chunks = list(engine.stream(TEXT, speaker="ryan", seed=6, sampling=SHORT, chunk_frames=chunk_frames))
        assert [chunk.is_final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
        assert [len(chunk.codes) for chunk in chunks[:-1]] == [chunk_frames] * (len(chunks) - 1)
        np.testing.assert_array_equal(np.concatenate([chunk.codes for chunk in chunks]), whole.codes)
        audio = np.concatenate([chunk.audio for chunk in chunks])
        assert audio.shape == whole.audio.shape
        # random weights amplify rounding (see test_speech_decoder); real seams would be of the signal's own size
        assert np.abs(audio - whole.audio).max() < 1e-3
        assert chunks[-1].stats.frames == 7 and chunks[-1].finish_reason == "length"


def test_first_chunk_comes_before_the_rest_is_made(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    enqueued = []
    enqueue = Utterance._enqueue
    monkeypatch.setattr(Utterance, "_enqueue", lambda self, frame: enqueued.append(frame) or enqueue(self, frame))
    stream = engine.stream(TEXT, speaker="ryan", seed=6, sampling=SHORT, chunk_frames=2)
    next(stream)
    assert len(enqueued) <= 2 + Utterance.ahead + 1
    stream.close()


def test_closed_and_interleaved_streams_leave_no_trace(engine: Engine) -> None:
    def stream(seed: int):
        return engine.stream(TEXT, speaker="ryan", seed=seed, sampling=SHORT, chunk_frames=2)

    solo = {seed: [chunk.codes.tolist() for chunk in stream(seed)] for seed in (1, 2)}
    half = stream(1)
    next(half)
    half.close()
    pairs = itertools.zip_longest(stream(1), stream(2))
    together = [(a.codes.tolist() if a else None, b.codes.tolist() if b else None) for a, b in pairs]
    assert [a for a, _ in together if a] == solo[1] and [b for _, b in together if b] == solo[2]


def test_a_stream_may_change_threads(engine: Engine) -> None:
    chunks = engine.stream(TEXT, speaker="ryan", seed=1, sampling=SHORT, chunk_frames=2)
    made = [next(chunks)]
    with ThreadPoolExecutor(1) as pool:
        made += pool.submit(list, chunks).result()
    assert np.concatenate([chunk.codes for chunk in made]).tolist() == codes(engine, 1, 7)


def test_eight_threads_at_once_get_their_own_speech(engine: Engine) -> None:
    solo = {seed: codes(engine, seed, 3) for seed in range(8)}
    found: dict[int, list[list[int]]] = {}
    threads = [threading.Thread(target=lambda s=s: found.update({s: codes(engine, s, 3)})) for s in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == solo


@pytest.mark.parametrize("sampling", [Sampling(do_sample=False, subtalker_do_sample=False), Sampling()])
def test_compiled_frame_equals_the_step_by_step_oracle(sampling: Sampling) -> None:
    model = load_model(GOLDEN)
    prompt = build_prompt(model.config, model.tokenizer, TEXT, choose_voice(model.config, "ryan"), "full")
    prefill, trailing = embed_prompt(prompt, model)
    runs = []
    for wrap in (mx.compile, lambda function: function):
        steps = Steps(model, sampling, wrap)
        line = Line(prefill, trailing, 9, 6)
        runs.append([frame.codes.tolist() for frame in speak_line(steps, line, sampling)])
    assert runs[0] == runs[1]


def test_speech_that_does_not_end_is_bounded_by_its_text(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a limit of the caller's: a few seconds for two letters, however far the checkpoint would go."""
    steps = Steps(engine._model, Sampling(), wrap=lambda function: function)
    steps.allowed = steps.allowed & (mx.arange(steps.allowed.size) != steps.eos)
    mx.eval(steps.allowed)  # here: an array is evaluated in the thread that made it
    monkeypatch.setattr(engine._reader, "steps_for", lambda *_: steps)
    speech = engine.speak("OK", speaker="ryan", seed=1)
    assert speech.finish_reason == "length" and len(speech.codes) == 30
    assert len(engine.speak("OK", speaker="ryan", seed=1, sampling=Sampling(max_frames=40)).codes) == 40


def test_growing_the_cache_changes_nothing(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = codes(engine, 4, 12)
    monkeypatch.setattr(cache, "BLOCK", 4)
    assert codes(engine, 4, 12) == expected


def test_cache_is_updated_in_place() -> None:
    """One step over a large cache allocates about one step's worth, not a second cache."""
    model = load_model(GOLDEN)
    decoder = model.code_decoder
    no_pads, x = mx.zeros((1,), dtype=mx.int32), mx.zeros((1, 1, 64))
    state = [decoder.new_cache(1, 64 * 1024, mx.float32)]
    mx.eval(state)
    size = sum(array.nbytes for array in [*state[0].keys, *state[0].values])
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    for _ in range(3):
        hidden, state[0] = decoder(x, state[0], no_pads)
        mx.eval(hidden, state)
    assert mx.get_peak_memory() - before < size / 4


@pytest.mark.parametrize("part, factor", [("code_decoder.codec_head", mx.nan), ("multi_code_decoder.lm_head", mx.inf)])
def test_values_that_are_not_finite_name_their_frame(part: str, factor: float) -> None:
    broken = load(GOLDEN, compile=False)
    decoder, head = part.split(".")
    module = getattr(getattr(broken._model, decoder), head)
    module.weight = module.weight * factor
    lay_out(getattr(broken._model, decoder))
    mx.eval(module.weight)  # here: an array is evaluated in the thread that made it
    with pytest.raises(GenerationError, match="frame 0"):
        broken.speak(TEXT, speaker="ryan", seed=1, sampling=SHORT)


def test_whole_and_stepped_decode(engine: Engine) -> None:
    frames = np.random.default_rng(0).integers(0, 64, (9, 16))
    frames[3] = 0  # a legal code, not silence and not padding
    whole, state, parts = engine.decode(frames), engine.decoder_state(), []
    for part in (frames[:4], frames[4:5], frames[5:]):
        audio, state = engine.step(part, state)
        parts.append(audio)
    assert whole.shape == (9 * 1920,)
    assert np.abs(np.concatenate(parts) - whole).max() < 1e-3


@pytest.mark.parametrize(
    "options, message",
    [
        ({"speaker": "cedar"}, "unknown speaker 'cedar'; this model has serena"),
        ({"speaker": "rian"}, "did you mean ryan"),
        ({}, "no speaker given"),
        ({"speaker": "ryan", "language": "klingon"}, "unknown language 'klingon'"),
        ({"speaker": "ryan", "instruct": "slowly"}, "ignores instructions"),
        ({"speaker": "ryan", "seed": -1}, "seed is -1"),
        ({"speaker": "ryan", "seed": 1.5}, "seed is 1.5; expected a whole number"),
        ({"speaker": "ryan", "text_feed": "words"}, "text_feed is 'words'"),
        ({"speaker": "ryan", "decode": "fast"}, "decode is 'fast'"),
        ({"speaker": "ryan", "chunk_frames": 0}, "chunk_frames is 0"),
    ],
)
def test_bad_options_fail_at_the_call(engine: Engine, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        engine.stream(TEXT, **options)


@pytest.mark.parametrize("speaker", ["RYAN", " ryan ", "Ono Anna", "ono-anna"])
@pytest.mark.parametrize("language", ["en", "en-US", "English", "zh_CN", "Auto"])
def test_names_match_loosely(engine: Engine, speaker: str, language: str) -> None:
    voice = choose_voice(engine.config, speaker, language)
    assert voice.speaker in ("ryan", "ono_anna") and voice.language in ("english", "chinese", "auto")


@pytest.mark.parametrize(
    "text, message", [("", "text is empty"), (" \u200b\ufeff\n", "text is empty"), ("?!", "nothing")]
)
def test_text_without_speech_fails_at_the_call(engine: Engine, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        engine.stream(text, speaker="ryan")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_speaks(dtype: str) -> None:
    speech = load(GOLDEN, dtype=dtype, compile=False).speak(
        TEXT, speaker="ryan", seed=1, sampling=Sampling(max_frames=3)
    )
    assert 2 <= len(speech.codes) <= 3 and np.isfinite(speech.audio).all()
