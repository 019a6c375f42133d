"""Passages that go on from the ones before: the prompt is what the model has seen, whatever way it is decoded."""

import numpy as np
import pytest
from conftest import TINY
from test_clone import BASE, recorded
from test_rounds_speech import engine as speculating

from mlx_rvqspec.batch import Input
from mlx_rvqspec.generate import Engine, Speech, load
from mlx_rvqspec.load import load_model
from mlx_rvqspec.owner import owner
from mlx_rvqspec.passages import Passage, split
from mlx_rvqspec.prompt import build_prompt, choose_voice, embed_prompt
from mlx_rvqspec.reading import Context, Reader
from mlx_rvqspec.sampling import Sampling
from mlx_rvqspec.utterance import Line, Steps, Utterance, speak_line

TEXT = "Hello.\n\nYes, I am.\n\nCome in."
GREEDY = Sampling(do_sample=False, subtalker_do_sample=False, repetition_penalty=1.0, max_frames=9)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return load(TINY, compile=False)


@pytest.fixture
def four_frames(monkeypatch: pytest.MonkeyPatch):
    """Every passage ends by itself after four frames."""
    frame = Utterance._frame

    def ended(self, line, number, *more):
        made = frame(self, line, number, *more)
        return made if made.reason == "length" else made._replace(reason="stop" if number == 4 else None)

    monkeypatch.setattr(Utterance, "_frame", ended)


def codes_of(model, text: str, voice, feed: str, spoken: np.ndarray | None, num_frames: int) -> np.ndarray:
    prompt = build_prompt(model.config, model.tokenizer, text, voice, feed, spoken)
    line, steps = Line(*embed_prompt(prompt, model), 0, num_frames), Steps(model, GREEDY, lambda function: function)
    return np.stack([frame.codes for frame in speak_line(steps, line, GREEDY)])


@pytest.mark.parametrize("feed", ["full", "stream"])
@pytest.mark.parametrize("folder", ["tiny_customvoice", "tiny_base"])
def test_a_prompt_with_spoken_frames_is_the_middle_of_one_pass(feed: str, folder: str):
    """What the model says after its own first frames, put into its prompt, is what it says when it goes on."""
    model = load_model(TINY.with_name(folder))
    clone = None
    if folder == "tiny_base":
        clone = load(BASE, compile=False).make_voice(recorded()["codec.enc_wav"], 24_000, text="A small reference.")
    voice = choose_voice(model.config, None if clone else "ryan", clone=clone)
    text = "Well, yes, that is a text of several words."
    whole = codes_of(model, text, voice, feed, None, 9)
    for num_spoken in (1, 5):
        rest = codes_of(model, text, voice, feed, whole[:num_spoken], 9 - num_spoken)
        np.testing.assert_array_equal(rest, whole[num_spoken:])


def test_the_context_is_the_last_passages_that_ended_by_themselves():
    first, second, third = split("你好。\n\nHello.\n\nYes.")
    codes = [np.full((number, 16), number) for number in (1, 2, 3)]
    context = Context(2)
    assert context.codes is None and context.text_with(first) == "你好。"
    context.add(first, codes[0], "stop")
    context.add(second, codes[1], "stop")
    assert context.text_with(third) == "你好。 Hello. Yes." and context.codes[:, 0].tolist() == [1, 2, 2]
    context.add(third, codes[2], "stop")
    assert context.codes[:, 0].tolist() == [2, 2, 3, 3, 3]
    context.add(first, codes[0], "silence")
    assert context.codes is None and context.text_with(second) == "Hello."
    context.add(Passage(0, 3, "你好。", 0.0), codes[0], "stop")
    assert context.text_with(Passage(3, 6, "再见。", 0.0)) == "你好。再见。"  # nothing was between them
    nothing = Context(0)
    nothing.add(first, codes[0], "stop")
    assert nothing.codes is None


def speak(engine: Engine, text: str = TEXT, **options) -> Speech:
    return engine.speak(text, speaker="ryan", seed=3, **{"carry": 1, "sampling": Sampling(max_frames=30), **options})


