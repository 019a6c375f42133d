"""The Engine: text in, speech out. The only place that knows all stages.

The owner thread loads and runs everything, and the Engine can be called from any. Requests interleave between chunks;
they share no state.
"""

import secrets
import shutil
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import mlx.core as mx
import numpy as np

from .batch import Input, read_batch
from .cloned_voice import ClonedVoice
from .delivery import AS_IT_PAYS, Chunk, How, Job
from .device_profile import read_profiles, rows_for
from .encoders import Encoders
from .feed import Feed, read_feed
from .heads import choose_place
from .load import load_model, resolve
from .model import Qwen3TTS
from .owner import owner
from .passages import PARAGRAPH_PAUSE_S, PASSAGE_S, split, spoken
from .prompt import choose_voice
from .reading import Reader
from .sampling import Sampling, check_seed
from .spec_decode.drafter import Drafter, device_name, find
from .spec_decode.stats import Stats
from .text import prepare
from .utterance import GenerationError

T = TypeVar("T")

NO_DRAFTER = "this model has no drafter, which would decode several codes at a time; mlx-tts fit makes one"
DOES_NOT_PAY = "speculation was measured on this device and does not pay"
COMPILER = "g++"  # what MLX runs to compile kernels for the CPU
CHUNK_FRAMES = 4  # where nothing was measured: 0.32 s
BATCH_SIZE = 8
SPEAK_CHUNK_FRAMES = 16  # speak() has no listener to hurry for; larger chunks cost memory and save little


@dataclass(frozen=True)
class Speech:
    """A whole text: audio [S] float32 in -1..1, codes [T, 16] int32; S = 1920 T and the pauses between passages."""

    audio: np.ndarray
    sample_rate: int
    codes: np.ndarray
    finish_reason: str
    stats: Stats


