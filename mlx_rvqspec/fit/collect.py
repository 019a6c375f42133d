"""What a drafter is fitted on: frames the model itself spoke, and what its decoders saw while it did.

Self-distillation: the codes are the model's own samples, decoded plainly, so no recordings are needed and they are
distributed as they will be in use.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np

from ..cache import Joined
from ..config import ModelConfig
from ..model import Qwen3TTS
from ..prompt import Voice, build_prompt, choose_voice, embed_prompt
from ..sampling import Sampling, frame_noise
from ..text import read_bytes
from ..utterance import Request, Steps

TEXTS_AT_ONCE = 32
FRAMES_PER_TEXT = 40  # about a sentence: so many texts are begun as the wanted frames need
MAX_TEXT_FRAMES = 250  # 20 s: a voice that does not find the end of one text must not fill the set with it
BATCH = 256  # frames per pass, so that memory stays flat


@dataclass(frozen=True)
class Frames:
    """M frames: all that is needed to decode them again.

    hidden: [M, W] inputs of slot 0; embedded: [M, 16, W] embeddings of the codes; codes: [M, 16] int32;
    states: [M, 16, D] MultiCodeDecoder states by slot; keys: [M, 2] uint32 seed and index of the frame.
    """

    hidden: mx.array
    embedded: mx.array
    codes: mx.array
    states: mx.array
    keys: mx.array

    def __len__(self) -> int:
        return self.codes.shape[0]

    def take(self, rows: mx.array | slice) -> "Frames":
        return Frames(self.hidden[rows], self.embedded[rows], self.codes[rows], self.states[rows], self.keys[rows])

    def batches(self, size: int = BATCH) -> Iterator["Frames"]:
        return (self.take(slice(begin, begin + size)) for begin in range(0, len(self), size))


def read_text(path: Path) -> str:
    """What a text file holds. Raises ValueError where it is not UTF-8."""
    try:
        with path.open("rb") as file:
            return read_bytes(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from None


def read_texts(path: Path) -> list[str]:
    """The texts of a file, one a line; empty lines and lines that begin with # are left out."""
    lines = (line.strip() for line in read_text(path).splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def all_voices(config: ModelConfig) -> list[Voice]:
    """Every speaker of the model, or the one voice it has without a name. Raises ValueError for a Base model."""
    return [choose_voice(config, speaker) for speaker in config.speakers or (None,)]


def collect(
    model: Qwen3TTS,
    texts: Sequence[str],
    num_frames: int,
    *,
    seed: int,
    sampling: Sampling | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Frames:
    """At least ``num_frames`` frames: the texts in turn, voice by voice, each with a seed of its own.

    sampling: the checkpoint's own when None; progress is told the number of frames so far.
    """
    sampling = sampling or model.sampling
    steps = Steps(model, sampling, wrap=lambda function: function)  # shapes vary: compiling would cost more
    voices, parts, done, number = all_voices(model.config), [], 0, 0
    while done < num_frames:
        numbers = range(number, number + min(TEXTS_AT_ONCE, -(-(num_frames - done) // FRAMES_PER_TEXT)))
        prompts = [
            embed_prompt(
                build_prompt(
                    model.config, model.tokenizer, texts[n % len(texts)], voices[n % len(voices)], model.text_feed
                ),
                model,
            )
            for n in numbers
        ]
        parts.append(_speak(steps, prompts, [seed + n for n in numbers], sampling))
        done, number = done + len(parts[-1][1]), numbers.stop
        progress(done)
    hidden, codes, keys = (mx.concatenate(list(part)) for part in zip(*parts))
    return observe(model, hidden, codes, keys)


def _speak(
    steps: Steps, prompts: list[tuple[mx.array, mx.array]], seeds: list[int], sampling: Sampling
) -> tuple[mx.array, mx.array, mx.array]:
    """hidden [M, W], codes [M, 16] and keys [M, 2] of some texts, spoken side by side until all have ended.

    prompts: (prefill, trailing) as from ``embed_prompt``.
    """
    length = max(prefill.shape[1] for prefill, _ in prompts)
    num_pads = [length - prefill.shape[1] for prefill, _ in prompts]
    rows = [mx.pad(prefill, [(0, 0), (pads, 0), (0, 0)]) for (prefill, _), pads in zip(prompts, num_pads)]
    decoder, knobs = steps.model.code_decoder, sampling.rest.knobs
    request = Request(
        seed=mx.array(seeds, dtype=mx.uint32),
        knobs=sampling.first.knobs,
        penalty=mx.array(sampling.repetition_penalty),
        num_pads=mx.array(num_pads, dtype=mx.int32),
    )
    cache = decoder.new_cache(len(prompts), length + MAX_TEXT_FRAMES, rows[0].dtype)
    hidden, cache = decoder(mx.concatenate(rows), cache, request.num_pads)
    hidden, seen = hidden[:, -1], mx.zeros((len(prompts), steps.allowed.size), dtype=mx.bool_)
    code0, noise, seen = steps.choose_first(hidden, seen, mx.array(0, dtype=mx.uint32), request)
    speaking, spoken = np.ones(len(prompts), dtype=bool), []
    for frame in range(MAX_TEXT_FRAMES):
        speaking &= np.array(code0) != steps.eos  # waits: a text that has ended gives no more frames
        if not speaking.any():
            break
        alive = mx.array(np.flatnonzero(speaking))
        codes = steps.decode(hidden, code0, noise, knobs)
        keys = mx.stack([request.seed, mx.full(request.seed.shape, frame, dtype=mx.uint32)], axis=1)
        spoken.append((hidden[alive], codes[alive], keys[alive]))
        text = mx.stack([trailing[min(frame, len(trailing) - 1)] for _, trailing in prompts])
        following = mx.array(frame + 1, dtype=mx.uint32)
        hidden, code0, noise, seen, cache = steps.advance(codes, text, (seen, cache), following, request)
        mx.eval(spoken[-1], hidden, code0, noise, seen, cache)  # a frame at a time, as in use
    hidden, codes, keys = (mx.concatenate(list(part)) for part in zip(*spoken))
    return hidden, codes, keys


def observe(model: Qwen3TTS, hidden: mx.array, codes: mx.array, keys: mx.array) -> Frames:
    """The frames with their embeddings and MultiCodeDecoder states, teacher-forced over all slots at once."""
    decoder = model.multi_code_decoder
    num_codes, V = decoder.num_codes, decoder.num_entries
    first = model.code_decoder.embed_codes(codes[:, :1])
    embedded = mx.concatenate([first, decoder.embed(codes[:, 1:], mx.arange(num_codes) * V)], axis=1)
    num_slots = num_codes + 1
    position, mask = decoder.at_slots(0, num_slots), mx.tri(num_slots, dtype=mx.bool_)
    states = []
    for begin in range(0, len(codes), BATCH):
        part = slice(begin, begin + BATCH)
        inputs = mx.concatenate([hidden[part, None], embedded[part, :-1]], axis=1)
        states.append(decoder(inputs, position, mask, [Joined() for _ in decoder.model.layers]))
        mx.eval(states[-1])  # a batch at a time, or every layer of all frames would be held at once
    return Frames(hidden, embedded, codes, mx.concatenate(states), keys)


def noise_of(model: Qwen3TTS, keys: mx.array) -> mx.array:
    """The noise rows [M, 15, V] that chose the codes of the frames with these keys."""
    decoder, num_first = model.multi_code_decoder, model.config.code_decoder.vocab_size
    shape = decoder.num_codes, decoder.num_entries
    return mx.stack([frame_noise(key[0], key[1], num_first, shape)[1] for key in keys])
