"""The hub's cache and the way into it. What is cached costs no network call."""

import re
import sys
from pathlib import Path

from .config import ModelError
from .names import PUBLISHED, nearest

FILES = ["*.json", "*.txt", "*.safetensors", "speech_tokenizer/*"]


def is_id(name: str) -> bool:
    """Whether a name can be a hub id, such as ``Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice``."""
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", name) is not None


def cached(repo: str) -> Path | None:
    """The folder of a model in the local cache, complete or not; None when it was never downloaded."""
    from huggingface_hub import snapshot_download  # not needed for folders, and slow to import

    try:
        return Path(snapshot_download(repo, allow_patterns=FILES, local_files_only=True))
    except Exception:  # the hub library and its transports have many of their own; all mean that it is not there
        return None


def fetch(repo: str) -> Path:
    """The same folder after downloading what is not in it yet, with progress where stderr is a terminal.

    Raises ModelError when that fails.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    if not (sys.stderr and sys.stderr.isatty()):
        disable_progress_bars()
    try:
        return Path(snapshot_download(repo, allow_patterns=FILES))
    except Exception as error:  # as above
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        near = "" if repo in PUBLISHED else nearest(repo, PUBLISHED)
        raise ModelError(
            f"{repo} is not complete in the local cache and cannot be downloaded ({reason}); "
            f"where there is a network run: mlx-tts download {repo}{near}"
        ) from None