class Engine:
    """A loaded model that speaks. Safe to call from any thread; ``load`` makes one.

    drafter: what speculation drafts with; num_nodes: rows of a round, 1 where speculation does not pay; adapt: whether
    they follow what frames cost, down to plain decoding where ``decode`` is None. chunk_frames: what ``stream`` hands
    out at a time unless told. why_plain: why ``decode=None`` begins plainly, for people; empty where it does not.
    """

    def __init__(
        self,
        model: Qwen3TTS,
        wrap: Callable[[Callable], Callable] = mx.compile,
        *,
        drafter: Drafter | None = None,
        num_nodes: int = 1,
        adapt: bool = False,
        chunk_frames: int = CHUNK_FRAMES,
        prompt_cache: str = "memory",
    ) -> None:
        self.chunk_frames = chunk_frames
        self._model, self._drafter, self.num_nodes, self._adapt = model, drafter, num_nodes, adapt
        self._reader = Reader(model, wrap, drafter, num_nodes, adapt, prompt_cache)
        self._encoders = Encoders(model.config, model.folder)
        self.why_plain = NO_DRAFTER if drafter is None else DOES_NOT_PAY if num_nodes == 1 else ""
        self.config = model.config
        self.sample_rate = model.config.sample_rate
        self.speakers = model.config.speakers
        self.languages = model.config.languages
        self.sampling = model.sampling
        self.text_feed = model.text_feed
        self.tokenizer = model.tokenizer

    def speak(
        self,
        text: str | Iterable[str],
        *,
        speaker: str | None = None,
        voice: ClonedVoice | str | Path | None = None,
        language: str = "auto",
        instruct: str | None = None,
        seed: int | None = None,
        decode: str | None = None,
        sampling: Sampling | None = None,
        text_feed: str | None = None,
        chunk_frames: int = SPEAK_CHUNK_FRAMES,
        passage_s: float = PASSAGE_S,
        paragraph_pause_s: float = PARAGRAPH_PAUSE_S,
        on_runaway: str = "keep",
        carry: int = 0,
    ) -> Speech:
        """The whole of ``text`` as speech: the codes and samples of ``stream`` with the same options."""
        return self._whole(
            self.stream(
                text,
                speaker=speaker,
                voice=voice,
                language=language,
                instruct=instruct,
                seed=seed,
                decode=decode,
                sampling=sampling,
                text_feed=text_feed,
                chunk_frames=chunk_frames,
                passage_s=passage_s,
                paragraph_pause_s=paragraph_pause_s,
                on_runaway=on_runaway,
                carry=carry,
            )
        )

    def stream(
        self,
        text: str | Iterable[str],
        *,
        speaker: str | None = None,
        voice: ClonedVoice | str | Path | None = None,
        language: str = "auto",
        instruct: str | None = None,
        seed: int | None = None,
        decode: str | None = None,
        sampling: Sampling | None = None,
        text_feed: str | None = None,
        chunk_frames: int | None = None,
        passage_s: float = PASSAGE_S,
        paragraph_pause_s: float = PARAGRAPH_PAUSE_S,
        on_runaway: str = "keep",
        carry: int = 0,
    ) -> Generator[Chunk, None, None]:
        """Speech in chunks of ``chunk_frames`` x 80 ms, each yielded as soon as it is made; the last is_final.

        chunk_frames: when None the engine's own, the fewest that playing cannot outrun where that was measured;
        speaker: one of ``speakers``, may be left out where one is the only or the default; voice: what ``make_voice``
        made, or the file it was saved to, for a Base model; language: "auto", a name or a code such as "en-US";
        seed: 0..2**32-1, drawn and reported when None; decode: "spec", "plain", or None for the faster; all give the
        same codes; sampling: the checkpoint's own settings when None; text_feed: "full" or "stream" (one text token
        per frame). A text that takes more than about passage_s to read, or has paragraphs, is spoken as several
        passages, each with the same seed: see ``passages.split``. on_runaway: what becomes of a passage that does not
        end by itself: "keep" it, "trim" the silence it ended in, "retry" with the seeds of ``guard.attempt_seed``,
        keeping the last, or "error"; "retry" hands a passage out when it has ended. carry: how many passages before one
        stay in its prompt, so that it goes on as they did; 0: each stands alone.
        text: whole, or the pieces of one that is still being written, each spoken as soon as the next words are known.
        Raises ValueError at the call for anything the model cannot do (ModelError for a voice that is not for it),
        GenerationError while iterating.
        """
        how = self._how(decode, sampling, text_feed, chunk_frames, passage_s, paragraph_pause_s, on_runaway, carry)
        given = (speaker, voice, language, instruct, choose_seed(seed))
        if isinstance(text, str):
            return self._pump(self._reader.read(self._job(Input(text, *given), how)))
        if text_feed == "full" or on_runaway == "retry" or carry:
            raise ValueError(
                "text_feed 'full', on_runaway 'retry' and carry need the whole text; it is given in pieces"
            )
        job = self._job(Input("a", *given), replace(how, text_feed="stream"))
        if job.voice.clone and job.voice.clone.codes is not None:
            raise ValueError("a voice made with the words of its recording needs the whole text; make one without text")
        return self._pump_feed(replace(job, passages=()), text)

    def speak_batch(
        self,
        inputs: Sequence[str | Input],
        *,
        seed: int | None = None,
        decode: str | None = None,
        sampling: Sampling | None = None,
        text_feed: str | None = None,
        passage_s: float = PASSAGE_S,
        paragraph_pause_s: float = PARAGRAPH_PAUSE_S,
        on_runaway: str = "keep",
        carry: int = 0,
        batch_size: int = BATCH_SIZE,
    ) -> list[Speech | ValueError | GenerationError]:
        """For each input, in their order, its Speech, or the error that ``speak`` would raise for it.

        Up to batch_size passages are spoken side by side, each with the codes it has when spoken alone, up to rounding;
        in float32 a code differs only where two scores are equal to the sixth digit. seed: of the inputs that have
        none; drawn for each when None. For the other options see ``stream``.
        Raises ValueError for an option that cannot be.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; expected 1 or more")
        how = self._how(
            decode, sampling, text_feed, SPEAK_CHUNK_FRAMES, passage_s, paragraph_pause_s, on_runaway, carry
        )
        results: dict[int, Any] = {}
        jobs: dict[int, Job] = {}
        for number, item in enumerate(inputs):
            item = Input(item) if isinstance(item, str) else item
            try:
                jobs[number] = self._job(replace(item, seed=choose_seed(seed if item.seed is None else item.seed)), how)
            except ValueError as error:  # the input's own
                results[number] = error
        for place, made in self._pump(read_batch(self._reader, list(jobs.values()), batch_size)):
            results[list(jobs)[place]] = made if isinstance(made, GenerationError) else self._whole(made)
        return [results[number] for number in range(len(inputs))]

    def _whole(self, chunks: Iterable[Chunk]) -> Speech:
        """All chunks of a text as one."""
        chunks = list(chunks)
        return Speech(
            audio=np.concatenate([chunk.audio for chunk in chunks]),
            sample_rate=self.sample_rate,
            codes=np.concatenate([chunk.codes for chunk in chunks]),
            finish_reason=chunks[-1].finish_reason or "",
            stats=chunks[-1].stats,
        )

    def _how(
        self,
        decode: str | None,
        sampling: Sampling | None,
        text_feed: str | None,
        chunk_frames: int | None,
        passage_s: float,
        paragraph_pause_s: float,
        on_runaway: str,
        carry: int,
    ) -> How:
        """These options, with the model's own where None. Raises ValueError for one that cannot be."""
        return How(
            self._choose_decode(decode),
            sampling or self.sampling,
            text_feed or self.text_feed,
            self.chunk_frames if chunk_frames is None else chunk_frames,
            passage_s,
            paragraph_pause_s,
            on_runaway,
            carry,
        )

    def _job(self, item: Input, how: How) -> Job:
        """One text to read, whose seed is given. Raises ValueError for anything the model cannot do."""
        text, voice = prepare(item.text), item.voice
        clone = ClonedVoice.load(voice) if isinstance(voice, (str, Path)) else voice
        if not isinstance(clone, (ClonedVoice, type(None))):
            raise ValueError(f"voice is {type(clone).__name__}; expected what make_voice made, or its file")
        chosen = choose_voice(self.config, item.speaker, item.language, item.instruct, clone)
        if clone:
            clone.check(self.config, self._model.fingerprints)
        assert item.seed is not None
        passages = split(text, passage_s=how.passage_s, paragraph_pause_s=how.paragraph_pause_s)
        return Job(spoken(passages), chosen, item.seed, how)

    def _choose_decode(self, decode: str | None) -> str:
        """The faster one when None."""
        if decode not in (None, "spec", "plain"):
            raise ValueError(f"decode is {decode!r}; expected 'spec' or 'plain'")
        if decode == "spec" and self._drafter is None:
            raise ValueError(f"decode is 'spec', but {self.why_plain}")
        return decode or ("plain" if self.why_plain else AS_IT_PAYS if self._adapt else "spec")

    def _pump(self, items: Generator[T | None, None, None]) -> Generator[T, None, None]:
        """Run a generator on the owner thread, one step per item, and close it there when the caller is done."""
        end = object()

        def close() -> None:
            items.close()
            mx.clear_cache()  # once per request: buffers of lengths that may never come again

        try:
            while (item := owner().run(next, items, end)) is not end:
                if item is not None:
                    yield cast(T, item)
        finally:
            owner().run(close)

    def _pump_feed(self, job: Job, pieces: Iterable[str]) -> Generator[Chunk, None, None]:
        """As ``_pump``; pieces of the text are waited for here, in the caller's thread, while others get their turn."""
        model, more = self._model, iter(pieces)
        feed = Feed(model.tokenizer, job.how.passage_s, in_words=bool(model.config.text_reader))
        for chunk in self._pump(read_feed(self._reader, job, feed)):
            if isinstance(chunk, Chunk):
                yield chunk
                continue
            if (piece := next(more, None)) is None:
                feed.close()
            else:
                feed.add(piece)

    def warm_up(self) -> None:
        """Do all that a request does, once and in vain, so that the first one is as fast as the next.

        On a GPU this is where graphs are compiled. A Base model has no voice of its own: nothing is done.
        """
        if self.config.tts_model_type == "base":
            return
        speaker = self.speakers[0] if self.speakers else None
        sampling = replace(self.sampling, max_frames=self.chunk_frames + 1)
        for _ in self.stream("Hello there.", speaker=speaker, seed=0, sampling=sampling):
            pass

    def encode(self, audio: np.ndarray, sample_rate: int) -> np.ndarray:
        """Codes [T, 16] int32 of a recording, audio [S] float in -1..1: a frame for every 80 ms that were begun.

        Raises ValueError for audio that is no recording in mono, ModelError where the checkpoint has no encoder.
        """
        return owner().run(self._encoders.encode, audio, sample_rate)

    def make_voice(
        self, audio: np.ndarray, sample_rate: int, *, text: str | None = None, pause_s: float = 0.0
    ) -> ClonedVoice:
        """The voice of a recording of one person, for ``speak`` and ``stream`` of this Base model.

        text: the exact words of the recording, which it is then continued from; None: only the speaker is taken on;
        pause_s: silence to put behind a recording that ends in a word, whose end could be heard in what follows.
        Raises ValueError for a recording that is too short, silent or otherwise unfit, ModelError as ``encode``.
        """
        return owner().run(lambda: self._encoders.make_voice(audio, sample_rate, text, pause_s=pause_s))

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Audio [1920 T] float32 of codes [T, 16]. Raises ValueError for codes outside their codebooks."""
        return self.step(codes, self.decoder_state())[0]

    def decoder_state(self) -> Any:
        """The state before the first frame, for ``step``."""
        return owner().run(self._model.speech_decoder.initial_state, 1)

    def step(self, codes: np.ndarray, state: Any) -> tuple[np.ndarray, Any]:
        """Audio of the next frames and the state after them: the same samples as decoding all codes at once."""
        codes = np.asarray(codes)
        books, size = self.config.speech_decoder.num_quantizers, self.config.speech_decoder.codebook_size
        if codes.ndim != 2 or codes.shape[1] != books or not len(codes):
            raise ValueError(f"codes have shape {codes.shape}; expected [frames, {books}] with at least one frame")
        if codes.dtype.kind not in "iu" or codes.min() < 0 or codes.max() >= size:
            raise ValueError(f"codes are {codes.dtype} from {codes.min()} to {codes.max()}; expected 0 to {size - 1}")

        def run() -> tuple[np.ndarray, Any]:
            audio, after = self._model.speech_decoder.step(mx.array(codes[None].astype(np.int32)), state)
            mx.eval(after)  # waits, as the next line does: the caller wants samples now
            return np.array(audio[0]), after

        return owner().run(run)


def choose_seed(seed: int | None) -> int:
    """The seed, or a random one. Raises ValueError for what is none."""
    return secrets.randbits(32) if seed is None else check_seed(seed)


def load(
    model: str | Path | None = None,
    *,
    dtype: str | None = None,
    quantize: int | str | None = None,
    drafter: str | Path | None = None,
    compile: bool | None = None,
    adapt: bool | None = None,
    prompt_cache: str | None = None,
) -> Engine:
    """An Engine for a model folder, a hub id, or the built-in voice when None.

    dtype, quantize: see ``load.load_model``; drafter: see ``spec_decode.drafter.find``. compile: whether frames run as
    compiled graphs; None means on a GPU only, since on the CPU the first run compiles some thirty kernels with g++ at
    about a second each (then cached on disk) to be about twice as fast afterwards. adapt: whether the number of rows
    per round is tried out while speaking, which compiles the sizes it tries; None means where nothing is compiled.
    prompt_cache: where it is kept what prompts begin with, read: see ``heads.choose_place``.
    Raises ModelError when the model or the drafter cannot be used, ValueError for an option that cannot be.
    """
    place = choose_place(prompt_cache)

    def build() -> Engine:
        on_gpu = mx.default_device() == mx.Device(mx.gpu)
        compiled = on_gpu if compile is None else compile
        if compiled and not on_gpu and shutil.which(COMPILER) is None:
            warnings.warn(f"no {COMPILER} on PATH: graphs run unfused, slower and with the same results", stacklevel=2)
        folder = resolve(model)
        loaded = load_model(folder, dtype=dtype, quantize=quantize)
        drafts = find(folder, loaded.multi_code_decoder, loaded.fingerprints, drafter)
        wrap = mx.compile if compiled else lambda function: function
        device = device_name(loaded.precision, compiled)
        if drafts is None:
            return Engine(loaded, wrap, prompt_cache=place)
        measured = read_profiles(drafts.fingerprint).get(device)
        return Engine(
            loaded,
            wrap,
            drafter=drafts,
            num_nodes=rows_for(drafts, device),
            adapt=not compiled if adapt is None else adapt,
            chunk_frames=measured.chunk_frames if measured and measured.chunk_frames else CHUNK_FRAMES,
            prompt_cache=place,
        )

    return owner().run(build)
