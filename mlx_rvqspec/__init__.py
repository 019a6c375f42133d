"""Qwen3-TTS on MLX: text in, speech out, whole or as a stream. README.md shows how."""

from .config import ModelError
from .generate import Chunk, Engine, GenerationError, Speech, load
from .sampling import Sampling

__version__ = "0.1.0"
__all__ = ["Chunk", "Engine", "GenerationError", "ModelError", "Sampling", "Speech", "load"]
