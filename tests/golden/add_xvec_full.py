"""Record one more run of the official code on tiny_base: the speaker alone, with the whole text in front of the speech.

    python tests/golden/add_xvec_full.py

Needs what make_reference.py needs (qwen-tts 0.1.1). Writes tiny_base/xvec_full.npz; first checks that the same run with a token a
frame gives what golden.npz holds, so that both were made by the same code from the same weights.
"""

from pathlib import Path

import numpy as np
import torch
import transformers  # noqa: F401  before torchaudio is stubbed, whose absence it would stumble over
from make_reference import TEXT, Goldens, import_official

FOLDER = Path(__file__).parent / "tiny_base"


@torch.no_grad()
def main():
    torch.set_num_threads(1)
    tts, gold = import_official().Qwen3TTSModel.from_pretrained(str(FOLDER), dtype=torch.float32, attn_implementation="eager"), Goldens()
    kept = np.load(FOLDER / "golden.npz")
    call = dict(text=TEXT, language="English", ref_audio=(kept["codec.enc_wav"], 24000), x_vector_only_mode=True)
    gold.generate(tts, "xvec", "generate_voice_clone", 40, **call)
    np.testing.assert_array_equal(gold["xvec.codes.0"], kept["xvec.codes.0"])
    np.testing.assert_allclose(gold["xvec.inputs_embeds"], kept["xvec.inputs_embeds"], atol=1e-5, rtol=0)
    gold = Goldens()
    gold.generate(tts, "xvecfull", "generate_voice_clone", 40, non_streaming_mode=True, **call)
    np.savez_compressed(FOLDER / "xvec_full.npz", **{name: gold[name] for name in ("xvecfull.inputs_embeds", "xvecfull.trailing_text_hidden", "xvecfull.codes.0")})


if __name__ == "__main__":
    main()
