"""CodeDecoder (upstream: talker): from the prompt and earlier frames to code 0 and the frame hidden.

28 Qwen3 layers in the published models. Its inputs are sums of embeddings (text and codes), so it has two tables;
its control ids (begin, end, languages, speakers) are the last 1,024 rows of the code table.
"""

import mlx.core as mx
import mlx.nn as nn

from .cache import KVCache, Slots, round_up
from .config import CodeDecoderConfig
from .layers import DecoderLayer, Linear, rotary


class CodeDecoderModel(nn.Module):
    def __init__(self, config: CodeDecoderConfig):
        super().__init__()
        self.codec_embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.text_embedding = nn.Embedding(config.text_vocab_size, config.text_hidden_size)
        self.layers = [DecoderLayer(config) for _ in range(config.num_hidden_layers)]
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class TextProjection(nn.Module):
    def __init__(self, config: CodeDecoderConfig):
        super().__init__()
        self.linear_fc1 = Linear(config.text_hidden_size, config.text_hidden_size)
        self.linear_fc2 = Linear(config.text_hidden_size, config.hidden_size)

    def __call__(self, x: mx.array) -> mx.array:
        return self.linear_fc2(nn.silu(self.linear_fc1(x)))


class CodeDecoder(nn.Module):
    def __init__(self, config: CodeDecoderConfig):
        super().__init__()
        self._config = config
        self.model = CodeDecoderModel(config)
        self.text_projection = TextProjection(config)
        self.codec_head = Linear(config.hidden_size, config.vocab_size, bias=False)

    def embed_text(self, ids: mx.array) -> mx.array:
        """ids [B, T] -> [B, T, D]."""
        return self.text_projection(self.model.text_embedding(ids))

    def embed_codes(self, ids: mx.array) -> mx.array:
        """Codes of codebook 0 or control ids [B, T] -> [B, T, D]."""
        return self.model.codec_embedding(ids)

    def new_cache(self, batch: int, num_slots: int, dtype: mx.Dtype) -> KVCache:
        """An empty cache with room for at least ``num_slots`` positions."""
        c = self._config
        shape = (batch, c.num_key_value_heads, round_up(num_slots), c.head_dim)
        keys, values = ([mx.zeros(shape, dtype=dtype) for _ in self.model.layers] for _ in range(2))
        return KVCache(keys, values, mx.array(0, dtype=mx.int32))

    def __call__(self, x: mx.array, cache: KVCache, num_pads: mx.array) -> tuple[mx.array, KVCache]:
        """States after the final norm [B, T, D], and the cache with the T positions added.

        x: [B, T, D] input embeddings, rows padded on the left; num_pads: [B] int32. Positions count from the
        first row that is no padding, and padding is never looked at.
        """
        B, T, D = x.shape
        index = cache.num_cached + mx.arange(T)
        position = rotary(index - num_pads[:, None], self._config.head_dim, self._config.rope_theta)
        slots = mx.arange(cache.capacity)
        mask = (slots <= index[:, None]) & (slots >= num_pads[:, None, None])
        if T > 1:  # a padding row sees itself: an empty softmax would be NaN
            mask = mask | (slots == index[:, None])
        x = x.reshape(-1, D)
        layer_caches = [Slots(k, v, cache.num_cached) for k, v in zip(cache.keys, cache.values)]
        for layer, layer_cache in zip(self.model.layers, layer_caches):
            x = layer(x, position, mask[:, None], layer_cache)
        keys, values = [c.keys for c in layer_caches], [c.values for c in layer_caches]
        return self.model.norm(x).reshape(B, T, D), KVCache(keys, values, cache.num_cached + T)
