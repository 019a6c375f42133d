"""The published 0.6B shape with random weights: does it load and run, with what memory and time per stage?

    python bench/full_size.py [--dtype bfloat16 float32] [--frames 5] [--keep DIR]

Writes a checkpoint in the published layout to a temporary folder (1.9 GB), loads it as any other and speaks.
Weights are random, so only memory and time mean anything. The last line on stdout is JSON.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx_rvqspec  # noqa: F401  isort: skip  before MLX: it brings a good BLAS on Linux

import mlx.core as mx
from harness import finish

from mlx_rvqspec.bench.harness import environment
from mlx_rvqspec.load import load_model
from mlx_rvqspec.prompt import build_prompt, choose_voice, embed_prompt
from mlx_rvqspec.sampling import Sampling
from mlx_rvqspec.utterance import Line, Steps, Utterance

TEMPLATE = Path(__file__).parents[1] / "tests" / "golden" / "tiny_customvoice"  # file layout and tokenizer
TEXT = "The quick brown fox jumps over the lazy dog."
SHARED = {"head_dim": 128, "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 3072}
PREDICTOR = {**SHARED, "hidden_size": 1024, "num_hidden_layers": 5, "vocab_size": 2048}
TALKER = {
    **SHARED,
    **{"hidden_size": 1024, "num_hidden_layers": 28, "vocab_size": 3072, "text_hidden_size": 2048},
    **{"text_vocab_size": 151936},
}
DECODER = {
    **{"codebook_size": 2048, "codebook_dim": 512, "hidden_size": 512, "latent_dim": 1024, "head_dim": 64},
    **{"num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 1024, "num_hidden_layers": 8},
    **{"sliding_window": 72, "decoder_dim": 1536},
}
Shapes = Iterator[tuple[str, tuple[int, ...]]]


def layer_shapes(prefix: str, c: dict[str, Any], head_norms: bool) -> Shapes:
    D, width, kv_width = (
        c["hidden_size"],
        *(c[n] * c["head_dim"] for n in ("num_attention_heads", "num_key_value_heads")),
    )
    for name, shape in (("q", (width, D)), ("k", (kv_width, D)), ("v", (kv_width, D)), ("o", (D, width))):
        yield f"{prefix}.self_attn.{name}_proj.weight", shape
    for name in ("gate", "up"):
        yield f"{prefix}.mlp.{name}_proj.weight", (c["intermediate_size"], D)
    yield f"{prefix}.mlp.down_proj.weight", (D, c["intermediate_size"])
    for name in ("input", "post_attention"):
        yield f"{prefix}.{name}_layernorm.weight", (D,)
    if head_norms:
        yield from ((f"{prefix}.self_attn.{name}_norm.weight", (c["head_dim"],)) for name in "qk")
    else:
        yield from ((f"{prefix}.{name}_layer_scale.scale", (D,)) for name in ("self_attn", "mlp"))


def talker_shapes() -> Shapes:
    D, P, text = TALKER["hidden_size"], PREDICTOR["hidden_size"], TALKER["text_hidden_size"]
    yield "talker.codec_head.weight", (TALKER["vocab_size"], D)
    yield "talker.model.codec_embedding.weight", (TALKER["vocab_size"], D)
    yield "talker.model.text_embedding.weight", (TALKER["text_vocab_size"], text)
    for name, out in (("fc1", text), ("fc2", D)):
        yield f"talker.text_projection.linear_{name}.weight", (out, text)
        yield f"talker.text_projection.linear_{name}.bias", (out,)
    for prefix, c in (("talker.model", TALKER), ("talker.code_predictor.model", PREDICTOR)):
        yield f"{prefix}.norm.weight", (c["hidden_size"],)
        for i in range(c["num_hidden_layers"]):
            yield from layer_shapes(f"{prefix}.layers.{i}", c, head_norms=True)
    for i in range(15):
        yield f"talker.code_predictor.model.codec_embedding.{i}.weight", (PREDICTOR["vocab_size"], D)
        yield f"talker.code_predictor.lm_head.{i}.weight", (PREDICTOR["vocab_size"], P)


def conv(name: str, out: int, inp: int, kernel: int) -> Shapes:
    yield f"{name}.conv.weight", (out, inp, kernel)
    yield f"{name}.conv.bias", (out,)


def snake(name: str, width: int) -> Shapes:
    yield from ((f"{name}.{part}", (width,)) for part in ("alpha", "beta"))


def speech_shapes() -> Shapes:
    c, half, latent = DECODER, DECODER["codebook_dim"] // 2, DECODER["latent_dim"]
    for group, books in (("rvq_first", 1), ("rvq_rest", 15)):
        yield f"quantizer.{group}.output_proj.weight", (c["codebook_dim"], half, 1)
        yield f"quantizer.{group}.input_proj.weight", (half, c["codebook_dim"], 1)
        for i in range(books):
            book = f"quantizer.{group}.vq.layers.{i}._codebook"
            yield f"{book}.embedding_sum", (c["codebook_size"], half)
            yield f"{book}.cluster_usage", (c["codebook_size"],)
    yield from conv("pre_conv", latent, c["codebook_dim"], 3)
    for name, out, inp in (("input_proj", c["hidden_size"], latent), ("output_proj", latent, c["hidden_size"])):
        yield f"pre_transformer.{name}.weight", (out, inp)
        yield f"pre_transformer.{name}.bias", (out,)
    yield "pre_transformer.norm.weight", (c["hidden_size"],)
    for i in range(c["num_hidden_layers"]):
        yield from layer_shapes(f"pre_transformer.layers.{i}", c, head_norms=False)
    for i in range(2):
        yield from conv(f"upsample.{i}.0", latent, latent, 2)
        yield from conv(f"upsample.{i}.1.dwconv", latent, 1, 7)
        for name, shape in (
            *(("norm.weight", (latent,)), ("norm.bias", (latent,)), ("gamma", (latent,))),
            *(("pwconv1.weight", (4 * latent, latent)), ("pwconv1.bias", (4 * latent,))),
            *(("pwconv2.weight", (latent, 4 * latent)), ("pwconv2.bias", (latent,))),
        ):
            yield f"upsample.{i}.1.{name}", shape
    width = c["decoder_dim"]
    yield from conv("decoder.0", width, latent, 7)
    for i, rate in enumerate((8, 5, 4, 3), 1):
        yield from snake(f"decoder.{i}.block.0", width)
        yield f"decoder.{i}.block.1.conv.weight", (width, width // 2, 2 * rate)  # transposed: inputs first
        yield f"decoder.{i}.block.1.conv.bias", (width // 2,)
        width //= 2
        for unit in (2, 3, 4):
            yield from (x for act in ("act1", "act2") for x in snake(f"decoder.{i}.block.{unit}.{act}", width))
            yield from conv(f"decoder.{i}.block.{unit}.conv1", width, width, 7)
            yield from conv(f"decoder.{i}.block.{unit}.conv2", width, width, 1)
    yield from snake("decoder.5", width)
    yield from conv("decoder.6", 1, width, 7)


def random_tensor(name: str, shape: tuple[int, ...], key: mx.array) -> mx.array:
    """Scales that keep activations finite: unit norms and usage, small snakes, 1/sqrt(fan in) elsewhere."""
    if "norm.weight" in name or "layernorm" in name or "cluster_usage" in name:
        return mx.ones(shape)
    if len(shape) == 1:
        return 0.02 * mx.random.normal(shape, key=key)
    return mx.random.normal(shape, key=key) / (mx.array(shape[1:]).prod().item() ** 0.5)


def write_checkpoint(folder: Path) -> None:
    """A random checkpoint of the published 0.6B CustomVoice shape, bf16 talker and fp32 speech tokenizer."""
    shutil.copytree(TEMPLATE, folder, ignore=shutil.ignore_patterns("*.npz", "*.safetensors"))
    config = json.loads((folder / "config.json").read_text())
    talker = config["talker_config"]
    shift = 2048 - 64  # control ids keep their distance to the codebook size
    ids = {k: v + shift for k, v in talker.items() if k.startswith("codec_") and isinstance(v, int)}
    tables = {k: {n: i + shift for n, i in talker[k].items()} for k in ("spk_id", "codec_language_id")}
    predictor = {**talker["code_predictor_config"], **PREDICTOR}
    config["talker_config"] = {**talker, **TALKER, **ids, **tables, "code_predictor_config": predictor}
    (folder / "config.json").write_text(json.dumps(config))
    speech_config = folder / "speech_tokenizer" / "config.json"
    speech = json.loads(speech_config.read_text())
    speech["decoder_config"].update(DECODER)
    speech.pop("encoder_config", None)  # the template's is of other sizes, and its weights are not written
    speech_config.write_text(json.dumps(speech))
    for path, prefix, shapes, dtype in (
        (folder, "", talker_shapes(), mx.bfloat16),
        (folder / "speech_tokenizer", "decoder.", speech_shapes(), mx.float32),
    ):
        keys = iter(mx.random.split(mx.random.key(0), 2048))
        tensors = {prefix + name: random_tensor(name, shape, next(keys)).astype(dtype) for name, shape in shapes}
        mx.save_safetensors(str(path / "model.safetensors"), tensors, {"format": "pt"})


def timed(function: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    begin = time.perf_counter()
    result = function(*args)
    mx.eval(result)
    return result, 1e3 * (time.perf_counter() - begin)


def run(folder: Path, dtype: str, num_frames: int) -> dict[str, Any]:
    """Load and run in this process; each stage waits for its result, so stages add up to the frame."""
    begin = time.perf_counter()
    model = load_model(folder, dtype=dtype)
    load_s = time.perf_counter() - begin
    weights_bytes = mx.get_active_memory()
    sampling = Sampling()
    prompt = build_prompt(model.config, model.tokenizer, TEXT, choose_voice(model.config, "ryan", "english"), "full")
    steps = Steps(model, sampling, wrap=lambda function: function)

    def prefill() -> Utterance:
        return Utterance(steps, [Line(*embed_prompt(prompt, model), 1, num_frames)], sampling)

    begin = time.perf_counter()
    utterance = prefill()
    mx.eval(utterance.state)
    stages: dict[str, list[float]] = {"prefill": [1e3 * (time.perf_counter() - begin)]}
    state = model.speech_decoder.initial_state(1)
    for frame in range(num_frames):
        s, text, number = utterance.state, utterance.lines[0].trailing[-1][None], mx.array(frame + 1, dtype=mx.uint32)
        codes, decode_ms = timed(steps.decode, s.hidden, s.code0, s.noise, utterance.knobs)
        after, advance_ms = timed(steps.advance, codes, text, (s.seen, s.cache), number, utterance.request)
        utterance.state = type(s)(*after)
        (audio, state), speech_ms = timed(model.speech_decoder.step, codes[:, None], state)
        assert bool(mx.isfinite(audio).all()), "audio is not finite"
        for name, value in (
            ("multi_code_decoder", decode_ms),
            ("code_decoder", advance_ms),
            ("speech_decoder", speech_ms),
        ):
            stages.setdefault(name, []).append(value)
    return {
        "dtype": dtype,
        "frames": num_frames,
        "prompt_rows": len(prompt.text_ids),
        "load_s": load_s,
        "weights_bytes": weights_bytes,
        "peak_bytes": mx.get_peak_memory(),
        "ms_per_frame_median": {name: statistics.median(values) for name, values in stages.items()},
        "ms_per_frame": stages,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--frames", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="write the checkpoint here and leave it")
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        print(json.dumps(run(args.run, args.dtype[0], args.frames)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.keep or Path(scratch) / "full-size"
        if not folder.exists():
            write_checkpoint(folder)
        results = []
        for dtype in args.dtype:  # a process each: peak memory is that of one precision
            command = [sys.executable, __file__, "--run", str(folder), "--dtype", dtype, "--frames", str(args.frames)]
            results.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
            print(dtype, json.dumps(results[-1]["ms_per_frame_median"]), file=sys.stderr)
    finish(
        "full_size_" + "_".join(args.dtype), {"environment": environment(), "text": TEXT, "seed": 1, "runs": results}
    )


if __name__ == "__main__":
    main()