def test_the_first_passage_is_as_ever_and_the_next_hears_it(engine: Engine):
    alone, carried = speak(engine, carry=0), speak(engine)
    first = carried.stats.attempts[0]
    assert first == alone.stats.attempts[0] and first.finish_reason == "stop"
    np.testing.assert_array_equal(carried.codes[: first.frames], alone.codes[: first.frames])
    assert carried.codes.tolist() != alone.codes.tolist()
    # passage 1 by hand: its own noise, behind the text and frames of passage 0
    model, seconds = engine._model, carried.stats.attempts[1].frames
    voice = choose_voice(model.config, "ryan")
    spoken = carried.codes[: first.frames]
    prompt = build_prompt(model.config, model.tokenizer, "Hello. Yes, I am.", voice, engine.text_feed, spoken)
    line = owner().run(lambda: Line(*embed_prompt(prompt, model), 3, seconds))
    sampling = Sampling(max_frames=30)
    steps = engine._reader.steps_for(sampling, "plain")
    expected = owner().run(lambda: np.stack([f.codes for f in speak_line(steps, line, sampling)]))
    np.testing.assert_array_equal(carried.codes[first.frames : first.frames + seconds], expected)


@pytest.mark.usefixtures("four_frames")
@pytest.mark.parametrize("text_feed", ["full", "stream"])
def test_speculation_streams_and_batches_give_the_same(text_feed: str):
    fast, options = speculating(), {"carry": 2, "text_feed": text_feed}
    plain = speak(fast, decode="plain", **options)
    spec = speak(fast, decode="spec", **options)
    np.testing.assert_array_equal(spec.codes, plain.codes)
    np.testing.assert_array_equal(spec.audio, plain.audio)
    chunks = list(fast.stream(TEXT, speaker="ryan", seed=3, decode="spec", chunk_frames=3, **options))
    np.testing.assert_array_equal(np.concatenate([chunk.codes for chunk in chunks]), plain.codes)
    assert np.abs(np.concatenate([chunk.audio for chunk in chunks]) - plain.audio).max() < 1e-3
    rows = [Input(TEXT, "ryan", seed=3), Input("Yes.\n\nNo.", "serena", seed=1)]
    batched, other = fast.speak_batch(rows, decode="spec", **options)
    assert isinstance(batched, Speech) and isinstance(other, Speech) and len(other.codes) == 8
    np.testing.assert_array_equal(batched.codes, plain.codes)
    assert batched.stats.attempts == plain.stats.attempts and [a.frames for a in plain.stats.attempts] == [4, 4, 4]


@pytest.mark.usefixtures("four_frames")
def test_a_limit_and_a_retry_hold_with_a_context(engine: Engine):
    whole = speak(engine)
    cut = Sampling(max_frames=len(whole.codes) - 2)
    np.testing.assert_array_equal(speak(engine, sampling=cut).codes, whole.codes[:-2])
    (batched,) = engine.speak_batch([Input(TEXT, "ryan", seed=3)], sampling=cut, carry=1)
    assert isinstance(batched, Speech) and batched.finish_reason == "length"
    np.testing.assert_array_equal(batched.codes, whole.codes[:-2])
    cut = Sampling(max_frames=6)  # within passage 1, which is tried three times
    again = speak(engine, on_runaway="retry", sampling=cut)
    assert [attempt.passage for attempt in again.stats.attempts] == [0, 1, 1, 1]
    (batched,) = engine.speak_batch([Input(TEXT, "ryan", seed=3)], on_runaway="retry", carry=1, sampling=cut)
    assert isinstance(batched, Speech)
    np.testing.assert_array_equal(batched.codes, again.codes)


@pytest.mark.usefixtures("four_frames")
def test_what_is_kept_is_bounded(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    """However many passages there are, no prompt holds more than the last one and its own."""
    lengths, spoken, row = [], [], Reader.row

    def noted(self, job, number, seed, max_frames, context):
        spoken.append(0 if context.codes is None else len(context.codes))
        made = row(self, job, number, seed, max_frames, context)
        lengths.append(made.line.prefill.shape[1])
        return made

    monkeypatch.setattr(Reader, "row", noted)
    speak(engine, "\n\n".join(["Yes, I am."] * 6), carry=1)
    assert spoken == [0, 4, 4, 4, 4, 4] and len(set(lengths[1:])) == 1


@pytest.mark.parametrize(
    "text, carry, message",
    [(TEXT, -1, "carry is -1; expected 0 to 8"), (TEXT, 9, "carry is 9"), (["Hello."], 1, "need the whole text")],
)
def test_what_cannot_be_carried_is_said_at_the_call(engine: Engine, text, carry: int, message: str):
    with pytest.raises(ValueError, match=message):
        engine.stream(text, speaker="ryan", carry=carry)
