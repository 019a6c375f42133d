"""A voice taken from a recording: what a Base model needs of it, and the one file that holds it."""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .config import ModelConfig, ModelError
from .names import nearest_path
from .tensor_file import Span, read_header
from .whole_file import replacing

VERSION = 1
DTYPES = {"F32": np.dtype("<f4"), "I32": np.dtype("<i4")}
REMEDY = "make it again with mlx-tts voices make"


@dataclass(frozen=True, eq=False)
class ClonedVoice:
    """speaker_vector: [D] float32; codes and text: the recording's frames [T, 16] int32 and its words, or both None.

    With them the model continues the recording, which comes closest to it; without, it only takes on the speaker.
    model_name, fingerprint: the model that made it, and that it is for; of a quantised copy, the original.
    """

    speaker_vector: np.ndarray
    codes: np.ndarray | None
    text: str | None
    model_name: str
    fingerprint: str

    def check(self, config: ModelConfig, fingerprints: Sequence[str]) -> None:
        """Raises ModelError when the voice is not for the model with this configuration and these fingerprints."""
        if self.fingerprint not in fingerprints:
            raise ModelError(
                f"the voice was made with {self.model_name} ({self.fingerprint[:12]}), not with this model "
                f"({fingerprints[0][:12]}); {REMEDY}"
            )
        width, decoder = config.code_decoder.hidden_size, config.speech_decoder
        vector, codes = self.speaker_vector, self.codes
        good = vector.shape == (width,) and np.isfinite(vector).all() and (codes is None) == (self.text is None)
        if good and codes is not None:
            good = codes.ndim == 2 and len(codes) > 0 and codes.shape[1] == decoder.num_quantizers
            size = min(config.code_decoder.num_codes, config.multi_code_decoder.vocab_size)
            good = good and codes.min() >= 0 and codes.max() < size
        if not good:
            raise ModelError(f"the voice holds values that {config.name} cannot have made; {REMEDY}")

    def save(self, path: str | Path) -> None:
        """Write the voice file, whole or not at all: safetensors, with all but the arrays as JSON in its metadata."""
        arrays = {"speaker_vector": self.speaker_vector.astype("<f4")}
        if self.codes is not None:
            arrays["codes"] = self.codes.astype("<i4")
        about = {
            "version": VERSION,
            "text": self.text,
            "model_name": self.model_name,
            "fingerprint": self.fingerprint,
        }
        header: dict = {"__metadata__": {"voice": json.dumps(about)}}
        names, end = {dtype: name for name, dtype in DTYPES.items()}, 0
        for name, array in arrays.items():
            begin, end = end, end + array.nbytes
            header[name] = {"dtype": names[array.dtype], "shape": array.shape, "data_offsets": [begin, end]}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)  # the format aligns the data
        with replacing(Path(path)) as file:
            file.write(struct.pack("<Q", len(text)) + text + b"".join(map(np.ndarray.tobytes, arrays.values())))

    @classmethod
    def load(cls, path: str | Path) -> "ClonedVoice":
        """The voice in a file. Raises ModelError for one that is missing, damaged or of another version."""
        path = Path(path)
        if not path.is_file():
            raise ModelError(
                f"there is no voice file {path}; mlx-tts voices make makes one from a recording{nearest_path(path)}"
            )
        try:
            spans, texts = read_header(path, remedy=REMEDY)
            about = json.loads(texts["voice"])
            version, text = about["version"], about["text"]
            if version != VERSION:
                raise ModelError(f"{path} is a voice of version {version}, expected {VERSION}; {REMEDY}")
            data = path.read_bytes()
            arrays = {name: _array(span, data) for name, span in spans.items()}
            codes = arrays.pop("codes", None)
            voice = cls(arrays.pop("speaker_vector"), codes, text, about["model_name"], about["fingerprint"])
            if arrays or not all(isinstance(name, str) for name in (voice.model_name, voice.fingerprint, text or "")):
                raise ValueError("unexpected contents")
        except ModelError:
            raise
        except (ValueError, KeyError, TypeError, OSError, RecursionError) as error:
            raise ModelError(f"{path} cannot be read as a voice ({error!r:.200}); {REMEDY}") from None
        return voice


def _array(span: Span, data: bytes) -> np.ndarray:
    return np.frombuffer(data[span.begin : span.end], DTYPES[span.dtype]).reshape(span.shape)
