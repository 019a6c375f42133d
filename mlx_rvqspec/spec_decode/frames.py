"""A frame of codes: rounds until every row has all of them, and when the host looks.

All the host must know is whether the frame is done. It asks as seldom as the answer may be yes, and no round is run in
vain. ``in_bursts`` asks when a round is over, ``begun`` while its drafts are made, so that the device seldom waits.
"""

from collections.abc import Callable

import mlx.core as mx
import numpy as np

from .rounds import Decoded, Rounds, RoundState


def in_bursts(
    rounds: Rounds, hidden: mx.array, code0: mx.array, first: mx.array, noise: mx.array, knobs: mx.array
) -> Decoded:
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


def begun(
    rounds: Rounds, hidden: mx.array, code0: mx.array, first: mx.array, noise: mx.array, knobs: mx.array
) -> Callable[[], Decoded]:
    """The same frame, with the rounds under way that it needs for certain; what is returned sees to the others.

    How far a round has come is known before its drafts are, and the round after it is built meanwhile: the device goes
    on without a gap where it must, and runs no round in vain. What comes in the end may still have to be evaluated.
    """
    most = rounds.rows.most

    def enqueue(state: RoundState, num_left: int) -> tuple[RoundState, RoundState]:
        """The round that is to be read, with all before it under way, and the one after it, which is not."""
        for _ in range(-(-num_left // most)):
            mx.async_eval(state)
            state = rounds.next(state, noise, knobs)
        mx.async_eval(state.slot)
        mx.async_eval(state)
        return state, rounds.next(state, noise, knobs)

    state = rounds.first(hidden, code0, first, noise, knobs)
    under_way = enqueue(state, rounds.num_slots - 1 - rounds.first_rows.most)

    def finish() -> Decoded:
        state, following = under_way
        # waits, while the device makes the drafts: the answer decides how many rounds follow
        while num_left := rounds.num_slots - int(np.array(state.slot).min()):
            if num_left == 1:  # every round gives a code: the frame is done then, and nothing is drafted
                return rounds.finished(following)
            state, following = enqueue(following, num_left - most)
        return rounds.finished(state)

    return finish


def ahead(
    rounds: Rounds, hidden: mx.array, code0: mx.array, first: mx.array, noise: mx.array, knobs: mx.array
) -> Decoded:
    """A finished frame, as ``begun`` makes it."""
    return begun(rounds, hidden, code0, first, noise, knobs)()
