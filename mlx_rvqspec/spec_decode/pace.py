"""How many rows a round should have, learnt while speaking from what frames cost with as many, more and fewer.

One row is plain decoding, where that may be chosen: it is looked at whatever the size in use, since between it and
speculation that pays there may be sizes that do not.

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
        self._frame = 0

    def pick(self) -> int:
        """The size for the next frame."""
        self._frame += 1
        look, phase = divmod(self._frame, PERIOD)
        others = self._neighbours()
        return others[look % len(others)] if look and others and phase < PROBE else self.best

    def _neighbours(self) -> list[int]:
        """The sizes to compare with the one in use: the next ones down and up, and plain decoding."""
        at = self.sizes.index(self.best)
        near = self.sizes[max(0, at - 1) : at] + self.sizes[at + 1 : at + 2]
        return near + [size for size in self.sizes[:1] if size == 1 and size != self.best and size not in near]

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
