"""The text tokenizer: byte-level BPE whose few merges are English graphemes, so a token lasts about one frame of speech.

spelling.py OUTDIR      writes vocab.json, merges.txt, tokenizer_config.json
"""

import json
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|audio_start|>", "<|audio_end|>",
    "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>", "<tts_text_bos_single>", "<|audio_pad|>",
]  # fmt: skip
DIGRAPHS = "th sh ch ph wh ck ng gh qu ll ss tt ff rr pp nn mm cc dd gg bb zz ee oo ea ou ai ay ow oa ie au aw ew oy oi er"
CHAIN = [("a", "ss"), ("ass", "i"), ("assi", "s"), ("assis", "t"), ("assist", "a"), ("assista", "n"), ("assistan", "t"), ("u", "s"), ("us", "er")]


def byte_alphabet():
    """GPT-2's printable stand-ins, in byte order of printable bytes first."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in keep]
    return [chr(b) for b in keep] + [chr(256 + i) for i in range(len(rest))]


def merge_list(space_merges=""):
    merges = [tuple(d) for d in DIGRAPHS.split()]
    merges += [("Ġ", s) for s in space_merges.split()]
    return merges + CHAIN


def vocabulary(merges):
    tokens = byte_alphabet() + ["".join(m) for m in merges]
    assert len(set(tokens)) == len(tokens)
    return {t: i for i, t in enumerate(tokens)}


SPACE_MERGES = "th wh sh ch a b c d e f g h i j k l m n o p q r s t u v w x y z"


def build(space_merges=SPACE_MERGES):
    """(tokenizer, vocab without specials, merges)."""
    merges = merge_list(space_merges)
    vocab = vocabulary(merges)
    tok = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    return tok, vocab, merges


def write(out):
    tok, vocab, merges = build()
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False, indent=0), encoding="utf8")
    (out / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges), encoding="utf8")
    added = {
        str(tok.token_to_id(s)): dict(content=s, lstrip=False, normalized=False, rstrip=False, single_word=False, special=True)
        for s in SPECIAL
    }
    config = dict(
        add_bos_token=False, add_prefix_space=False, bos_token=None, unk_token=None, errors="replace",
        added_tokens_decoder=added, additional_special_tokens=SPECIAL[1:], clean_up_tokenization_spaces=False,
        eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=131072, split_special_tokens=False,
        processor_class="Qwen3TTSProcessor", tokenizer_class="Qwen2Tokenizer",
    )  # fmt: skip
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    write(sys.argv[1])
