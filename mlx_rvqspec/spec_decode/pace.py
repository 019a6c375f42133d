"""How many rows a round should have, learnt while speaking from what frames cost with as many, more and fewer.

The codes do not depend on it, so trying another size now and then costs time only. Measuring beforehand
(``fit.device``) gives the size to begin with; a machine that throttles, or is shared, does not stay as it was.
"""

from collections.abc import Iterable

PERIOD, PROBE = 32, 4  # frames between two looks at a neighbour, and frames of one look
ENOUGH = 8  # frames of a size before it is believed: their number of rounds varies by a third
MARGIN = 0.97  # of the present cost, below which a neighbour takes over


class Pace:
    """sizes: rows per round that can be had; best: the size in use, at first the one given."""

    def __init__(self, sizes: Iterable[int], best: int) -> None:
        self.sizes, self.best = sorted(sizes), best
        self._costs: dict[int, float] = {}
        self._counts = dict.fromkeys(self.sizes, -1)  # the first frame of a size compiles its calls: not counted
        self._frame, self._step = 0, 1

    def pick(self) -> int:
        """The size for the next frame."""
        self._frame += 1
        phase = self._frame % PERIOD
        if phase == 0:
            self._step = -self._step
        return self._neighbour() if phase < PROBE and self._frame >= PERIOD else self.best

    def _neighbour(self) -> int:
        """The next size up or down, the other way where there is none."""
        at, last = self.sizes.index(self.best), len(self.sizes) - 1
        return self.sizes[abs(last - abs(last - (at + self._step)))] if last else self.best

    def learn(self, size: int, seconds: float) -> None:
        """Take note that a frame with rounds of this size took this long."""
        self._counts[size] += 1
        count = self._counts[size]
        if count == 0:
            return
        cost = self._costs.get(size, seconds)
        self._costs[size] = cost + (seconds - cost) / min(count, 2 * ENOUGH)
        if size != self.best and count >= ENOUGH and self._costs[size] < MARGIN * self._costs.get(self.best, 0.0):
            self.best = size
