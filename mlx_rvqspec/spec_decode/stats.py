"""What a run did and how long it took."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Attempt:
    """One passage, from 0, spoken with one seed: how many frames it gave and how it ended."""

    passage: int
    seed: int
    frames: int
    finish_reason: str


@dataclass(frozen=True)
class Stats:
    """Counts and times of one request up to the chunk that carries them.

    frames: handed out so far, of what was kept; audio_s: their length with the pauses between passages. attempts: what
    has been spoken to its end, in order; a passage that ran away and was spoken again is there once for each time.
    share: of the text that has been spoken, 0 to 1, an estimate until the end.
    rounds: MultiCodeDecoder calls that chose these codes, 15 a frame in plain decoding. num_accepted: by codebook
    1..15, the frames whose code was drafted right. By depth 1..K: num_tried, the drafts that would have followed what
    was accepted; num_accepted_by_rank, how many were right, by rank of the candidate.
    Times are wall-clock seconds from the call; speech_s is the part spent in the SpeechDecoder.
    """

    seed: int
    decode: str
    frames: int
    frame_rate_hz: float
    total_s: float
    speech_s: float
    time_to_first_audio_s: float
    audio_s: float
    share: float
    num_passages: int
    attempts: tuple[Attempt, ...]
    rounds: int
    num_accepted: tuple[int, ...]
    num_tried: tuple[int, ...]
    num_accepted_by_rank: tuple[tuple[int, ...], ...]

    @property
    def realtime_factor(self) -> float:
        """Seconds of work per second of audio: lower is better."""
        return self.total_s / self.audio_s

    @property
    def codes_per_round(self) -> float:
        """1 in plain decoding."""
        return len(self.num_accepted) * self.frames / self.rounds

    @property
    def acceptance(self) -> tuple[float, ...]:
        """By codebook 1..15, the share of frames whose code was drafted right."""
        return tuple(number / self.frames for number in self.num_accepted)

    @property
    def acceptance_by_depth(self) -> tuple[float, ...]:
        """By depth 1..K, how often a draft was right when all before it were."""
        return tuple(sum(row) / max(tried, 1) for row, tried in zip(self.num_accepted_by_rank, self.num_tried))


class Tally:
    """Counts, frame by frame, how the codes came about: the part of Stats that speculation fills.

    depth, rank: of the tree nodes that ``add`` is given the numbers of, see ``rounds.Rounds``.
    """

    def __init__(self, depth: np.ndarray, rank: np.ndarray, *, drafts_first: bool, num_codes: int) -> None:
        self._depth, self._rank, self._drafts_first = depth, rank, drafts_first
        # codebook, depth and rank of every code so far; depth 0: the decoder's own choice
        self._counts = np.zeros((num_codes, depth.max() + 1, rank.max() + 1), dtype=np.int64)
        self._depths: list[np.ndarray] = []

    def add(self, origin: np.ndarray) -> None:
        """origin: [16] nodes that the codes of one frame were drafted as."""
        self._depths.append(self._depth[origin])
        nodes = origin[1:]
        np.add.at(self._counts, (np.arange(len(nodes)), self._depth[nodes], self._rank[nodes]), 1)

    def take_depths(self) -> np.ndarray:
        """Depths [T, 16] at which the codes of the frames since the last call were drafted; 0: the decoder's own."""
        depths, self._depths = np.array(self._depths, dtype=np.int32).reshape(-1, 1 + len(self._counts)), []
        return depths

    def counts(self) -> dict[str, Any]:
        """Fields of Stats."""
        by_depth = self._counts.sum(axis=2)
        # a round ends in a code of the decoder's own, or accepts the frame's last code
        rounds = by_depth[:, 0].sum() + by_depth[-1, 1:].sum()
        tried = by_depth[:-1, :-1].sum(axis=0)  # whatever is not the last code can be followed by a draft
        if self._drafts_first:
            tried[0] += by_depth[0].sum()
        return {
            "rounds": int(rounds),
            "num_accepted": tuple(by_depth[:, 1:].sum(axis=1).tolist()),
            "num_tried": tuple(tried.tolist()),
            "num_accepted_by_rank": tuple(map(tuple, self._counts[:, 1:].sum(axis=0).tolist())),
        }
