"""CodeDecoder and MultiCodeDecoder in torch, with the attribute names of the published checkpoint (`talker.*`)."""

import torch
import torch.nn as nn
import torch.nn.functional as F

K0, KR, NUM_BOOKS = 1024, 128, 16  # KR: codes 1 to 15, 64 of each speaker
PAD, BOS, EOS, THINK, NOTHINK, THINK_BOS, THINK_EOS = (K0 + x for x in (100, 101, 102, 106, 107, 108, 109))
ENGLISH, SPEAKERS = K0 + 2, dict(robin=K0 + 1018, jay=K0 + 1017)


class RMSNorm(nn.Module):
    def __init__(self, d, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(d)), eps

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def rope(x, start, theta=1e6):
    h = x.shape[-1] // 2
    pos = torch.arange(start, start + x.shape[-2], dtype=torch.float32)
    f = pos[:, None] * theta ** (-torch.arange(h) / h)
    c, s = f.cos(), f.sin()
    a, b = x[..., :h], x[..., h:]
    return torch.cat([a * c - b * s, b * c + a * s], -1)


class Attention(nn.Module):
    def __init__(self, d, heads, kv, dim):
        super().__init__()
        self.heads, self.kv, self.dim = heads, kv, dim
        self.q_proj, self.k_proj = nn.Linear(d, heads * dim, bias=False), nn.Linear(d, kv * dim, bias=False)
        self.v_proj, self.o_proj = nn.Linear(d, kv * dim, bias=False), nn.Linear(heads * dim, d, bias=False)
        self.q_norm, self.k_norm = RMSNorm(dim), RMSNorm(dim)

    def forward(self, x, cache):
        B, T, _ = x.shape
        start = cache[0].shape[2] if cache else 0
        q = rope(self.q_norm(self.q_proj(x).view(B, T, self.heads, self.dim)).transpose(1, 2), start)
        k = rope(self.k_norm(self.k_proj(x).view(B, T, self.kv, self.dim)).transpose(1, 2), start)
        v = self.v_proj(x).view(B, T, self.kv, self.dim).transpose(1, 2)
        if cache is not None:
            if cache:
                k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
            cache[:] = [k, v]
        r = self.heads // self.kv
        k, v = k.repeat_interleave(r, 1), v.repeat_interleave(r, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=T > 1)
        return self.o_proj(y.transpose(1, 2).reshape(B, T, -1))


class Mlp(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(d, n, bias=False), nn.Linear(d, n, bias=False)
        self.down_proj = nn.Linear(n, d, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        d = c["hidden_size"]
        self.self_attn = Attention(d, c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"])
        self.mlp = Mlp(d, c["intermediate_size"])
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(d), RMSNorm(d)

    def forward(self, x, cache=None):
        x = x + self.self_attn(self.input_layernorm(x), cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class CodeDecoderCore(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.codec_embedding = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.text_embedding = nn.Embedding(c["text_vocab_size"], c["text_hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(c["hidden_size"])


class TextProjection(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.linear_fc1, self.linear_fc2 = nn.Linear(i, i), nn.Linear(i, o)

    def forward(self, x):
        return self.linear_fc2(F.silu(self.linear_fc1(x)))


class PredictorCore(nn.Module):
    def __init__(self, c, wide):
        super().__init__()
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(c["hidden_size"])
        self.codec_embedding = nn.ModuleList(nn.Embedding(c["vocab_size"], wide) for _ in range(NUM_BOOKS - 1))


class MultiCodeDecoder(nn.Module):
    def __init__(self, c, wide):
        super().__init__()
        self.model = PredictorCore(c, wide)
        self.lm_head = nn.ModuleList(nn.Linear(c["hidden_size"], c["vocab_size"], bias=False) for _ in range(NUM_BOOKS - 1))
        self.small_to_mtp_projection = nn.Linear(wide, c["hidden_size"])

    def forward(self, x, caches=None):
        x = self.small_to_mtp_projection(x)
        for i, layer in enumerate(self.model.layers):
            x = layer(x, caches[i] if caches is not None else None)
        return self.model.norm(x)


class Talker(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.config = c
        self.model = CodeDecoderCore(c)
        self.text_projection = TextProjection(c["text_hidden_size"], c["hidden_size"])
        self.codec_head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        self.code_predictor = MultiCodeDecoder(c["code_predictor_config"], c["hidden_size"])
        nn.init.normal_(self.model.text_embedding.weight, std=1.0)
        for e in (self.model.codec_embedding, *self.code_predictor.model.codec_embedding):
            nn.init.normal_(e.weight, std=0.25)
        for layers, n in ((self.model.layers, len(self.model.layers)), (self.code_predictor.model.layers, 3)):
            for layer in layers:
                for p in (layer.self_attn.o_proj, layer.mlp.down_proj):
                    nn.init.normal_(p.weight, std=0.02 / n**0.5)

    def text(self, ids):
        return self.text_projection(self.model.text_embedding(ids))

    def frame(self, codes):
        """[..., D]: sum of the 16 embeddings of codes [..., 16]."""
        e = self.model.codec_embedding(codes[..., 0])
        for i, table in enumerate(self.code_predictor.model.codec_embedding):
            e = e + table(codes[..., i + 1])
        return e

    def depth_inputs(self, hidden, codes):
        """[M, 16, D]: hidden, then the embeddings of codes 0..14."""
        tables = [self.model.codec_embedding, *self.code_predictor.model.codec_embedding]
        return torch.stack([hidden] + [tables[i](codes[:, i]) for i in range(NUM_BOOKS - 1)], 1)

    def prefill(self, ids0, special, english, speaker):
        """[B, P, D]: the published prompt up to T(text[0]) + C(bos); special: name -> text id; speaker [B]: their codec ids."""
        B = len(ids0)
        role = self.text(torch.tensor([special["im_start"], special["assistant"], special["newline"]]))
        codec = [THINK, THINK_BOS, ENGLISH, THINK_EOS] if english else [NOTHINK, THINK_BOS, THINK_EOS]
        codec = torch.tensor(codec + [0, PAD]).repeat(B, 1)
        codec[:, -2] = speaker
        codec = self.model.codec_embedding(codec)
        text = self.text(torch.tensor([special["tts_pad"]] * (codec.shape[1] - 1) + [special["tts_bos"]]))
        first = self.text(ids0)[:, None] + self.model.codec_embedding(torch.tensor(BOS))
        return torch.cat([role.expand(B, -1, -1), codec + text, first], 1)


def config(text_vocab):
    head = dict(head_dim=64, num_attention_heads=4, num_key_value_heads=2)
    return dict(
        head, vocab_size=K0 + 1024, hidden_size=256, intermediate_size=512, num_hidden_layers=4, text_hidden_size=256,
        text_vocab_size=text_vocab,
        code_predictor_config=dict(head, vocab_size=KR, hidden_size=192, intermediate_size=512, num_hidden_layers=3),
    )  # fmt: skip
