"""What a Qwen3-TTS folder says about its shapes and ids: frozen dataclasses read from its JSON files.

Every model field is required. Upstream's class defaults differ from the published files (20 layers, 32 code
groups, other ids), so a missing key is an error that names it, never a guess. Keys we do not use are ignored.
"""

import json
from dataclasses import dataclass, fields
from functools import cached_property
from math import inf, prod
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

# What upstream's classes put in for keys that a file leaves out. For the encoders, unlike for the decoders, these are
# the published values, and the published files do leave them out; the tensors' shapes hold nearly all of them.
SPEECH_ENCODER_DEFAULTS = {  # MimiConfig of transformers 4.57
    **{"num_filters": 64, "hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8},
    **{"num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2048, "codebook_size": 2048},
    **{"codebook_dim": 256, "num_semantic_quantizers": 1, "upsampling_ratios": [8, 6, 5, 4]},
    **{"norm_eps": 1e-5, "rope_theta": 10_000.0},
}
SPEAKER_ENCODER_DEFAULTS = {  # Qwen3TTSSpeakerEncoderConfig
    **{"mel_dim": 128, "enc_channels": [512, 512, 512, 512, 1536], "enc_kernel_sizes": [5, 3, 3, 3, 1]},
    **{"enc_dilations": [1, 2, 3, 4, 1], "enc_attention_channels": 128, "enc_res2net_scale": 8},
    "enc_se_channels": 128,
}
NUM_CONTROL_IDS = 1024  # the talker vocabulary ends in this many ids that are no codes (upstream `generate`)
MAX_JSON_BYTES = 64 << 20  # the largest file of a published model, its vocabulary, has 3 MB
# What is allocated before a tensor's shape could contradict it, far above any published model; others: MAX_SIZE.
MAX_SIZES = {"num_hidden_layers": 512, "num_code_groups": 64, "num_quantizers": 64, "sliding_window": 4096}
MAX_SIZES |= {"upsample_rates": 64, "upsampling_ratios": 64, "enc_kernel_sizes": 64, "enc_dilations": 64}
MAX_SIZE = 1 << 24
MAX_SAMPLE_RATE = 192_000
MAX_STAGES = 16  # of the SpeechDecoder and of the encoders

T = TypeVar("T")


class ModelError(ValueError):
    """A model folder that cannot be used: a file is missing, damaged, or not what it should be."""


def _read(cls: type[T], data: dict[str, Any], where: str, **given: Any) -> T:
    """A ``cls`` whose fields come from ``given`` or from the keys of the same name in ``data``."""
    names = [field.name for field in fields(cls) if field.name not in given]  # type: ignore[arg-type]
    missing = [name for name in names if name not in data]
    if missing:
        raise ModelError(f"{where}: missing {', '.join(missing)}; is this a Qwen3-TTS 12 Hz configuration?")
    hints = get_type_hints(cls)
    values = {name: tuple(data[name]) if isinstance(data[name], list) else data[name] for name in names}
    for name, value in values.items():
        if not _fits(value, hints[name], int(not name.endswith("_id")), MAX_SIZES.get(name, MAX_SIZE)):
            raise ModelError(f"{where}: {name} is {value!r:.60}, which makes no Qwen3-TTS 12 Hz model")
    return cls(**given, **values)


def _fits(value: Any, hint: Any, least: int, most: int) -> bool:
    """Whether a value is of a field's type: whole numbers in these bounds, positive finite ones, tables of such."""
    if hint is int:
        return type(value) is int and least <= value <= most
    if hint is float:
        return type(value) in (int, float) and 0 < value < inf
    if get_origin(hint) is tuple:
        return type(value) is tuple and len(value) <= MAX_STAGES and all(_fits(v, int, 1, most) for v in value)
    if get_origin(hint) is dict:
        return type(value) is dict and all(_fits(v, get_args(hint)[1], least, most) for v in value.values())
    return isinstance(value, hint)


AGAIN = "download it again, or mend what came from the hub with mlx-tts download --repair"


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; ModelError naming the file when it is not one."""
    try:
        if path.exists() and not path.is_file():
            raise ModelError(f"{path} is no file; expected a complete Qwen3-TTS folder")
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ModelError(f"{path} has {path.stat().st_size} bytes, too many for its kind; {AGAIN}")
        data = json.loads(path.read_text(encoding="utf-8"))
    except ModelError:
        raise
    except FileNotFoundError:
        raise ModelError(f"{path} is missing; expected a complete Qwen3-TTS folder; {AGAIN}") from None
    except (OSError, ValueError, RecursionError) as error:  # ValueError: no UTF-8, no JSON, an endless number
        raise ModelError(f"{path} cannot be read as JSON ({error}); {AGAIN}") from None
    if not isinstance(data, dict):
        raise ModelError(f"{path} holds {type(data).__name__}, expected a JSON object; {AGAIN}")
    return data


def _section(data: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    section = data.get(key)
    if not isinstance(section, dict):
        raise ModelError(f"{where}: missing section {key}; is this a Qwen3-TTS 12 Hz configuration?")
    return section


@dataclass(frozen=True)
class TransformerConfig:
    """What the two Qwen3 stacks have in common."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    vocab_size: int
    num_code_groups: int


@dataclass(frozen=True)
class MultiCodeDecoderConfig(TransformerConfig):
    """``talker_config.code_predictor_config``."""


@dataclass(frozen=True)
class CodeDecoderConfig(TransformerConfig):
    """``talker_config``."""

    max_position_embeddings: int
    text_hidden_size: int
    text_vocab_size: int
    codec_pad_id: int
    codec_bos_id: int
    codec_eos_token_id: int
    codec_think_id: int
    codec_nothink_id: int
    codec_think_bos_id: int
    codec_think_eos_id: int
    codec_language_id: dict[str, int]
    spk_id: dict[str, int]
    spk_is_dialect: dict[str, str | bool]

    @property
    def num_codes(self) -> int:
        """Entries of codebook 0: the vocabulary without its control ids."""
        return self.vocab_size - NUM_CONTROL_IDS


@dataclass(frozen=True)
class SpeechDecoderConfig:
    """``decoder_config`` of speech_tokenizer/config.json."""

    codebook_size: int
    codebook_dim: int
    hidden_size: int
    latent_dim: int
    head_dim: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    num_hidden_layers: int
    sliding_window: int
    num_quantizers: int
    num_semantic_quantizers: int
    decoder_dim: int
    upsample_rates: tuple[int, ...]
    upsampling_ratios: tuple[int, ...]
    rms_norm_eps: float
    rope_theta: float

    @property
    def samples_per_frame(self) -> int:
        return prod(self.upsample_rates) * prod(self.upsampling_ratios)


@dataclass(frozen=True)
class SpeechEncoderConfig:
    """``encoder_config`` of speech_tokenizer/config.json."""

    num_filters: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    codebook_size: int
    codebook_dim: int
    num_semantic_quantizers: int
    upsampling_ratios: tuple[int, ...]
    norm_eps: float
    rope_theta: float

    @property
    def samples_per_frame(self) -> int:
        return 2 * prod(self.upsampling_ratios)


@dataclass(frozen=True)
class SpeakerEncoderConfig:
    """``speaker_encoder_config``, which Base models have."""

    enc_dim: int
    sample_rate: int
    mel_dim: int
    enc_channels: tuple[int, ...]
    enc_kernel_sizes: tuple[int, ...]
    enc_dilations: tuple[int, ...]
    enc_attention_channels: int
    enc_res2net_scale: int
    enc_se_channels: int


@dataclass(frozen=True)
class ModelConfig:
    """Everything config.json and speech_tokenizer/config.json say that inference needs."""

    tts_model_type: str
    tts_model_size: str
    im_start_token_id: int
    im_end_token_id: int
    tts_pad_token_id: int
    tts_bos_token_id: int
    tts_eos_token_id: int
    code_decoder: CodeDecoderConfig
    multi_code_decoder: MultiCodeDecoderConfig
    speech_decoder: SpeechDecoderConfig
    speech_encoder: SpeechEncoderConfig | None  # None: the model cannot encode
    speaker_encoder: SpeakerEncoderConfig | None
    sample_rate: int
    default_speaker: str | None  # who speaks where the caller names nobody; a key of ours, published files have none
    text_reader: str | None  # what reads numerals for a model that knows words only; a key of ours, too

    @property
    def name(self) -> str:
        """What people call the model, for messages."""
        return f"{self.tts_model_size} {self.tts_model_type}"

    @cached_property
    def speakers(self) -> tuple[str, ...]:
        return tuple(self.code_decoder.spk_id)

    @cached_property
    def languages(self) -> tuple[str, ...]:
        """Names a caller may pass; dialects are reached through their speakers, as upstream."""
        return tuple(name for name in self.code_decoder.codec_language_id if "dialect" not in name)

    @property
    def follows_instruct(self) -> bool:
        """Upstream drops the instruction on 0.6B silently; we refuse it there (qwen3_tts_model.py)."""
        return self.tts_model_size != "0b6" and self.tts_model_type != "base"

    @property
    def frame_rate_hz(self) -> float:
        return self.sample_rate / self.speech_decoder.samples_per_frame


def read_config(folder: Path) -> ModelConfig:
    """The configuration of a model folder, read from its two config.json files.

    Raises ModelError for a missing file or key, another architecture, or numbers that contradict each other.
    """
    where = folder / "config.json"
    data = read_json(where)
    if data.get("model_type") != "qwen3_tts" or data.get("tokenizer_type") != "qwen3_tts_tokenizer_12hz":
        kind = f"{data.get('model_type')!r} with tokenizer {data.get('tokenizer_type')!r}"
        raise ModelError(f"{where} describes {kind}; expected 'qwen3_tts' with 'qwen3_tts_tokenizer_12hz'")
    if data.get("tts_model_type") not in ("custom_voice", "voice_design", "base"):
        raise ModelError(f"{where}: unknown tts_model_type {data.get('tts_model_type')!r}")
    talker = _section(data, "talker_config", str(where))
    predictor = _section(talker, "code_predictor_config", f"{where} talker_config")
    speech_where = folder / "speech_tokenizer" / "config.json"
    speech = read_json(speech_where)
    decoder = _section(speech, "decoder_config", str(speech_where))
    if not _fits(speech.get("output_sample_rate"), int, 1, MAX_SAMPLE_RATE):
        raise ModelError(f"{speech_where}: output_sample_rate is {speech.get('output_sample_rate')!r:.60}")
    config = _read(
        ModelConfig,
        data,
        str(where),
        code_decoder=_read(CodeDecoderConfig, talker, f"{where} talker_config"),
        multi_code_decoder=_read(MultiCodeDecoderConfig, predictor, f"{where} code_predictor_config"),
        speech_decoder=_read(SpeechDecoderConfig, decoder, f"{speech_where} decoder_config"),
        speech_encoder=_read_encoder(
            SpeechEncoderConfig, speech, "encoder_config", SPEECH_ENCODER_DEFAULTS, str(speech_where)
        ),
        speaker_encoder=_read_encoder(
            SpeakerEncoderConfig, data, "speaker_encoder_config", SPEAKER_ENCODER_DEFAULTS, str(where)
        ),
        sample_rate=speech["output_sample_rate"],
        default_speaker=data.get("default_speaker"),
        text_reader=data.get("text_reader"),
    )
    _check(config, str(where))
    _check_encoders(config, str(where))
    return config


def _read_encoder(cls: type[T], data: dict[str, Any], key: str, defaults: dict[str, Any], where: str) -> T | None:
    if data.get(key) is None:
        return None
    return _read(cls, defaults | _section(data, key, where), f"{where} {key}")


def _check(config: ModelConfig, where: str) -> None:
    """What the numbers of the three decoders must have in common. Raises ModelError."""
    code, multi, speech = config.code_decoder, config.multi_code_decoder, config.speech_decoder
    groups = {code.num_code_groups, multi.num_code_groups, speech.num_quantizers}
    if len(groups) != 1 or min(groups) < 2:
        raise ModelError(f"{where}: the three decoders disagree on the number of codebooks: {sorted(groups)}")
    if multi.vocab_size > speech.codebook_size:
        raise ModelError(
            f"{where}: code_predictor_config.vocab_size {multi.vocab_size} exceeds "
            f"the speech tokenizer's codebook_size {speech.codebook_size}"
        )
    if not 0 < code.num_codes <= speech.codebook_size:
        raise ModelError(
            f"{where}: talker_config.vocab_size {code.vocab_size} leaves "
            f"{code.num_codes} codes, expected 1 to codebook_size {speech.codebook_size}"
        )
    if speech.num_semantic_quantizers >= speech.num_quantizers:
        raise ModelError(f"{where}: all {speech.num_quantizers} codebooks are semantic, none is left for the rest")
    for name, part in (("talker", code), ("code_predictor", multi), ("speech tokenizer", speech)):
        if part.head_dim % 2 or part.num_attention_heads % part.num_key_value_heads:
            heads = f"{part.num_attention_heads} heads for {part.num_key_value_heads}, head_dim {part.head_dim}"
            raise ModelError(f"{where}: the {name} cannot have {heads}")
    _check_ids(config, where)


def _check_ids(config: ModelConfig, where: str) -> None:
    """Every id is a row of its table: MLX reads past the end of a table without an error."""
    ids = config.code_decoder
    texts = {name: value for name, value in vars(config).items() if name.endswith("_id")}
    codes = {name: value for name, value in vars(ids).items() if name.endswith("_id") and isinstance(value, int)}
    for table, named in ((ids.text_vocab_size, texts), (ids.vocab_size, codes | ids.spk_id | ids.codec_language_id)):
        for name, value in named.items():
            if value >= table:
                raise ModelError(f"{where}: {name:.60} is {value}, its table has {table} rows")
    if config.text_reader not in (None, "english"):
        raise ModelError(f"{where}: text_reader is {config.text_reader!r:.60}; expected 'english' or none")
    if config.default_speaker is not None and config.default_speaker not in config.speakers:
        raise ModelError(
            f"{where}: default_speaker {config.default_speaker!r:.60} is none of {', '.join(config.speakers)}"
        )
    for dialect in ids.spk_is_dialect.values():
        if isinstance(dialect, str) and dialect not in ids.codec_language_id:
            raise ModelError(f"{where}: a speaker's dialect {dialect!r:.60} is not in codec_language_id")


def _check_encoders(config: ModelConfig, where: str) -> None:
    decoder, encoder, speaker = config.speech_decoder, config.speech_encoder, config.speaker_encoder
    if encoder and (encoder.head_dim % 2 or encoder.num_attention_heads % encoder.num_key_value_heads):
        heads = f"{encoder.num_attention_heads} heads for {encoder.num_key_value_heads}, head_dim {encoder.head_dim}"
        raise ModelError(f"{where}: the speech encoder cannot have {heads}")
    if encoder and encoder.num_filters % 2:
        raise ModelError(f"{where}: num_filters of the speech encoder is {encoder.num_filters}, which has no half")
    if speaker:
        lists = speaker.enc_channels, speaker.enc_kernel_sizes, speaker.enc_dilations
        if len({*map(len, lists)}) != 1 or len(lists[0]) < 3:
            raise ModelError(f"{where}: the lists of speaker_encoder_config differ in length or are too short")
        if any(width % speaker.enc_res2net_scale for width in speaker.enc_channels[1:-1]):
            parts = f"{speaker.enc_channels[1:-1]} into {speaker.enc_res2net_scale} parts"
            raise ModelError(f"{where}: speaker_encoder_config divides channels of {parts}")
    if encoder and (encoder.samples_per_frame, encoder.codebook_size) != (
        decoder.samples_per_frame,
        decoder.codebook_size,
    ):
        raise ModelError(
            f"{where}: the speech tokenizer encodes {encoder.samples_per_frame} samples a frame with codebooks of "
            f"{encoder.codebook_size}, but decodes {decoder.samples_per_frame} with {decoder.codebook_size}"
        )
    if speaker and (speaker.enc_dim, speaker.sample_rate) != (config.code_decoder.hidden_size, 24_000):
        raise ModelError(
            f"{where}: speaker_encoder_config makes vectors of {speaker.enc_dim} at {speaker.sample_rate} Hz; "
            f"expected {config.code_decoder.hidden_size} at 24000 Hz"
        )
