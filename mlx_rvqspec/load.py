"""From a folder, a hub id or nothing to a Qwen3TTS, strictly: every file and tensor is checked before it is used.

Nothing is downloaded when the hub cache already holds the model; a folder that is incomplete or damaged is one
error that names the file, the reason and the remedy.
"""

import hashlib
import os
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from .code_decoder import CodeDecoder
from .config import AGAIN, ModelConfig, ModelError, read_config, read_json
from .hub import cached, fetch, is_id
from .layers import lay_out
from .model import Qwen3TTS
from .multi_code_decoder import MultiCodeDecoder, stack_codebooks
from .names import PUBLISHED, nearest, nearest_path
from .quantisation import adapt, check_packing, label, level, quantise, table_of
from .sampling import frame_limit, sampling_defaults
from .speech_decoder.decoder import SpeechDecoder
from .speech_encoder.encoder import SpeechEncoder
from .speech_encoder.speaker import SpeakerEncoder
from .tensor_file import read_header, read_tensors
from .tokenizer import load_tokenizer

DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}
SOURCE_FINGERPRINT = "source_fingerprint"  # key of config.json in a quantised copy: of the model it was made from
NEEDED_FILES = [
    "config.json",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "speech_tokenizer/config.json",
]


def embedded_folder() -> Path:
    """The built-in voice: package data of an installed wheel, or weights/ of a source checkout."""
    here = Path(__file__).parent
    packaged = here / "weights" / "tiny-en"
    return packaged if packaged.is_dir() else here.parent / "weights" / "tiny-en"


def resolve(model: str | Path | None, *, local_files_only: bool = False) -> Path:
    """The folder of ``model``: a path, a hub id such as ``Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice``, or None.

    A hub id that is complete in the local cache costs no network call; another one is downloaded unless
    local_files_only. Raises ModelError for what is no model, or cannot be had.
    """
    if model is None:
        return embedded_folder()
    folder = Path(os.path.expanduser(model))  # unlike Path's, it leaves alone what names no user
    if folder.is_dir():
        return folder
    if folder.exists():
        raise ModelError(f"{model} is a file; expected a model folder with config.json in it")
    if not is_id(str(model)):
        near = nearest_path(folder) or nearest(str(model), PUBLISHED)
        raise ModelError(f"{model} is neither a folder nor a hub id such as {PUBLISHED[1]}{near}")
    return _from_hub(str(model), local_files_only)


def _from_hub(repo: str, local_files_only: bool) -> Path:
    folder = cached(repo)
    if folder is None or not is_complete(folder):
        if local_files_only:
            raise ModelError(f"{repo} is not complete in the local cache; mlx-tts download {repo} brings it here")
        folder = fetch(repo)
    if not is_complete(folder):
        raise ModelError(f"{repo} is not complete in the local cache; run mlx-tts download --repair {repo}")
    return folder


def is_complete(folder: Path) -> bool:
    """Whether every file that loading needs is there (contents are checked while loading)."""
    try:
        weights = [*weight_files(folder), *weight_files(folder / "speech_tokenizer")]
    except ModelError:
        return False
    return all(path.exists() for path in [*weights, *(folder / name for name in NEEDED_FILES)])


