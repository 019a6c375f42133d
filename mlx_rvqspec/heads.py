"""What all texts of a voice begin with, worked out once: the head of a prompt as keys and values.

A prompt begins with the instruction, the role, the language and the speaker, and for a voice that continues its
recording with the words of that. All positions look back only, so their keys and values are those of any text that
follows. The head is always read apart from the rest, kept or not: both give the same bits.
What the SpeechDecoder knows behind a reference is kept beside it.
"""

import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map

from .blas import library
from .cache import Head
from .cloned_voice import ClonedVoice
from .kept import Kept
from .load import weight_files
from .model import Qwen3TTS
from .prompt import VECTOR, Prompt, embed_head, embed_rest
from .spec_decode.drafter import cache_folder
from .speech_decoder.layers import State
from .tensor_file import read_header

VERSION = 1
VARIABLE, PLACES = "MLX_RVQSPEC_PROMPT_CACHE", ("disk", "memory", "off")
# Fewer positions are read about as fast as their file; most speakers' heads have 8 or 9.
LEAST_ON_DISK = 64
SAMPLE_BYTES = 64  # of every tensor, to tell models apart


def choose_place(place: str | None) -> str:
    """Where heads are kept: as asked, or as the environment says. Raises ValueError for what is no place."""
    chosen = place or os.environ.get(VARIABLE) or "disk"
    if chosen not in PLACES:
        raise ValueError(f"prompt_cache is {chosen!r}; expected one of {', '.join(PLACES)}")
    return chosen


class Heads:
    """The heads of one model's prompts. place: see ``choose_place``."""

    def __init__(self, model: Qwen3TTS, place: str = "memory") -> None:
        self._model = model
        folder = cache_folder() / model.fingerprint / "prompts" if place == "disk" else None
        self._kept = None if place == "off" else Kept(folder)
        self._makers = hashlib.sha256("\n".join(_makers(model)).encode()).hexdigest() if place != "off" else ""

    def embed(self, prompt: Prompt) -> tuple[mx.array, mx.array, Head]:
        """The prefill and the trailing rows, as ``embed_prompt``, and the head of the prefill."""
        head, (rest, trailing) = self.head(prompt), embed_rest(prompt, self._model)
        return mx.concatenate([head.rows, rest], axis=1), trailing, head

    def head(self, prompt: Prompt) -> Head:
        """The head of a prompt, from where it is kept or worked out."""
        if self._kept is None:
            return self._read(prompt)
        key = self._key(prompt)
        arrays = self._kept.get(key)
        if arrays is not None:
            return Head(**arrays)
        head = self._read(prompt)
        self._kept.put(key, head._asdict(), on_disk=prompt.num_head >= LEAST_ON_DISK)
        return head

    def behind(self, clone: ClonedVoice, work_out: Callable[[], State]) -> State:
        """The SpeechDecoder's state behind a reference, from where it is kept or worked out."""
        if self._kept is None:
            return work_out()
        assert clone.codes is not None
        key = hashlib.sha256(self._makers.encode() + b"sound" + clone.codes.tobytes()).hexdigest()
        arrays = self._kept.get(key)
        if arrays is None:
            state = work_out()
            arrays = {str(place): value for place, (_, value) in enumerate(_leaves(state))}
            self._kept.put(key, arrays, on_disk=True)
            return state
        values = iter(range(len(arrays)))
        template = self._model.speech_decoder.initial_state(1)
        return tree_map(lambda _: arrays[str(next(values))], template)

    def _read(self, prompt: Prompt) -> Head:
        decoder, rows = self._model.code_decoder, embed_head(prompt, self._model)
        _, cache = decoder(rows, decoder.new_cache(1, prompt.num_head, rows.dtype), mx.array([0], dtype=mx.int32))
        keys, values = (mx.stack([x[0, :, : prompt.num_head] for x in part]) for part in (cache.keys, cache.values))
        head = Head(rows, keys, values)
        mx.eval(head)  # it is read many times
        return head

    def _key(self, prompt: Prompt) -> str:
        """What the head depends on."""
        n, num_plain = prompt.num_head, len(prompt.text_ids) - len(prompt.code_ids)
        beside = prompt.code_ids[: max(0, n - num_plain)]
        found = hashlib.sha256((self._makers + json.dumps((prompt.text_ids[:n], num_plain, beside))).encode())
        num_frames = beside.count(VECTOR)
        if prompt.speaker_vector is not None:
            found.update(prompt.speaker_vector.tobytes())
            num_frames -= 1
        if num_frames > 0 and prompt.frames is not None:
            found.update(prompt.frames[:num_frames].tobytes())
        return found.hexdigest()


def _leaves(state: State) -> list[tuple[str, mx.array]]:
    return cast(Any, tree_flatten(state))


def _makers(model: Qwen3TTS) -> Iterator[str]:
    """All that a head's last bit depends on besides its prompt: the weights, how they are multiplied, and where."""
    yield f"{VERSION} {model.precision} {mx.default_device()} {metadata.version('mlx')} {platform.machine()}"
    yield f"{platform.node()} {library()} {os.environ.get('LD_PRELOAD')}"
    for path in (*weight_files(model.folder), *weight_files(model.folder / "speech_tokenizer")):
        yield f"{path.name} {path.stat().st_size}"
        with path.open("rb") as file:
            for name, span in sorted(read_header(path)[0].items()):
                file.seek((span.begin + span.end) // 2)
                yield name + file.read(min(SAMPLE_BYTES, span.end - span.begin)).hex()
