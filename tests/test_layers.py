"""Large products of few rows on the CPU: in blocks that OpenBLAS does not pack, with the same result."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlx_rvqspec import layers

NUM_IN, NUM_OUT = 1024, 1536


def random(*shape: int, seed: int = 0) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed)) / shape[-1] ** 0.5


def close(found: mx.array, expected: mx.array) -> bool:
    return found.shape == expected.shape and np.allclose(np.array(found), np.array(expected), atol=1e-5)


@pytest.mark.parametrize(("rows", "block"), [(1, 512), (2, 256), (4, 128), (9, 64), (16, 32), (30, 32), (31, 0)])
def test_few_rows_are_multiplied_in_blocks(rows: int, block: int) -> None:
    x, weight = random(rows, NUM_IN), random(NUM_OUT, NUM_IN, seed=1)
    assert layers.unpacked_block(rows, weight.T) == block
    assert rows * block <= layers.UNPACKED_RESULTS and rows * block * NUM_IN <= layers.UNPACKED_PRODUCTS
    assert close(layers.multiply(x, weight.T), x @ weight.T)


def test_blocks_divide_the_matrix_or_are_not_used() -> None:
    assert layers.unpacked_block(1, mx.zeros((NUM_IN, 512 + 64))) == 64
    assert layers.unpacked_block(1, mx.zeros((NUM_IN, 512 + 2))) == 0
    assert layers.unpacked_block(1, mx.zeros((512, 512))) == 0, "small ones are laid out another way"
    assert layers.unpacked_block(1, mx.zeros((NUM_IN, NUM_OUT), dtype=mx.bfloat16)) == 0


@pytest.mark.parametrize("rows", [1, 4])
def test_large_heads_are_multiplied_in_blocks(rows: int) -> None:
    states, heads = random(2, 3, rows, NUM_IN), random(5, NUM_OUT, NUM_IN, seed=1)
    index = mx.array([[0, 4, 2], [1, 1, 3]], dtype=mx.uint32)
    expected = states @ heads[index].swapaxes(-1, -2)
    assert layers.unpacked_block(rows, heads[0].T)
    assert close(layers.gathered_matmul(states, heads.swapaxes(-1, -2), index), expected)


def test_a_laid_out_layer_gives_what_it_gave() -> None:
    layer, x = layers.Linear(NUM_IN, NUM_OUT, bias=False), random(3, NUM_IN)
    expected = x @ layer.weight.T
    layer.lay_out()
    assert close(layer(x), expected)


@pytest.mark.parametrize("size", [64, NUM_IN])
def test_a_sum_in_the_product_is_the_same_sum(size: int) -> None:
    layer, x, past = layers.Linear(size, 2 * size, bias=False), random(3, size), random(3, 2 * size, seed=1)
    for _ in range(2):
        assert close(layers.added(past, layer, x), past + x @ layer.weight.T)
        layer.lay_out()
    packed = nn.QuantizedLinear.from_linear(layers.Linear(64, 128, bias=False))
    assert close(layers.added(random(3, 128), packed, random(3, 64)), random(3, 128) + packed(random(3, 64)))


def test_swiglu_by_powers_is_swiglu() -> None:
    gate, up = (
        mx.array([-200.0, -90, -20, -1, -0.0, 1e-6, 3, 20, 90, 200]),
        mx.array([3.0, -2, 1, 5, 1, 1, -1, 2, 3, 1]),
    )
    expected = np.array(gate, dtype=np.float64) / (1 + np.exp(-np.array(gate, dtype=np.float64))) * np.array(up)
    np.testing.assert_allclose(np.array(layers.swiglu(gate, up)), expected, rtol=3e-6, atol=1e-30)
    assert np.isnan(np.array(layers.swiglu(mx.array([np.nan]), mx.array([1.0])))).all()


@pytest.mark.parametrize("T", [1, 3])
@pytest.mark.parametrize("B", [1, 2])
def test_attention_in_few_steps_is_attention(B: int, T: int) -> None:
    q, k, v = random(B, 6, T, 8), random(B, 2, 5, 8, seed=1), random(B, 2, 5, 8, seed=2)
    seen = mx.array(np.random.default_rng(0).random((B, 1, T, 5)) < 0.5) | (mx.arange(5) == 0)
    for mask, tiled in ((None, None), (seen, seen), (seen, mx.tile(seen, (1, 1, 3, 1))), (seen[0, 0], seen[0, 0])):
        expected = mx.fast.scaled_dot_product_attention(q, k, v, scale=1.0, mask=mask)
        assert close(layers.attend(q, k, v, tiled).reshape(q.shape), expected)
