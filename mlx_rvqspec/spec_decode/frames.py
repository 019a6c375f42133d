"""A frame of codes: rounds until every row has all of them, and when the host looks.

All the host must know is whether the frame is done. It asks as seldom as the answer may be yes, so that no round is
wasted (``in_bursts``), or with a round under way that is probably needed, so that the device seldom waits (``begun``).
"""

from collections.abc import Callable

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


def begun(
    rounds: Rounds, hidden: mx.array, code0: mx.array, first: mx.array, noise: mx.array, knobs: mx.array
) -> Callable[[], RoundState]:
    """The same frame, with the rounds under way that it needs for certain; what is returned sees to the others.

    Where another round will probably be needed, it is under way before an answer is read. The last one may still be
    under way in the state that comes, where an earlier answer left no doubt.
    """
    most, first_most = rounds.rows.most, rounds.first_rows.most

    def go_on(state: RoundState, num_rounds: int) -> RoundState:
        for _ in range(num_rounds):
            state = rounds.next(state, noise, knobs)
            mx.async_eval(state)
        return state

    def enqueue(state: RoundState, num_left: int, num_after: int) -> tuple[RoundState, RoundState, int]:
        """The state to read, the last one, and how many rounds are between; at first num_after are behind num_left."""
        num_sure = max(0, -(-num_left // most) - num_after)
        probably = num_left - (num_sure + num_after) * (most + 1) / 2 >= 1
        answer = go_on(state, num_sure)
        return answer, go_on(answer, int(probably)), int(probably)

    state = rounds.first(hidden, code0, first, noise, knobs)
    mx.async_eval(state)
    under_way = enqueue(state, rounds.num_slots - 1 - first_most, 0)

    def finish() -> RoundState:
        answer, state, num_after = under_way
        # waits, where the device mostly does not: the answer decides how many rounds follow
        while (num_left := rounds.num_slots - int(np.array(answer.slot).min())) > num_after:
            answer, state, num_after = enqueue(state, num_left, num_after)
        return rounds.finished(state)

    return finish


def ahead(
    rounds: Rounds, hidden: mx.array, code0: mx.array, first: mx.array, noise: mx.array, knobs: mx.array
) -> RoundState:
    """A finished frame, as ``begun`` makes it."""
    return begun(rounds, hidden, code0, first, noise, knobs)()
