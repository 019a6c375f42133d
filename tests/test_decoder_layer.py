"""One layer of the code decoders: its rotation, and how its large matrices are multiplied."""

from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest

from mlx_rvqspec import layers
from mlx_rvqspec.cache import Joined


def test_no_large_product_of_a_layer_is_left_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """All matrices of the published size, fused or not, are multiplied in blocks when a frame is decoded."""
    config = SimpleNamespace(
        **{"hidden_size": 1024, "intermediate_size": 2048, "head_dim": 128, "rms_norm_eps": 1e-6},
        **{"num_attention_heads": 8, "num_key_value_heads": 8},
    )
    layer = layers.DecoderLayer(config)  # type: ignore[arg-type]
    layers.lay_out(layer)
    real, in_blocks = layers.unpacked_block, set()

    def noting(rows: int, matrix: mx.array) -> int:
        if block := real(rows, matrix):
            in_blocks.add(tuple(matrix.shape))
        return block

    monkeypatch.setattr(layers, "unpacked_block", noting)
    layer(mx.ones((1, 1024)), layers.rotary(mx.array([[0]]), 128, 1e6), None, Joined())
    assert in_blocks >= {(1024, 3072), (1024, 1024), (2048, 1024)}, "qkv, o and down"
    assert in_blocks & {(1024, 2048), (1024, 4096)}, "gate and up"


def test_rotation_is_the_half_split_one() -> None:
    positions, x = mx.array([[0, 5, 1000]]), mx.random.normal((1, 2, 3, 8), key=mx.random.key(0))
    cos, sin = layers.rotary(positions, 8, 1e4)
    angles = np.array([0, 5, 1000])[:, None] * 1e4 ** (-np.arange(4) / 4)
    turn, halves = np.exp(1j * angles), np.array(x)
    expected = (halves[..., :4] + 1j * halves[..., 4:]) * turn
    found = layers.rotate(x, cos, sin)
    np.testing.assert_allclose(np.array(found), np.concatenate([expected.real, expected.imag], -1), atol=1e-4)
