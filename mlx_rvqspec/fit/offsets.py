"""Fitting a drafter: what the frozen heads make of draft states, for all slots and depths at once.

The target is the verifier's own filtered distribution, of which the codes are samples: the same optimum as fitting
to the codes, with less noise. Candidates ranked by probability want cross-entropy, as in the paper; ranked by the
verifier's noise, a draft is right as often as the two distributions overlap, so the overlap is what is fitted.
"""

from collections.abc import Callable, Iterator, Mapping

import mlx.core as mx
import mlx.nn as nn
from mlx.optimizers import Adam, cosine_decay

from ..multi_code_decoder import MultiCodeDecoder
from ..sampling import Choice, keep_likely
from ..spec_decode.drafter import Form
from .collect import Frames

Weights = dict[str, mx.array]
Loss = Callable[[mx.array, mx.array], mx.array]
Drafts = Callable[[Weights, Frames], Iterator[tuple[int, mx.array]]]


def initial_weights(form: Form, decoder: MultiCodeDecoder, key: mx.array) -> Weights:
    """Weights that draft with the state as it is; inner halves of maps are random, or nothing would ever move."""
    weights = {}
    for name, shape in form.shapes(decoder.width, decoder.input_size).items():
        key, own = mx.random.split(key)
        if name.endswith("_in"):
            weights[name] = mx.random.normal(shape, key=own) * shape[-1] ** -0.5
        else:
            weights[name] = mx.ones(shape) if name == "hidden_scale" else mx.zeros(shape)
    return weights


def offset_drafts(form: Form, weights: Weights, frames: Frames) -> Iterator[tuple[int, mx.array]]:
    """(first codebook c, draft states [M, n, D] of codebooks c..c+n-1): the formula of ``spec_decode.drafter``."""
    num_codes = frames.codes.shape[1] - 1
    offsets = mx.broadcast_to(weights["hidden_offset"], (num_codes, *weights["hidden_offset"].shape[1:]))
    for depth in range(1, form.num_depths + 1):
        n = num_codes - depth
        here = slice(1, n + 1)
        scale = weights["hidden_scale"][depth - 1] if form.is_scaled else 1
        drafts = scale * frames.states[:, here] + offsets[:n, depth - 1]
        if form.memory_size and depth <= form.memory_depths:
            drafts = drafts + frames.embedded[:, here] @ weights["memory_in"][depth - 1].T @ weights["memory_out"].T
        yield 1 + depth, drafts
    if form.first_size:
        inputs = mx.concatenate([frames.hidden, frames.embedded[:, 0]], axis=-1)
        base = nn.silu(inputs @ weights["first_in"].T) @ weights["first_out"].T
        for depth in range(1, form.num_depths + 1):
            yield depth, (base + weights["first_offset"][depth - 1])[:, None]


def cross_entropy(target: mx.array, logits: mx.array) -> mx.array:
    """[...] of target probabilities and draft logits [..., V]: what ranking by probability wants small."""
    return mx.logsumexp(logits, axis=-1) - (target * logits).sum(axis=-1)


def missed_overlap(target: mx.array, logits: mx.array) -> mx.array:
    """[...] minus the log of what two distributions share: two codes drawn with the same noise differ by the rest."""
    return -mx.log(mx.minimum(target, mx.softmax(logits, axis=-1)).sum(axis=-1) + 1e-6)


def fit(
    decoder: MultiCodeDecoder,
    frames: Frames,
    weights: Weights,
    drafts: Drafts,
    choice: Choice,
    loss: Loss,
    *,
    seed: int,
    num_steps: int,
    batch: int = 128,
    learning_rate: float = 2e-3,
    progress: Callable[[int, mx.array], None] = lambda step, value: None,
) -> Weights:
    """The weights after ``num_steps`` of Adam on random batches of frames; ``drafts`` is what they compute.

    choice: the sampler's settings, whose distribution is to be matched. progress is told the step and its loss.
    """
    heads = decoder.lm_head.numbers().astype(mx.float32).swapaxes(-1, -2)
    temperature, knobs = choice.temperature or 1.0, choice.knobs

    def loss_of(weights: Weights, frames: Frames) -> mx.array:
        # [15, M, V]: the state at slot q is what codebook q is chosen from
        logits = frames.states[:, 1:].swapaxes(0, 1) @ heads
        target = mx.softmax(keep_likely(logits, choice.form, knobs) / temperature, axis=-1)
        losses = []
        for book, states in drafts(weights, frames):
            books = slice(book - 1, book - 1 + states.shape[1])
            logits = states.swapaxes(0, 1) @ heads[books] / temperature
            losses.append(loss(target[books], logits).mean())
        return mx.stack(losses).mean()

    step = mx.value_and_grad(loss_of)
    optimizer = Adam(cosine_decay(learning_rate, max(1, num_steps)))
    key = mx.random.key(seed)
    for number in range(num_steps):
        key, own = mx.random.split(key)
        rows = mx.random.randint(0, len(frames), (batch,), key=own)
        value, gradients = step(weights, frames.take(rows))
        weights = optimizer.apply_gradients(gradients, weights)
        mx.eval(weights, optimizer.state)  # or the graph of all steps would be kept
        progress(number + 1, value)
    return weights


def as_constants(weights: Mapping[str, mx.array]) -> Weights:
    """The weights as a drafter stores them."""
    return {name: value.astype(mx.float16) for name, value in weights.items()}
