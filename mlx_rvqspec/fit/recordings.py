"""What a drafter is fitted on where there are recordings: frames in the context of speech that was not made up.

The CodeDecoder is led through the recorded codes, with the words they say as its text. Code 0 of a frame is the
recorded one; the other 15 are what the model itself chooses there, since that is what a drafter has to foresee.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import mlx.core as mx

from ..audio import FORMATS
from ..encoders import Encoders
from ..model import Qwen3TTS
from ..prompt import build_prompt, choose_voice, embed_prompt
from ..recording import read_recording
from .collect import BATCH, Frames, all_voices, noise_of, observe, read_text

SUFFIXES = tuple(f".{name}" for name in FORMATS if name != "pcm")

Recording = tuple[Path, str]  # a sound file and its words


def find_recordings(folder: Path) -> list[Recording]:
    """The sound files of a folder by name, each with the words in the .txt file beside it.

    Raises ValueError where there are fewer than two, or one has no words.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder; expected one with recordings in it")
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    if len(paths) < 2:
        raise ValueError(f"{folder} has {len(paths)} recordings ({', '.join(SUFFIXES)}); expected two or more")
    return [(path, _words(path)) for path in paths]


def _words(path: Path) -> str:
    beside = path.with_suffix(".txt")
    text = " ".join(read_text(beside).split()) if beside.is_file() else ""
    if not text:
        raise ValueError(f"the words of {path} are missing; expected them in {beside}")
    return text


def listen(
    model: Qwen3TTS,
    recordings: Sequence[Recording],
    num_frames: int,
    *,
    seed: int,
    progress: Callable[[int], None] = lambda done: None,
) -> Frames:
    """At least ``num_frames`` frames, or all that the recordings have; ``collect`` with recordings for texts.

    A Base model takes on the speaker of each recording, others lend it their own in turn.
    Raises ModelError where the checkpoint has no speech encoder, ValueError for a file that is no recording.
    """
    encoders, parts, done = Encoders(model.config, model.folder), [], 0
    for number, (path, words) in enumerate(recordings):
        if done >= num_frames:
            break
        audio, sample_rate = read_recording(path)
        if model.config.tts_model_type == "base":
            voice = choose_voice(model.config, clone=encoders.make_voice(audio, sample_rate))
        else:
            voices = all_voices(model.config)
            voice = voices[number % len(voices)]
        recorded = mx.array(encoders.encode(audio, sample_rate))
        prompt = build_prompt(model.config, model.tokenizer, words, voice, model.text_feed)
        hidden = _lead_through(model, *embed_prompt(prompt, model), recorded)
        keys = mx.stack([mx.full(len(recorded), seed + number), mx.arange(len(recorded))], axis=1).astype(mx.uint32)
        parts.append((hidden, _choose_again(model, hidden, recorded, keys), keys))
        mx.eval(parts[-1])  # a recording at a time
        done += len(recorded)
        progress(done)
    hidden, codes, keys = (mx.concatenate(list(part)) for part in zip(*parts))
    return observe(model, hidden, codes, keys)


def _lead_through(model: Qwen3TTS, prefill: mx.array, trailing: mx.array, codes: mx.array) -> mx.array:
    """The frame hiddens [T, W] had the model spoken codes [T, 16]; prefill, trailing: from ``embed_prompt``."""
    T, decoder = len(codes), model.code_decoder
    text = trailing[mx.minimum(mx.arange(T - 1), len(trailing) - 1)]
    inputs = mx.concatenate([prefill, (model.embed_frame(codes[:-1]) + text)[None]], axis=1)
    cache = decoder.new_cache(1, inputs.shape[1], inputs.dtype)
    hidden, _ = decoder(inputs, cache, mx.zeros((1,), dtype=mx.int32))
    return hidden[0, -T:]


def _choose_again(model: Qwen3TTS, hidden: mx.array, codes: mx.array, keys: mx.array) -> mx.array:
    """codes [T, 16] with codes 1 to 15 as plain decoding chooses them behind code 0."""
    decoder, choice, chosen = model.multi_code_decoder, model.sampling.rest, []
    for begin in range(0, len(codes), BATCH):
        part = slice(begin, begin + BATCH)
        first = model.code_decoder.embed_codes(codes[part, :1])[:, 0]
        rest = decoder.decode_frame(hidden[part], first, noise_of(model, keys[part]), choice.form, choice.knobs)
        chosen.append(mx.concatenate([codes[part, :1], rest], axis=1))
        mx.eval(chosen[-1])  # a batch at a time, see ``observe``
    return mx.concatenate(chosen)
