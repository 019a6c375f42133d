"""Who speaks and how, for the commands that speak: the options, and their check before the weights are loaded."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from ..cloned_voice import ClonedVoice
from ..config import ModelConfig
from ..load import fingerprints
from ..prompt import Voice, choose_voice
from .shared import option

Speaker = Annotated[str | None, option("Voice", "Who speaks: see mlx-tts voices.", metavar="NAME")]
VoiceFile = Annotated[str | None, option("Voice", "Cloned voice, from mlx-tts voices make.", "--voice", metavar="FILE")]
VoiceFiles = Annotated[
    list[Path] | None,
    option("Voice", "Cloned voice, from mlx-tts voices make; may be given again.", "--voice", metavar="FILE"),
]
Language = Annotated[str, option("Voice", "A name such as english, a code such as en-US, or auto.", metavar="NAME")]
Instruct = Annotated[str | None, option("Voice", "How to speak, or the voice to design, in words.", metavar="TEXT")]


def check_voice(
    config: ModelConfig, folder: Path, speaker: str | None, voice: str | None, language: str, instruct: str | None
) -> Voice:
    """The voice of these options, with what its file holds. Raises ValueError where the model cannot speak so."""
    clone = ClonedVoice.load(voice) if voice else None
    chosen = choose_voice(config, speaker, language, instruct, clone)
    if clone:
        clone.check(config, fingerprints(folder))
    return chosen


def check_voices(config: ModelConfig, folder: Path, paths: Sequence[Path]) -> dict[str, ClonedVoice]:
    """The cloned voices in these files, named as they are. Raises ValueError where the model cannot speak with them."""
    if config.tts_model_type == "base" and not paths:
        raise ValueError("a Base model speaks with cloned voices; give their files with --voice")
    clones: dict[str, ClonedVoice] = {}
    for path in paths:
        clone = check_voice(config, folder, None, str(path), "auto", None).clone
        assert clone
        if path.stem in clones:
            raise ValueError(f"two of the voices have the name {path.stem!r}")
        clones[path.stem] = clone
    return clones
