"""The second teacher: flite's voice `rms`, through its shared libraries, with the times of phones and words.

Needs Debian's `libflite1`. Used by corpus.py.
"""

import ctypes

LIBRARIES = ("libflite.so.1", "libflite_usenglish.so.1", "libflite_cmulex.so.1", "libflite_cmu_us_rms.so.1")
SIGNATURES = dict(
    flite_init="int", register_cmu_us_rms="ptr text", flite_synth_text="ptr text ptr", utt_relation="ptr ptr text", relation_head="ptr ptr",
    item_next="ptr ptr", item_prev="ptr ptr", item_as="ptr ptr text", item_feat_string="text ptr text", item_feat_float="float ptr text",
    ffeature_float="float ptr text", utt_wave="ptr ptr", cst_wave_save_riff="int ptr text", delete_utterance="none ptr",
)  # fmt: skip
TYPES = dict(int=ctypes.c_int, float=ctypes.c_float, text=ctypes.c_char_p, ptr=ctypes.c_void_p, none=None)


class Flite:
    def __init__(self):
        for name in LIBRARIES:
            library = ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
            for function, signature in SIGNATURES.items():
                if not hasattr(self, function) and hasattr(library, function):
                    f = getattr(library, function)
                    f.restype, *f.argtypes = (TYPES[t] for t in signature.split())
                    setattr(self, function, f)
        self.flite_init()
        self.voice = self.register_cmu_us_rms(None)

    def items(self, utterance, relation):
        item = self.relation_head(self.utt_relation(utterance, relation))
        while item:
            yield item
            item = self.item_next(item)

    def speak(self, text, base):
        """Write base.lab and base.wav (16 kHz), as corpus.py describes them."""
        u = self.flite_synth_text(text.encode(), self.voice)
        lines = [f"S {self.item_feat_string(s, b'name').decode()} {self.item_feat_float(s, b'end'):.6f}" for s in self.items(u, b"Segment")]
        for w in self.items(u, b"Word"):
            first = 0 if self.item_prev(self.item_as(w, b"Token")) else 1
            start = self.ffeature_float(w, b"R:SylStructure.daughter1.daughter1.R:Segment.p.end")
            end = self.ffeature_float(w, b"R:SylStructure.daughtern.daughtern.R:Segment.end")
            lines.append(f"W {self.item_feat_string(w, b'name').decode()} {first} {start:.6f} {end:.6f}")
        base.with_suffix(".lab").write_text("\n".join(lines) + "\n")
        self.cst_wave_save_riff(self.utt_wave(u), str(base.with_suffix(".wav")).encode())
        self.delete_utterance(u)
