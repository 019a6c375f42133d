"""The commands of mlx-tts as a whole: --help on one screen with examples to start from; ends that typer gets wrong."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from .shared import CANCELLED, PIPE_CLOSED

EXAMPLES = (
    ('mlx-tts speak "Hello." -o hello.wav', "into a file"),
    ('mlx-tts speak "Hello."', "to the loudspeaker"),
    ("mlx-tts speak - -o - < book.txt | aplay", "from a file, through a pipe"),
)
NUM_COLUMNS = 79


@contextmanager
def right_ends() -> Iterator[None]:
    """Give what typer would end in a way of its own the exit codes that are ours."""
    try:
        yield
    except KeyboardInterrupt:  # older versions of typer print an empty line
        raise typer.Exit(CANCELLED) from None
    except BrokenPipeError:  # exit code 1, says typer
        raise typer.Exit(PIPE_CLOSED) from None
    except EOFError as error:  # for typer the user pressed Ctrl-D at a prompt, of which there is none
        raise OSError(f"a file ends too early: {error}") from error


class Overview(TyperGroup):
    """The commands with a line each; their own --help has the panels."""

    def make_context(self, *args: Any, **more: Any) -> Any:  # where the command line is read and --help printed
        with right_ends():
            return super().make_context(*args, **more)

    def invoke(self, ctx: Any) -> Any:
        with right_ends():
            return super().invoke(ctx)

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
