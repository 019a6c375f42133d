"""mlx-tts --help: what there is on one screen, with examples to start from."""

from typing import Any

from typer.core import TyperGroup

EXAMPLES = (
    ('mlx-tts speak "Hello." -o hello.wav', "into a file"),
    ('mlx-tts speak "Hello."', "to the loudspeaker"),
    ("mlx-tts speak - -o - < book.txt | aplay", "from a file, through a pipe"),
)
NUM_COLUMNS = 79


class Overview(TyperGroup):
    """The commands with a line each; their own --help has the panels."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        lines = ["Usage: mlx-tts COMMAND [OPTIONS]", "", "Text to speech with Qwen3-TTS on MLX.", ""]
        lines += [f"  {line:42}{what}" for line, what in EXAMPLES]
        lines += ["", "Commands, each with a --help of its own:"]
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command and not command.hidden:
                lines.append(f"  {name:10}{command.get_short_help_str(NUM_COLUMNS - 12)}")
        lines += ["", "Also: --version, and --install-completion for your shell."]
        formatter.write("\n".join(lines) + "\n")
