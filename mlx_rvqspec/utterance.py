"""The frames of some texts: what one frame leaves for the next, and the compiled calls between them.

A frame costs two calls: ``decode`` (hidden and code 0 -> 16 codes), or a few rounds of speculation in its place, and
``advance`` (the codes and the next text embedding -> the next hidden, code 0 and noise).
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from .cache import Head, KVCache, begin_with, grow, round_up
from .model import Qwen3TTS
from .sampling import Sampling, choose, first_code_scores, frame_noise
from .spec_decode.drafter import Drafter
from .spec_decode.frames import begun
from .spec_decode.pace import Pace
from .spec_decode.rounds import Rounds
from .spec_decode.stats import Tally
from .spec_decode.tree import Tree


class GenerationError(RuntimeError):
    """The model produced something that is no speech, such as a value that is not finite."""


class FrameState(NamedTuple):
    """What one frame leaves for the next, all on the device: the frame hidden and code 0 are already chosen."""

    hidden: mx.array  # [B, D]
    code0: mx.array  # [B] int32; -1 where the hidden was not finite
    noise: mx.array  # [B, 15, V]
    seen: mx.array  # [B, V] codes of codebook 0 so far
    cache: KVCache


class Request(NamedTuple):
    """What stays the same through a text."""

    seed: mx.array  # [B] uint32
    knobs: mx.array  # of codebook 0, see sampling.Choice
    penalty: mx.array  # [] float32
    num_pads: mx.array  # [B] int32 padding rows in front of the prompt


Decoding = Callable[[], tuple[mx.array, mx.array]]  # a frame that is being decoded: gives its codes and origins


class Steps:
    """The calls of one model for one form of sampling; ``wrap`` is ``mx.compile``, or the identity for the oracle.

    drafter: speculate with it, decode plainly when None. num_nodes: rows of a round, at first where ``adapt`` lets
    them follow what frames are found to cost; may_be_plain: whether that may be plain decoding. The codes are the same.
    """

    def __init__(
        self,
        model: Qwen3TTS,
        sampling: Sampling,
        wrap: Callable[[Callable], Callable] = mx.compile,
        *,
        drafter: Drafter | None = None,
        num_nodes: int = 1,
        adapt: bool = False,
        may_be_plain: bool = False,
    ) -> None:
        self.model, self.wrap = model, wrap
        self.first_form, self.rest_form = sampling.first.form, sampling.rest.form
        ids = model.config.code_decoder
        index = mx.arange(ids.vocab_size)
        self.eos = ids.codec_eos_token_id
        self.allowed = (index < ids.num_codes) | (index == self.eos)
        self.choose_first = wrap(self._choose_first)
        self.decode = wrap(self._decode)
        self.advance = wrap(self._advance)
        self.drafter, self.num_nodes, self.adapt, self.may_be_plain = drafter, num_nodes, adapt, may_be_plain
        self.rounds: dict[int, Rounds] = {}  # by rows per round
        self.paces: dict[int, Pace] = {}  # by batch
        self.frame = self._speculate if drafter else self._decode_plainly

    def _sizes(self) -> list[int]:
        """Rows per round that may be used, 1 for plain decoding."""
        assert self.drafter
        if not self.adapt:
            return [self.num_nodes]
        return [1] * self.may_be_plain + sorted(set(self.drafter.trees) - {1})

    def _rounds(self, num_nodes: int) -> Rounds:
        if num_nodes not in self.rounds:
            assert self.drafter
            decoder, pair = self.model.multi_code_decoder, self.drafter.trees[num_nodes]
            smaller = [tree for size in self._sizes() if size < num_nodes for tree in self._trees(size)]
            self.rounds[num_nodes] = Rounds(
                decoder,
                self.drafter.proposer(decoder, self.rest_form, *pair),
                *pair,
                self.rest_form,
                wrap=self.wrap,
                first_node=sum(tree.num_nodes for tree in smaller),
            )
        return self.rounds[num_nodes]

    def _trees(self, num_nodes: int) -> tuple[Tree, Tree]:
        """Of rounds with so many rows; plain decoding has roots alone."""
        assert self.drafter
        return (Tree(()), Tree(())) if num_nodes == 1 else self.drafter.trees[num_nodes]

    def new_tally(self) -> Tally:
        """For the origins of the codes that ``frame`` returns."""
        num_codes, trees = self.model.multi_code_decoder.num_codes, [Tree(())]
        if self.drafter:
            trees = [tree for size in self._sizes() for tree in self._trees(size)]
        depth, rank = (np.concatenate(parts) for parts in zip(*((tree.depth, tree.rank) for tree in trees)))
        drafts_first = self.drafter is not None and any(first.num_nodes > 1 for first in trees[1::2])
        return Tally(depth, rank, drafts_first=drafts_first, num_codes=num_codes)

    def _choose_first(
        self, hidden: mx.array, seen: mx.array, frame: mx.array, request: Request
    ) -> tuple[mx.array, mx.array, mx.array]:
        """Code 0 [B], the noise of codes 1..15 [B, 15, V] and the codes seen so far [B, V]."""
        request = Request(*request)
        config = self.model.config
        num_rest = (self.model.multi_code_decoder.num_codes, config.multi_code_decoder.vocab_size)
        rows = [frame_noise(seed, frame, config.code_decoder.vocab_size, num_rest) for seed in request.seed]
        logits = self.model.code_decoder.codec_head(hidden)
        scores = first_code_scores(logits, seen, frame, self.allowed, self.eos, request.penalty)
        code = choose(scores, mx.stack([row[0] for row in rows]), self.first_form, request.knobs)
        seen = mx.put_along_axis(seen, code[:, None], mx.array(True), axis=1)
        finite = mx.isfinite(logits.astype(mx.float32)).all(axis=-1)
        return mx.where(finite, code, -1), mx.stack([row[1] for row in rows]), seen

    def _decode(self, hidden: mx.array, code0: mx.array, noise: mx.array, knobs: mx.array) -> mx.array:
        """The codes of a frame [B, 16] by plain decoding."""
        first = self.model.code_decoder.embed_codes(code0[:, None])[:, 0]
        rest = self.model.multi_code_decoder.decode_frame(hidden, first, noise, self.rest_form, knobs)
        return mx.concatenate([code0[:, None], rest], axis=1)

    def _decode_plainly(self, state: FrameState, knobs: mx.array) -> Decoding:
        """The codes of a frame and their origins [B, 16], see ``rounds.RoundState``: none is a draft."""
        codes = self.decode(state.hidden, state.code0, state.noise, knobs)
        return lambda: (codes, mx.zeros_like(codes))

    def _speculate(self, state: FrameState, knobs: mx.array) -> Decoding:
        """The same codes, in rounds: the first ones are under way, and the call waits for how many more it takes."""
        B = len(state.code0)
        if B not in self.paces:
            self.paces[B] = Pace(self._sizes(), self.num_nodes)
        pace, begin = self.paces[B], time.perf_counter()
        num_nodes = pace.pick()
        finish = self._begin_plainly(state, knobs) if num_nodes == 1 else self._begin_rounds(num_nodes, state, knobs)
        spent = time.perf_counter() - begin

        def timed() -> tuple[mx.array, mx.array]:
            begin = time.perf_counter()  # what the caller did in between is not the frame's time
            done = finish()
            if self.adapt:
                mx.eval(done)  # waits: how long a frame takes is known when it is done
            pace.learn(num_nodes, spent + time.perf_counter() - begin)
            return done

        return timed

    def _begin_rounds(self, num_nodes: int, state: FrameState, knobs: mx.array) -> Decoding:
        first = self.model.code_decoder.embed_codes(state.code0)
        finish = begun(self._rounds(num_nodes), state.hidden, state.code0, first, state.noise, knobs)

        def codes() -> tuple[mx.array, mx.array]:
            done = finish()
            return done.codes, done.origin

        return codes

    def _begin_plainly(self, state: FrameState, knobs: mx.array) -> Decoding:
        """As ``_decode_plainly``, under way at once, as rounds are: what they cost is compared."""
        decoding = self._decode_plainly(state, knobs)()
        mx.async_eval(decoding)
        return lambda: decoding

    def _advance(
        self, codes: mx.array, text: mx.array, past: tuple[mx.array, KVCache], frame: mx.array, request: Request
    ) -> tuple[mx.array, mx.array, mx.array, mx.array, KVCache]:
        """FrameState before ``frame`` from the codes of the frame before it and the text row [1, D] between.

        past: the codes seen and the cache; they are replaced by the results and may be reused in place.
        """
        seen, cache = past
        x = self.model.embed_frame(codes) + text
        hidden, cache = self.model.code_decoder(x[:, None], KVCache(*cache), Request(*request).num_pads)
        code0, noise, seen = self._choose_first(hidden[:, -1], seen, frame, request)
        return hidden[:, -1], code0, noise, seen, cache


@dataclass
class Line:
    """What one row speaks: prefill [1, T, D] and trailing [n, D] as from ``embed_prompt``, at most max_frames frames.

    trailing and max_frames may grow while the line is spoken, as its text becomes known. head: the beginning of the
    prefill if it has been read.
    """

    prefill: mx.array
    trailing: mx.array
    seed: int
    max_frames: int
    head: Head | None = None


class Frame(NamedTuple):
    """A frame of one line: codes [16] int32, their origins [16] as in ``rounds.RoundState``, why it is the last one.

    reason: "stop", "length" or None; error: where the line cannot go on, and its codes are nothing.
    """

    line: int
    codes: np.ndarray
    origin: np.ndarray
    reason: str | None
    error: GenerationError | None


class Utterance:
    """Some lines, spoken side by side, frame by frame. The rows of lines that have ended are left out in time."""

    ahead = 1  # plain decoding needs nothing from the host between frames
    decoding: Decoding | None = None  # of the next frame, where it has been begun

    def __init__(self, steps: Steps, lines: Sequence[Line], sampling: Sampling):
        self.steps, self.lines, self.knobs = steps, lines, sampling.rest.knobs
        self.rows = list(range(len(lines)))  # the line in each row of the state
        self.speaking = set(self.rows)
        if steps.drafter:
            self.ahead = 0  # the host waits for a frame's rounds: none before it is known that the speech goes on
        lengths = [line.prefill.shape[1] for line in lines]
        self.num_slots = max(lengths)
        pads = [self.num_slots - length for length in lengths]
        prefill = [mx.pad(line.prefill, [(0, 0), (num, 0), (0, 0)]) for line, num in zip(lines, pads)]
        self.request = Request(
            seed=mx.array([line.seed for line in lines], dtype=mx.uint32),
            knobs=sampling.first.knobs,
            penalty=mx.array(float(sampling.repetition_penalty)),
            num_pads=mx.array(pads, dtype=mx.int32),
        )
        decoder = steps.model.code_decoder
        heads, known = [line.head for line in lines if line.head], 0
        if len(heads) == len(lines):
            cache = begin_with(heads, pads, self.num_slots + 1)
            known = min(pad + head.rows.shape[1] for pad, head in zip(pads, heads))
        else:
            cache = decoder.new_cache(len(lines), self.num_slots + 1, prefill[0].dtype)
        hidden, cache = decoder(mx.concatenate(prefill)[:, known:], cache, self.request.num_pads)
        seen = mx.zeros((len(lines), steps.allowed.size), dtype=mx.bool_)
        code0, noise, seen = steps.choose_first(hidden[:, -1], seen, mx.array(0, dtype=mx.uint32), self.request)
        self.state = FrameState(hidden[:, -1], code0, noise, seen, cache)

    def _enqueue(self, frame: int) -> tuple[list[int], mx.array, mx.array, mx.array]:
        """Start the work of ``frame`` and of choosing what follows; in plain decoding nothing here waits.

        Returns the line of each row, the frame's codes [B, 16] and origins, and code 0 of the next frame [B].
        """
        codes, origin = (self.decoding or self.steps.frame(self.state, self.knobs))()
        self.num_slots += 1
        if self.num_slots > self.state.cache.capacity:
            self.state = self.state._replace(cache=grow(self.state.cache, round_up(self.num_slots)))
        texts = [self.lines[line].trailing for line in self.rows]
        # no other name holds the old cache when it is evaluated, so its buffers are updated in place
        self.state = FrameState(
            *self.steps.advance(
                codes,
                mx.stack([text[min(frame, len(text) - 1)] for text in texts]),
                (self.state.seen, self.state.cache),
                mx.array(frame + 1, dtype=mx.uint32),
                self.request,
            )
        )
        mx.async_eval(codes, origin, self.state)
        # of several lines some may be left out before the next frame
        goes_on = self.steps.drafter and len(self.lines) == 1 and frame + 1 < self.lines[0].max_frames
        self.decoding = self.steps.frame(self.state, self.knobs) if goes_on else None
        return self.rows, codes, origin, self.state.code0

    def _leave_out(self) -> None:
        """Drop the rows of lines that have ended, once they are half of all: fewer shapes, and few copies."""
        alive = [row for row, line in enumerate(self.rows) if line in self.speaking]
        if 2 * len(alive) > len(self.rows):
            return
        index = mx.array(alive)
        cache = self.state.cache
        hidden, code0, noise, seen = (x[index] for x in self.state[:4])
        keys, values = ([x[index] for x in part] for part in (cache.keys, cache.values))
        self.state = FrameState(hidden, code0, noise, seen, KVCache(keys, values, cache.num_cached))
        self.request = self.request._replace(seed=self.request.seed[index], num_pads=self.request.num_pads[index])
        self.rows = [self.rows[row] for row in alive]

    def frames(self) -> Iterator[list[Frame]]:
        """The next frame of every line that still speaks; none speaks after a reason, an error or ``end``.

        ``ahead`` frames are enqueued before a frame is read, so the device does not wait for the host; the price
        is that much work thrown away at the end.
        """
        flight: deque[tuple[list[int], mx.array, mx.array, mx.array]] = deque()
        begun = frame = 0
        while self.speaking:
            limit = max(self.lines[line].max_frames for line in self.speaking)
            while len(flight) <= self.ahead and begun < limit:
                self._leave_out()
                flight.append(self._enqueue(begun))
                begun += 1
            # waits, once for all four: the caller needs this frame, and whether a line ends decides what is done next
            rows, codes, origin, next_code0 = flight.popleft()
            frame += 1
            read = zip(rows, np.array(codes), np.array(origin), np.array(next_code0))
            made = [self._frame(line, frame, c, o, n) for line, c, o, n in read if line in self.speaking]
            self.speaking -= {done.line for done in made if done.reason or done.error}
            yield made

    def end(self, line: int) -> None:
        """Make no more frames of this line."""
        self.speaking.discard(line)

    def _frame(self, line: int, number: int, codes: np.ndarray, origin: np.ndarray, next_code0: np.ndarray) -> Frame:
        """Frame ``number``, counted from 1, of a line."""
        error = None
        if codes.min() < 0 or next_code0 < 0:
            bad = number - int(codes.min() < 0)
            error = GenerationError(f"logits of frame {bad} are not finite; try dtype='float32'")
        at_end = next_code0 == self.steps.eos
        reason = "stop" if at_end else "length" if number >= self.lines[line].max_frames else None
        return Frame(line, codes, origin, reason, error)


def speak_line(steps: Steps, line: Line, sampling: Sampling) -> Iterator[Frame]:
    """The frames of one line. Raises GenerationError for a value that is not finite."""
    for (frame,) in Utterance(steps, [line], sampling).frames():
        if frame.error:
            raise frame.error
        yield frame
