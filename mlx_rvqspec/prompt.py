"""From text, speaker, language and instruction to the ids the CodeDecoder is prefilled with.

Layout as upstream (modeling_qwen3_tts.py, ``generate``): every position is a text embedding, most of them plus the
embedding of a code or control id. Names are checked against config.json alone, before any weights are loaded.
"""

from dataclasses import dataclass
from difflib import get_close_matches

import mlx.core as mx
from tokenizers import Tokenizer

from .code_decoder import CodeDecoder
from .config import ModelConfig

NUM_ROLE_TOKENS = 3  # <|im_start|> assistant \n
NUM_END_TOKENS = 5  # <|im_end|> \n <|im_start|> assistant \n
TEXT_FEEDS = ("full", "stream")
LANGUAGE_ALIASES = {
    **{"en": "english", "zh": "chinese", "ja": "japanese", "ko": "korean", "de": "german"},
    **{"fr": "french", "ru": "russian", "pt": "portuguese", "es": "spanish", "it": "italian"},
}


@dataclass(frozen=True)
class Voice:
    """Who speaks and how: names checked against the model, turned into ids."""

    speaker: str | None
    language: str
    speaker_id: int | None
    language_id: int | None
    instruct: str | None


@dataclass(frozen=True)
class Prompt:
    """Ids of the prefill and of the text still to come.

    text_ids: one per position; code_ids: those of the last ``len(code_ids)`` positions; trailing_ids: one is
    added per frame, then the pad id.
    """

    text_ids: list[int]
    code_ids: list[int]
    trailing_ids: list[int]
    pad_id: int


def choose_voice(
    config: ModelConfig, speaker: str | None = None, language: str = "auto", instruct: str | None = None
) -> Voice:
    """The voice for these names, matched without regard to case, spaces and dashes.

    A dialect speaker turns language "chinese" and "auto" into the dialect, as upstream. Raises ValueError for
    an unknown name, a speaker or instruction this kind of model does not take, or a missing one it needs.
    """
    if config.tts_model_type == "base":
        raise ValueError("this is a Base model: it speaks with a cloned voice, which is not supported yet")
    name = _choose_speaker(config, speaker)
    language = _choose_language(config, language)
    if instruct is not None and not config.follows_instruct:
        raise ValueError(
            f"instruct given, but this {config.tts_model_size} {config.tts_model_type} model ignores instructions; "
            "use a 1.7B CustomVoice or VoiceDesign model"
        )
    ids = config.code_decoder
    dialect = ids.spk_is_dialect.get(name, False) if name else False
    spoken = dialect if isinstance(dialect, str) and language in ("chinese", "auto") else language
    return Voice(
        speaker=name,
        language=spoken,
        speaker_id=ids.spk_id[name] if name else None,
        language_id=None if spoken == "auto" else ids.codec_language_id[spoken],
        instruct=instruct,
    )


def _choose_speaker(config: ModelConfig, speaker: str | None) -> str | None:
    names = config.speakers
    if config.tts_model_type == "voice_design":
        if speaker is not None:
            raise ValueError(f"speaker {speaker!r} given, but a VoiceDesign model takes a description: instruct=")
        return None
    if speaker is None:
        if len(names) == 1:
            return names[0]
        raise ValueError(f"no speaker given; this model has {', '.join(names)}")
    wanted = speaker.strip().lower().replace(" ", "_").replace("-", "_")
    if wanted in names:
        return wanted
    near = get_close_matches(wanted, names, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ValueError(f"unknown speaker {speaker!r}; this model has {', '.join(names)}{hint}")


def _choose_language(config: ModelConfig, language: str) -> str:
    wanted = language.strip().lower()
    wanted = LANGUAGE_ALIASES.get(wanted.replace("_", "-").split("-")[0], wanted)
    if wanted == "auto" or wanted in config.languages:
        return wanted
    names = ("auto", *config.languages)
    near = get_close_matches(wanted, names, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ValueError(f"unknown language {language!r}; expected {', '.join(names)}, or a code such as en-US{hint}")


def build_prompt(config: ModelConfig, tokenizer: Tokenizer, text: str, voice: Voice, text_feed: str) -> Prompt:
    """The ids for ``text``: "full" puts all of it before the first frame, "stream" one token beside each frame."""
    ids = config.code_decoder
    tokens = tokenizer.encode(f"<|im_start|>assistant\n{text}<|im_end|>\n<|im_start|>assistant\n").ids
    role, words = tokens[:NUM_ROLE_TOKENS], tokens[NUM_ROLE_TOKENS:-NUM_END_TOKENS]
    front = tokenizer.encode(f"<|im_start|>user\n{voice.instruct}<|im_end|>\n").ids if voice.instruct else []
    if voice.language_id is None:
        prefix = [ids.codec_nothink_id, ids.codec_think_bos_id, ids.codec_think_eos_id]
    else:
        prefix = [ids.codec_think_id, ids.codec_think_bos_id, voice.language_id, ids.codec_think_eos_id]
    if voice.speaker_id is not None:
        prefix.append(voice.speaker_id)
    pad, eos = config.tts_pad_token_id, config.tts_eos_token_id
    text_ids = [*front, *role, *[pad] * len(prefix), config.tts_bos_token_id]
    code_ids = [*prefix, ids.codec_pad_id]
    if text_feed == "full":
        text_ids += [*words, eos, pad]
        code_ids += [ids.codec_pad_id] * (len(words) + 1)
        trailing = [pad]
    else:
        text_ids.append(words[0])
        trailing = [*words[1:], eos]
    return Prompt(text_ids, [*code_ids, ids.codec_bos_id], trailing, pad)


def embed_prompt(prompt: Prompt, decoder: CodeDecoder) -> tuple[mx.array, mx.array]:
    """The prefill [1, T, D], and the rows added to later frames [n + 1, D] whose last row is the padding."""
    num_plain = len(prompt.text_ids) - len(prompt.code_ids)
    text = decoder.embed_text(mx.array([[*prompt.text_ids, *prompt.trailing_ids, prompt.pad_id]]))
    codes = mx.pad(decoder.embed_codes(mx.array([prompt.code_ids])), [(0, 0), (num_plain, 0), (0, 0)])
    return text[:, : len(prompt.text_ids)] + codes, text[0, len(prompt.text_ids) :]
