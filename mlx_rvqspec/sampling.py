"""Which code comes next: the official filters, and noise that is drawn before a frame is decoded.

A code is ``argmax(filter(logits) + temperature * gumbel)``, exact sampling from the filtered softmax (Gumbel-max).
The rows of a frame depend on (seed, frame) alone, so plain and speculative decoding read the same ones and choose
the same codes. Greedy decoding is temperature 0.
"""

from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any

import mlx.core as mx

MIN_NEW_TOKENS = 2  # upstream's generate: no end of speech among the first two codes
WRAPPER_MAX_NEW_TOKENS = 2048  # qwen3_tts_model.py, where generation_config.json is silent
MAX_KNOB = 1e6  # of temperatures and penalties: far from where float32 ends
MAX_SEED = 2**32 - 1  # (seed, frame) is used as the two 32-bit words of one key, so no two pairs share noise


def check_seed(seed: Any) -> int:
    """The seed. Raises ValueError for what is none."""
    if not isinstance(seed, Integral) or isinstance(seed, bool) or not 0 <= int(seed) <= MAX_SEED:
        raise ValueError(f"seed is {seed!r}; expected a whole number from 0 to {MAX_SEED}")
    return int(seed)


@dataclass(frozen=True)
class Sampling:
    """Sampling settings, two separate sets as upstream: codebook 0, and ``subtalker_`` for codebooks 1..15.

    temperature 0 is the same as do_sample=False. top_k 0 and top_p 1 switch their filter off. max_frames bounds
    the audio at 80 ms a frame; None: by what the text can need (``text.longest_speech_s``) and the checkpoint.
    Raises ValueError for a value outside its range.
    """

    temperature: float = 0.9
    top_k: int = 50
    top_p: float = 1.0
    repetition_penalty: float = 1.05
    do_sample: bool = True
    subtalker_temperature: float = 0.9
    subtalker_top_k: int = 50
    subtalker_top_p: float = 1.0
    subtalker_do_sample: bool = True
    max_frames: int | None = None

    def __post_init__(self) -> None:
        for prefix in ("", "subtalker_"):
            temperature, top_k, top_p = (getattr(self, prefix + name) for name in ("temperature", "top_k", "top_p"))
            if not 0 <= temperature <= MAX_KNOB:
                raise ValueError(f"{prefix}temperature is {temperature}; expected 0 to {MAX_KNOB:g}")
            if not isinstance(top_k, int) or top_k < 0:
                raise ValueError(f"{prefix}top_k is {top_k}; expected a whole number, 0 for no limit")
            if not 0 < top_p <= 1:
                raise ValueError(f"{prefix}top_p is {top_p}; expected more than 0 and at most 1")
        if not 1 / MAX_KNOB <= self.repetition_penalty <= MAX_KNOB:
            expected = f"expected {1 / MAX_KNOB:g} to {MAX_KNOB:g}, 1 for none"
            raise ValueError(f"repetition_penalty is {self.repetition_penalty}; {expected}")
        if self.max_frames is not None and self.max_frames < 1:
            raise ValueError(f"max_frames is {self.max_frames}; expected 1 or more")

    @property
    def first(self) -> "Choice":
        """How codebook 0 is chosen."""
        return Choice(self.temperature if self.do_sample else 0.0, self.top_k, self.top_p)

    @property
    def rest(self) -> "Choice":
        """How codebooks 1..15 are chosen."""
        temperature = self.subtalker_temperature if self.subtalker_do_sample else 0.0
        return Choice(temperature, self.subtalker_top_k, self.subtalker_top_p)


@dataclass(frozen=True)
class Choice:
    """One decoder's settings. What changes the graph is ``form``; the numbers travel as ``knobs``."""

    temperature: float
    top_k: int
    top_p: float

    @property
    def form(self) -> tuple[int, bool]:
        """(top_k, whether top_p is on): constants of a compiled call. Neither moves a greedy choice."""
        return (self.top_k, self.top_p < 1) if self.temperature > 0 else (0, False)

    @property
    def knobs(self) -> mx.array:
        """[temperature, top_p] float32: inputs of a compiled call, so new values do not recompile it."""
        return mx.array([self.temperature, self.top_p], dtype=mx.float32)