def weight_files(folder: Path) -> list[Path]:
    """model.safetensors, or the shards that model.safetensors.index.json names."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return [folder / "model.safetensors"]
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(n, str) for n in names.values()):
        raise ModelError(f"{index}: weight_map is missing or not a table of file names; {AGAIN}")
    if any(Path(name).name != name or "\0" in name for name in names.values()):
        raise ModelError(f"{index}: weight_map names a file outside its folder; refusing to follow it")
    return [folder / name for name in sorted(set(names.values()))]


def read_weights(folder: Path) -> dict[str, mx.array]:
    """All tensors of a folder by their checkpoint names, checked and not yet read from disk."""
    weights: dict[str, mx.array] = {}
    for path in weight_files(folder):
        weights.update(read_tensors(path)[0])
    return weights


def fingerprint(folder: Path) -> str:
    """What a drafter is fitted to: SHA-256 over the MultiCodeDecoder's norms and first head as stored.

    Where it is quantised, over all its scales too, which tell apart copies whose first head was left as it was.
    """
    places = {name: (path, span) for path in weight_files(folder) for name, span in read_header(path)[0].items()}
    digest = hashlib.sha256()
    for name, (path, span) in sorted(places.items()):
        if "code_predictor" in name and ("norm" in name or "lm_head.0." in name or name.endswith(".scales")):
            with path.open("rb") as file:
                file.seek(span.begin)
                digest.update(name.encode() + file.read(span.end - span.begin))
    return digest.hexdigest()


def fingerprints(folder: Path) -> tuple[str, ...]:
    """The fingerprint of a folder and, where it is a quantised copy, that of the model it was made from."""
    source = read_json(folder / "config.json").get(SOURCE_FINGERPRINT)
    return (fingerprint(folder), str(source)) if source else (fingerprint(folder),)


def _fill(module: nn.Module, weights: dict[str, mx.array], dtype: mx.Dtype, where: Path) -> None:
    """Load ``weights`` into ``module``: same names, same shapes, nothing missing, nothing left. Empties ``weights``.

    So that no stored tensor is still held when its converted one is made: half the memory.
    """
    adapt(module, weights, str(where))

    def converted(name: str) -> mx.array:
        value = weights.pop(name)
        return value if value.dtype == mx.uint32 else value.astype(dtype)

    try:
        module.load_weights([(name, converted(name)) for name in list(weights)], strict=True)
    except ValueError as error:
        message = " ".join(str(error).split())  # it lists every tensor
        raise ModelError(f"{where}: {message if len(message) < 300 else message[:300] + '...'}") from None
    module.eval()
    lay_out(module)
    mx.eval(module.parameters())  # a part at a time, or stored and converted tensors of all would be held at once


def _under(weights: dict[str, mx.array], prefix: str) -> dict[str, mx.array]:
    return {name.removeprefix(prefix): weights.pop(name) for name in list(weights) if name.startswith(prefix)}


def default_dtype(stored: mx.Dtype) -> mx.Dtype:
    """bfloat16 weights stay so on a GPU; all others, and everything on the CPU, run in float32.

    float16 overflows in this model's logits, and CPU backends are slower at 16 bits.
    """
    on_gpu = mx.default_device() == mx.Device(mx.gpu)
    return mx.bfloat16 if on_gpu and stored == mx.bfloat16 else mx.float32


def load_model(
    model: str | Path | None = None, *, dtype: str | None = None, quantize: int | str | None = None
) -> Qwen3TTS:
    """A checkpoint ready to run: ``model`` is a folder, a hub id, or None for the built-in voice.

    dtype: "float32", "bfloat16", "float16", or None for ``default_dtype``. The SpeechDecoder is always float32.
    quantize: 8, 6, 4 or "mixed", see ``quantisation.level``, for a model whose folder is not quantised.
    Raises ModelError when the folder cannot be used, ValueError for an unknown dtype or quantize.
    """
    wanted = None if quantize is None else level(quantize)
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}; expected one of {', '.join(DTYPES)}")
    folder = resolve(model)
    config = read_config(folder)
    tokenizer = load_tokenizer(folder, config)
    defaults = read_json(folder / "generation_config.json")
    try:
        sampling, max_frames = sampling_defaults(defaults), frame_limit(defaults)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise ModelError(f"{folder / 'generation_config.json'}: {error}; {AGAIN}") from None
    weights, table = read_talker(folder)
    if wanted:
        if table:
            raise ModelError(f"{folder} is quantised already ({label(table)}); load it without quantize")
        weights, table = quantise(weights, *wanted)
    norm = weights.get("talker.model.norm.weight")
    chosen = DTYPES[dtype] if dtype else default_dtype(mx.float32 if norm is None else norm.dtype)
    code_decoder, multi_code_decoder = _load_talker(config, weights, chosen, folder)
    return Qwen3TTS(
        config=config,
        code_decoder=code_decoder,
        multi_code_decoder=multi_code_decoder,
        speech_decoder=_load_speech_decoder(config, folder / "speech_tokenizer"),
        tokenizer=tokenizer,
        sampling=sampling,
        max_frames=max_frames,
        # upstream's wrapper prefills the whole text for named and designed voices; a checkpoint may say otherwise
        text_feed="full" if defaults.get("non_streaming_mode", config.tts_model_type != "base") else "stream",
        dtype=chosen,
        quantised=label(table),
        fingerprint=fingerprint(folder),
        source_fingerprint=str(read_json(folder / "config.json").get(SOURCE_FINGERPRINT, "")),
        folder=folder,
    )


def read_talker(folder: Path) -> tuple[dict[str, mx.array], dict[str, Any] | None]:
    """The tensors of the two code decoders, and how they are quantised, see ``quantisation.table_of``; both checked."""
    where = folder / "config.json"
    table = table_of(read_json(where), str(where))
    weights = read_weights(folder)
    check_packing(weights, table, str(folder))
    return weights, table


def _load_talker(
    config: ModelConfig, weights: dict[str, mx.array], dtype: mx.Dtype, where: Path
) -> tuple[CodeDecoder, MultiCodeDecoder]:
    predictor = _under(weights, "talker.code_predictor.")
    talker = _under(weights, "talker.")
    _under(weights, "speaker_encoder.")  # voice cloning reads these; the decoders do not
    if weights:
        raise ModelError(f"{where}: unexpected tensors {', '.join(sorted(weights)[:5])}")
    code_decoder = CodeDecoder(config.code_decoder)
    _fill(code_decoder, talker, dtype, where)
    multi_code_decoder = MultiCodeDecoder(config.multi_code_decoder, config.code_decoder)
    try:
        predictor = stack_codebooks(predictor, multi_code_decoder.num_codes)
    except KeyError as error:
        raise ModelError(f"{where}: tensor talker.code_predictor.{error.args[0]} is missing") from None
    except ValueError as error:
        raise ModelError(f"{where}: talker.code_predictor.{error}") from None
    _fill(multi_code_decoder, predictor, dtype, where)
    return code_decoder, multi_code_decoder


def _load_speech_decoder(config: ModelConfig, folder: Path) -> SpeechDecoder:
    decoder = SpeechDecoder(config.speech_decoder)
    tensors = _under(read_weights(folder), "decoder.")
    try:
        tensors = decoder.sanitize(tensors)
    except KeyError as error:
        raise ModelError(f"{folder}: tensor decoder.{error.args[0]} is missing") from None
    except (IndexError, ValueError) as error:
        raise ModelError(f"{folder}: the tensors of decoder do not fit together ({error})") from None
    _fill(decoder, tensors, mx.float32, folder)
    return decoder


def load_speech_encoder(config: ModelConfig, folder: Path) -> SpeechEncoder:
    """The encoder that ``config``, read from ``folder``, describes. Raises ModelError when there is none."""
    tensors = _under(read_weights(folder / "speech_tokenizer"), "encoder.")
    if config.speech_encoder is None or not tensors:
        raise ModelError(f"{folder} has no speech encoder, so it cannot turn sound into codes; a Base model can")
    encoder = SpeechEncoder(config.speech_encoder, config.speech_decoder.num_quantizers)
    try:
        tensors = encoder.sanitize(tensors)
    except KeyError as error:
        raise ModelError(f"{folder / 'speech_tokenizer'}: tensor encoder.{error.args[0]} is missing") from None
    _fill(encoder, tensors, mx.float32, folder / "speech_tokenizer")
    return encoder


def load_speaker_encoder(config: ModelConfig, folder: Path) -> SpeakerEncoder:
    """The encoder that ``config``, read from ``folder``, describes. Raises ModelError when there is none."""
    if config.speaker_encoder is None:
        raise ModelError(f"{folder} has no speaker encoder, so it cannot take on a voice; a Base model can")
    encoder = SpeakerEncoder(config.speaker_encoder)
    _fill(encoder, encoder.sanitize(_under(read_weights(folder), "speaker_encoder.")), mx.float32, folder)
    return encoder
