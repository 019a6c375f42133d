"""Qwen3-TTS on MLX: text in, speech out, whole or as a stream. README.md shows how."""

from .blas import prefer_openblas

BLAS = prefer_openblas()  # before anything imports MLX

from .batch import Input  # noqa: E402
from .cloned_voice import ClonedVoice  # noqa: E402
from .config import ModelError  # noqa: E402
from .delivery import Chunk  # noqa: E402
from .generate import Engine, Speech, load  # noqa: E402
from .recording import read_recording  # noqa: E402
from .sampling import Sampling  # noqa: E402
from .utterance import GenerationError  # noqa: E402
from .version import __version__  # noqa: E402

__all__ = [
    "Chunk",
    "ClonedVoice",
    "Engine",
    "GenerationError",
    "Input",
    "ModelError",
    "Sampling",
    "Speech",
    "__version__",
    "load",
    "read_recording",
]
