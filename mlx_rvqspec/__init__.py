"""Qwen3-TTS on MLX: text in, speech out, whole or as a stream. README.md shows how."""

from .config import ModelError
from .generate import Chunk, Engine, GenerationError, Speech, load
from .sampling import Sampling
from .version import __version__

__all__ = ["Chunk", "Engine", "GenerationError", "ModelError", "Sampling", "Speech", "__version__", "load"]
