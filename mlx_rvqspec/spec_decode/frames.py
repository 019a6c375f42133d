"""A frame of codes: rounds until every row has all of them, and when the host looks.

All the host must know is whether the frame is done. It can ask as seldom as the answer may be yes (``in_bursts``:
no round is wasted), or keep a round ahead of the answer (``ahead``: it never waits idle, and the last round is wasted).
"""

import mlx.core as mx
import numpy as np

from .rounds import Rounds, RoundState


def in_bursts(
    rounds: Rounds, hidden: mx.array, code0: mx.array, first: mx.array, noise: mx.array, knobs: mx.array
) -> RoundState:
    """A finished frame; the host waits only after as many rounds as the codes that are left need for certain.

    hidden, code0, first: as in ``Rounds.first``; noise, knobs: as in ``MultiCodeDecoder.decode_frame``.
    """
    state = rounds.first(hidden, code0, first, noise, knobs)
    num_left = rounds.num_slots - 1 - rounds.first_rows.most
    while True:
        for _ in range(-(-num_left // rounds.rows.most)):
            mx.async_eval(state)
            state = rounds.next(state, noise, knobs)
        num_left = rounds.num_slots - int(np.array(state.slot).min())  # waits: it decides how many rounds follow
        if not num_left:
            return rounds.finished(state)


def ahead(
    rounds: Rounds, hidden: mx.array, code0: mx.array, first: mx.array, noise: mx.array, knobs: mx.array
) -> RoundState:
    """The same frame; the next round is under way before the last one's answer is read."""
    state = rounds.first(hidden, code0, first, noise, knobs)
    while True:
        following = rounds.next(state, noise, knobs)
        mx.async_eval(state, following)
        if np.array(state.slot).min() == rounds.num_slots:  # waits, while the device works on
            return rounds.finished(state)
        state = following