def sampling_defaults(generation_config: dict[str, Any]) -> Sampling:
    """The checkpoint's own settings, from the contents of its generation_config.json."""
    known = {field.name for field in fields(Sampling)}
    values = {name: value for name, value in generation_config.items() if name in known}
    if "subtalker_dosample" in generation_config:
        values["subtalker_do_sample"] = generation_config["subtalker_dosample"]
    return Sampling(**values)


def frame_limit(generation_config: dict[str, Any]) -> int:
    """The most frames the checkpoint speaks unasked; ``max_new_tokens`` counts the code that ends, as upstream's."""
    return max(1, int(generation_config.get("max_new_tokens", WRAPPER_MAX_NEW_TOKENS)) - 1)


def frame_noise(
    seed: mx.array, frame: mx.array, num_first: int, num_rest: tuple[int, int]
) -> tuple[mx.array, mx.array]:
    """Gumbel rows of one frame: [num_first] for codebook 0 and [*num_rest] for codebooks 1..15, float32.

    seed, frame: [] uint32, together the key. The two parts come from separate keys split from it.
    """
    first, rest = mx.random.split(mx.stack([seed, frame]))
    return mx.random.gumbel((num_first,), key=first), mx.random.gumbel(num_rest, key=rest)


def keep_likely(logits: mx.array, form: tuple[int, bool], knobs: mx.array) -> mx.array:
    """logits [..., V] with everything outside top-k, then top-p, at -inf.

    Order and ties as in transformers 4.57 (TopKLogitsWarper, TopPLogitsWarper after the temperature): entries
    equal to the k-th stay; top-p counts from the least likely up and always leaves the most likely one.
    """
    top_k, nucleus = form
    V = logits.shape[-1]
    if 0 < top_k < V:
        least = mx.partition(logits, V - top_k, axis=-1)[..., V - top_k : V - top_k + 1]
        logits = mx.where(logits >= least, logits, -mx.inf)
    if nucleus:
        order = mx.argsort(logits, axis=-1)
        probs = mx.softmax(mx.take_along_axis(logits, order, axis=-1) / knobs[0], axis=-1)
        drop = (mx.cumsum(probs, axis=-1) <= 1 - knobs[1]) & (mx.arange(V) < V - 1)
        drop = mx.put_along_axis(mx.zeros(logits.shape, dtype=mx.bool_), order, drop, axis=-1)
        logits = mx.where(drop, -mx.inf, logits)
    return logits


def choose(logits: mx.array, noise: mx.array, form: tuple[int, bool], knobs: mx.array) -> mx.array:
    """The next codes [...] int32 for logits [..., V] in any dtype and noise [..., V] float32."""
    scores = keep_likely(logits.astype(mx.float32), form, knobs)
    return mx.argmax(scores + knobs[0] * noise, axis=-1).view(mx.int32)  # the same bits: a cast would be a step


def first_code_scores(
    logits: mx.array, seen: mx.array, frame: mx.array, allowed: mx.array, eos: int, penalty: mx.array
) -> mx.array:
    """Codebook-0 scores [B, V] float32 before temperature: repetition penalty, minimum length, suppression.

    logits: [B, V]; seen: [B, V] bool, codes of codebook 0 generated so far (each counts once, the prompt does
    not); frame: [] index of the frame; allowed: [V] bool. Order as upstream's logits processors.
    """
    scores = logits.astype(mx.float32)
    scores = mx.where(seen, mx.where(scores > 0, scores / penalty, scores * penalty), scores)
    too_soon = (mx.arange(scores.shape[-1]) == eos) & (frame < MIN_NEW_TOKENS)
    return mx.where(allowed & ~too_soon, scores, -mx.inf)
