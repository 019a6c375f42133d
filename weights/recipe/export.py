"""Write trained states as a checkpoint folder in the published layout, float16.

export.py LM_STATE.pt DECODER_STATE.pt OUTDIR [BEFORE.safetensors]

BEFORE: the weights that a training on another speaker began from. The CodeDecoder's layers and head then become a quarter of
these and three quarters of what was learnt, which forgets less of the first speaker (Wortsman et al. 2022, robust fine-tuning).
"""

import json
import os
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import spelling
from decoder_net import CONFIG as DECODER
from talker_net import BOS, ENGLISH, EOS, K0, NOTHINK, PAD, SPEAKERS, THINK, THINK_BOS, THINK_EOS, config

GENERATION = dict(
    do_sample=True, repetition_penalty=1.0, temperature=0.6, top_k=50, top_p=1.0, subtalker_dosample=True,
    subtalker_temperature=0.9, subtalker_top_k=50, subtalker_top_p=1.0, max_new_tokens=1500, non_streaming_mode=False,
)  # fmt: skip


def model_config(tok):
    ids = {k: tok.token_to_id(v) for k, v in dict(
        im_start_token_id="<|im_start|>", im_end_token_id="<|im_end|>", tts_pad_token_id="<tts_pad>",
        tts_bos_token_id="<tts_text_bos>", tts_eos_token_id="<tts_text_eod>").items()}  # fmt: skip
    common = dict(
        rms_norm_eps=1e-06, hidden_act="silu", rope_theta=1000000, num_code_groups=16, attention_bias=False, attention_dropout=0,
        use_sliding_window=False, sliding_window=None, initializer_range=0.02, use_cache=True,
    )  # fmt: skip
    c = config(tok.get_vocab_size())
    cp = {**c.pop("code_predictor_config"), **common, "model_type": "qwen3_tts_talker_code_predictor", "max_position_embeddings": 65536, "rope_scaling": None}
    half = c["head_dim"] // 2
    talker = {
        **c, **common, "model_type": "qwen3_tts_talker", "max_position_embeddings": 32768, "position_id_per_seconds": 13,
        "rope_scaling": {"interleaved": True, "mrope_section": [half - 2 * (half // 3), half // 3, half // 3], "rope_type": "default", "type": "default"},
        "code_predictor_config": cp, "spk_id": SPEAKERS, "spk_is_dialect": dict.fromkeys(SPEAKERS, False),
        "codec_language_id": {"english": ENGLISH}, "codec_pad_id": PAD, "codec_bos_id": BOS, "codec_eos_token_id": EOS,
        "codec_think_id": THINK, "codec_nothink_id": NOTHINK, "codec_think_bos_id": THINK_BOS, "codec_think_eos_id": THINK_EOS,
    }  # fmt: skip
    return {
        "architectures": ["Qwen3TTSForConditionalGeneration"], "model_type": "qwen3_tts", "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": "0b6", "tts_model_type": "custom_voice", "default_speaker": next(iter(SPEAKERS)), "text_reader": "english", **ids, "talker_config": talker, "transformers_version": "4.57.3",
    }  # fmt: skip


def codec_config():
    return {
        "architectures": ["Qwen3TTSTokenizerV2Model"], "model_type": "qwen3_tts_tokenizer_12hz", "encoder_valid_num_quantizers": 16,
        "input_sample_rate": 24000, "output_sample_rate": 24000, "decode_upsample_rate": 1920, "encode_downsample_rate": 1920,
        "decoder_config": DECODER,
    }  # fmt: skip


KEPT = 0.25  # of the weights before


def blended(tensors, before):
    """The CodeDecoder's matrices between what they were and what they have become; not its table, which has new rows."""
    old = {k.removeprefix("talker."): v.float() for k, v in load_file(before).items()}
    shared = [k for k in tensors if not k.startswith("code_predictor") and k != "model.codec_embedding.weight"]
    return tensors | {k: tensors[k].lerp(old[k], KEPT) for k in shared}


def half(tensors):
    return {k: v.half().contiguous() for k, v in tensors.items()}


def dump(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def main(lm, decoder, out, before=None):
    out, tok = Path(out), spelling.build()[0]
    tmp = out.with_name(out.name + ".tmp")
    shutil.rmtree(tmp, ignore_errors=True)
    (tmp / "speech_tokenizer").mkdir(parents=True)
    spelling.write(tmp)
    dump(tmp / "config.json", model_config(tok))
    dump(tmp / "generation_config.json", GENERATION)
    dump(tmp / "preprocessor_config.json", {"processor_class": "Qwen3TTSProcessor"})
    dump(tmp / "speech_tokenizer/config.json", codec_config())
    dump(tmp / "speech_tokenizer/preprocessor_config.json", dict(
        feature_extractor_type="EncodecFeatureExtractor", feature_size=1, padding_value=0.0, sampling_rate=24000,
        padding_side="right", return_attention_mask=True, chunk_length_s=None, overlap=None))  # fmt: skip
    learnt = torch.load(lm)["mean"]
    weights = blended(learnt, before) if before else learnt
    save_file(half({"talker." + k: v for k, v in weights.items()}), tmp / "model.safetensors", {"format": "pt"})
    d = {"decoder." + k: v for k, v in torch.load(decoder)["mean"].items()}
    save_file(half(d), tmp / "speech_tokenizer/model.safetensors", {"format": "pt"})
    for p in tmp.rglob("*.safetensors"):
        p.chmod(0o644)
    old = out.with_name(out.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        os.rename(out, old)
    os.rename(tmp, out)
    shutil.rmtree(old, ignore_errors=True)
    size = sum(p.stat().st_size for p in out.rglob("*") if p.is_file())
    print(f"{out}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(*sys.argv[1:])
