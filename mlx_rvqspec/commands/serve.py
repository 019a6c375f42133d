"""mlx-tts serve: speech over HTTP, for programs that know OpenAI's API."""

import socket
from typing import Annotated

from ..config import read_config
from ..generate import load
from ..load import resolve
from .shared import USAGE, Dtype, Fault, Local, Model, Quiet, option, progress, say, silent, usage_faults
from .speaker import VoiceFiles, check_voices

Host = Annotated[str, option("Server", "Address; 0.0.0.0 lets other machines in (127.0.0.1).", metavar="ADDRESS")]
Port = Annotated[int, option("Server", "Port (8000).", min=1, max=65535, metavar="N")]
Name = Annotated[str | None, option("Server", "What clients call the model; else as --model says.", metavar="NAME")]
Waiting = Annotated[int, option("Server", "Requests that may wait while one speaks (8).", min=0, metavar="N")]
Characters = Annotated[int, option("Server", "Longest text of a request (20000).", min=1, metavar="N")]


def serve(
    model: Model = None,
    local_files_only: Local = False,
    voice: VoiceFiles = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    name: Name = None,
    num_waiting: Waiting = 8,
    max_characters: Characters = 20_000,
    dtype: Dtype = None,
    quiet: Quiet = False,
) -> None:
    """Answer POST /v1/audio/speech, as OpenAI's API does, until interrupted.

    mlx-tts serve --port 8000
    """
    try:
        import uvicorn

        from ..server import Server
    except ImportError as error:
        raise Fault(USAGE, f"cannot serve ({error}); pip install 'mlx_rvqspec[serve]'") from error
    listener = listen(host, port)
    folder = resolve(model, local_files_only=local_files_only)
    with usage_faults():
        clones = check_voices(read_config(folder), folder, voice or [])
    with progress(not quiet):
        engine = load(folder, dtype=dtype)
    name = name or model or folder.name
    server = Server(engine, name, num_waiting=num_waiting, max_characters=max_characters, clones=clones)
    level = "warning" if quiet else "info"
    config = uvicorn.Config(server.app(), log_level=level, timeout_graceful_shutdown=5, access_log=False)
    tell = silent if quiet else say
    tell(f"listening on http://{host}:{port}")
    uvicorn.Server(config).run(sockets=[listener])


def listen(host: str, port: int) -> socket.socket:
    """A socket at this address, taken before minutes go into loading. Raises Fault where that cannot be."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except (OSError, UnicodeError) as error:
        raise Fault(USAGE, f"cannot listen on {host}:{port} ({error}); choose another --host or --port") from error
