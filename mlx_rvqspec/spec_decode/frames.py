"""A frame of codes: rounds until every row has all of them, and when the host looks.

All the host must know is whether the frame is done. It asks as seldom as the answer may be yes, so that no round is
wasted (``in_bursts``), or with a round under way that is probably needed, so that the device seldom waits (``ahead``).
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
    """The same frame; where it will probably need another round, that is under way before the answer is read.

    The last round may still be under way in the state that is returned, where an earlier answer left no doubt.
    """
    state = rounds.first(hidden, code0, first, noise, knobs)
    mx.async_eval(state)
    most, num_after = rounds.rows.most, 0  # num_after: rounds under way behind the one whose answer was read
    num_left = rounds.num_slots - 1 - rounds.first_rows.most
    while num_left > num_after:
        num_sure = max(0, -(-num_left // most) - num_after)
        probably = num_left - (num_sure + num_after) * (most + 1) / 2 >= 1
        for _ in range(num_sure):
            state = rounds.next(state, noise, knobs)
            mx.async_eval(state)
        answer, num_after = state, int(probably)
        if probably:
            state = rounds.next(state, noise, knobs)
            mx.async_eval(state)
        num_left = rounds.num_slots - int(np.array(answer.slot).min())  # waits, while the device works on
    return rounds.finished(state)
