"""An HTTP server for one engine, with the speech endpoint of OpenAI's API. Needs the `serve` extra.

Requests are checked when they come, and then take turns: one speaks, a few wait, the rest are told to come later. A
client that leaves frees the engine within a chunk. What is streamed is one valid container per response, and its
samples are those of the whole.
"""

import asyncio
import base64
import contextlib
import io
import json
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import ExitStack
from typing import Any

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from .audio import FORMATS, Write, encoder, finish_wav, pipe_writer
from .cloned_voice import ClonedVoice
from .delivery import Chunk
from .generate import Engine, choose_seed
from .names import nearest
from .utterance import GenerationError

CONTENT_TYPES = {"wav": "audio/wav", "pcm": "audio/pcm", "flac": "audio/flac", "mp3": "audio/mpeg"}
CONTENT_TYPES |= {"opus": "audio/ogg", "ogg": "audio/ogg"}
DEFAULT_FORMAT = "mp3"  # as in OpenAI's API
EVENTS = "text/event-stream"
DESIGN = "design"  # what clients that must name a voice say to a VoiceDesign model
POLL_S = 0.5  # how soon a client that left the queue is noticed
STALL_S = 60.0  # a client that takes nothing for so long has gone, though its connection stands
KNOWN = {"model", "input", "voice", "response_format", "instructions", "speed", "stream_format"}
KNOWN |= {"stream", "language", "seed", "on_runaway"}  # ours


class Sink(io.RawIOBase):
    """A file that libsndfile may write to and seek in, of which only what is new is sent.

    What it goes back for, sizes in a header, is left at "unknown", as in any stream.
    """

    def __init__(self) -> None:
        self._pending, self._at, self._end = bytearray(), 0, 0

    def write(self, data: Any) -> int:
        data = bytes(data)
        if self._at == self._end:
            self._pending += data
            self._end += len(data)
        self._at += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._end)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def take(self) -> bytes:
        """What was written since the last call."""
        data, self._pending = bytes(self._pending), bytearray()
        return data


def open_writer(stack: ExitStack, file: Any, sample_rate: int, format: str) -> Write:
    """A function that writes samples into ``file`` in this format; what ends the container is written by ``stack``."""
    codec = FORMATS[format]
    return (
        stack.enter_context(encoder(file, sample_rate, codec, "")) if codec else pipe_writer(file, sample_rate, format)
    )


def encoded(chunks: Generator[Chunk, None, None], sample_rate: int, format: str) -> Generator[bytes, None, None]:
    """The bytes of a container as the sound is made; closing it closes ``chunks``."""
    sink = Sink()
    with contextlib.closing(chunks):
        with ExitStack() as stack:
            write = open_writer(stack, sink, sample_rate, format)
            for chunk in chunks:
                write(chunk.audio)
                yield sink.take()
        yield sink.take()


def whole(chunks: Generator[Chunk, None, None], sample_rate: int, format: str) -> Generator[bytes, None, None]:
    """Nothing while the sound is made, then a complete file, with its sizes where the format has them."""
    file = io.BytesIO()
    with contextlib.closing(chunks), ExitStack() as stack:
        write = open_writer(stack, file, sample_rate, format)
        for chunk in chunks:
            write(chunk.audio)
            yield b""
        if format == "wav":
            finish_wav(file, sample_rate, "")
    yield file.getvalue()


def events(
    parts: Generator[bytes, None, None], usage: Mapping[str, Any], num_tokens: int
) -> Generator[bytes, None, None]:
    """The same bytes as server-sent events, as OpenAI's API has them.

    usage: filled in by ``Server._counted`` until all parts are there.
    """

    def event(kind: str, **values: Any) -> bytes:
        return f"data: {json.dumps({'type': kind, **values})}\n\n".encode()

    with contextlib.closing(parts):
        for part in parts:
            if part:
                yield event("speech.audio.delta", audio=base64.b64encode(part).decode())
        tokens = {"input_tokens": num_tokens, "output_tokens": usage["frames"]}
        tokens["total_tokens"] = sum(tokens.values())
        yield event("speech.audio.done", usage=tokens, finish_reason=usage["finish_reason"])


class SpeechResponse(StreamingResponse):
    """A stream with what it holds, which is let go when the response is over, also when the client had left before."""

    def __init__(
        self,
        parts: AsyncGenerator[bytes, None],
        held: contextlib.AsyncExitStack,
        *,
        media_type: str,
        headers: dict[str, str],
    ) -> None:
        super().__init__(parts, media_type=media_type, headers=headers)
        self._parts, self._held = parts, held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            with anyio.fail_after(STALL_S):
                await send(message)

        async with self._held:
            try:
                await super().__call__(scope, receive, send_in_time)
            except (ClientDisconnect, TimeoutError):
                pass
            finally:
                await self._parts.aclose()


class Server:
    """One engine behind HTTP. num_waiting: requests that may wait while one speaks; clones: a Base model's, by name."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        *,
        num_waiting: int = 8,
        max_characters: int = 20_000,
        clones: Mapping[str, ClonedVoice] | None = None,
    ) -> None:
        self.engine, self.name, self.max_characters = engine, name, max_characters
        self.max_body_bytes = 12 * max_characters + (1 << 16)  # JSON may take 12 bytes for a character
        self.num_waiting, self.waiting = num_waiting, 0
        self.turn = asyncio.Lock()
        self.counts: Counter[str] = Counter()
        self.clones = dict(clones or {})
        design = [DESIGN] if engine.config.tts_model_type == "voice_design" else []
        self.names = [*engine.speakers, *self.clones, *design]

    def app(self) -> Starlette:
        routes = [
            Route("/v1/audio/speech", self.speech, methods=["POST"]),
            Route("/v1/audio/voices", self.voices),
            Route("/v1/models", self.models),
            Route("/health", self.health),
            Route("/metrics", self.metrics),
        ]
        return Starlette(routes=routes, exception_handlers={HTTPException: refused})

    async def voices(self, request: Request) -> Response:
        return JSONResponse({"voices": self.names, "languages": list(self.engine.languages)})

    async def models(self, request: Request) -> Response:
        model = {"id": self.name, "object": "model", "created": 0, "owned_by": "mlx_rvqspec"}
        return JSONResponse({"object": "list", "data": [model]})

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "speaking": self.turn.locked(), "waiting": self.waiting})

    async def metrics(self, request: Request) -> Response:
        names = ("requests", "refused", "cancelled", "failed", "characters", "audio_seconds", "work_seconds")
        lines = [f"mlx_tts_{name}_total {self.counts[name]:.10g}" for name in names]
        return PlainTextResponse("\n".join([*lines, f"mlx_tts_waiting {self.waiting}", ""]))

    async def speech(self, request: Request) -> Response:
        """OpenAI's createSpeech: the sound of ``input`` in ``response_format``, as it is made."""
        self.counts["requests"] += 1
        asked = self._check(await body_of(request, self.max_body_bytes))
        how, streams = asked.get("response_format", DEFAULT_FORMAT), asked.get("stream", True)
        usage: dict[str, Any] = {}
        # all that can be wrong with it is found here, before it waits
        chunks = self._counted(await anyio.to_thread.run_sync(self._start, asked), usage)
        self.counts["characters"] += len(asked["input"])
        async with contextlib.AsyncExitStack() as stack:
            await self._wait_for_turn(request)
            stack.callback(self.turn.release)
            headers = {"X-Sample-Rate": str(self.engine.sample_rate), "X-Seed": str(asked["seed"])}
            parts = (encoded if streams else whole)(chunks, self.engine.sample_rate, how)
            kind = CONTENT_TYPES[how]
            if asked.get("stream_format") == "sse":
                kind, num_tokens = EVENTS, len(self.engine.tokenizer.encode(asked["input"]).ids)
                parts = events(parts, usage, num_tokens)
            stack.push_async_callback(close, parts)
            part = await self._next(parts) or b""
            if streams:
                body = self._send(part, parts, kind == EVENTS)
                return SpeechResponse(body, stack.pop_all(), media_type=kind, headers=headers)
            while not await request.is_disconnected():
                following = await self._next(parts)
                if following is None:
                    return Response(part, media_type=kind, headers=headers)
                part += following
            raise refusal(499, "the client has left")

    def _check(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The request with a seed, or the error that says what is wrong with it."""
        for name in asked.keys() - KNOWN:
            raise refusal(400, f"unknown parameter {name!r}{nearest(name, KNOWN)}", name)
        asked = {name: value for name, value in asked.items() if value is not None}
        for name in asked.keys() - {"speed", "seed", "stream"}:
            if not isinstance(asked[name], str):
                raise refusal(400, f"{name} is {asked[name]!r}; expected a string", name)
        if not isinstance(asked.get("stream", True), bool):
            raise refusal(400, f"stream is {asked['stream']!r}; expected true or false", "stream")
        if asked.get("model") not in (None, self.name):
            raise refusal(404, f"the model {asked['model']!r} is not served here; {self.name!r} is", "model")
        text = asked.get("input")
        if text is None:
            raise refusal(400, "input is missing", "input")
        if len(text) > self.max_characters:
            raise refusal(400, f"input has {len(text)} characters; at most {self.max_characters} are read", "input")
        format = asked.get("response_format", DEFAULT_FORMAT)
        if format not in CONTENT_TYPES:
            known = ", ".join(CONTENT_TYPES)
            raise refusal(
                400,
                f"response_format is {format!r}; expected one of {known}{nearest(format, CONTENT_TYPES)}",
                "response_format",
            )
        if asked.get("speed", 1) != 1:
            raise refusal(400, "speed is fixed at 1: this model has no control for it", "speed")
        if asked.get("stream_format", "audio") not in ("audio", "sse"):
            raise refusal(400, f"stream_format is {asked['stream_format']!r}; expected audio or sse", "stream_format")
        if asked.get("stream_format") == "sse" and not asked.get("stream", True):
            raise refusal(400, "stream is false, but events are a stream", "stream")
        try:
            seed = choose_seed(asked.get("seed"))
        except ValueError as error:
            raise refusal(400, str(error), "seed") from None
        return {**asked, "seed": seed}

    def _start(self, asked: dict[str, Any]) -> Generator[Chunk, None, None]:
        """The chunks of a request, or the error that says what is wrong with it; nothing is spoken yet."""
        try:
            return self.engine.stream(
                asked["input"],
                **self._voice(asked.get("voice")),
                language=asked.get("language", "auto"),
                instruct=asked.get("instructions"),
                seed=asked["seed"],
                on_runaway=asked.get("on_runaway", "keep"),
            )
        except ValueError as error:
            raise refusal(400, str(error)) from None

    def _voice(self, name: str | None) -> dict[str, Any]:
        """Options of ``Engine.stream`` for this name."""
        if not self.clones:
            return {} if name == DESIGN and DESIGN in self.names else {"speaker": name}
        if name is None and len(self.clones) == 1:
            return {"voice": next(iter(self.clones.values()))}
        if name not in self.clones:
            raise ValueError(f"voice is {name!r}; this server has {', '.join(self.clones)}")
        return {"voice": self.clones[name]}

    def _counted(self, chunks: Generator[Chunk, None, None], usage: dict[str, Any]) -> Generator[Chunk, None, None]:
        """The chunks, counted as they pass; usage is filled in at their end."""
        last = None
        try:
            for last in chunks:
                usage |= {"frames": last.stats.frames, "finish_reason": last.finish_reason}
                yield last
        finally:
            chunks.close()
            self.counts["cancelled"] += last is None or not last.is_final
            if last:
                self.counts["audio_seconds"] += last.stats.audio_s  # pyright: ignore[reportArgumentType]
                self.counts["work_seconds"] += last.stats.total_s  # pyright: ignore[reportArgumentType]

    async def _wait_for_turn(self, request: Request) -> None:
        """Wait for the engine; refuse where too many do, give up when the client has left."""
        if self.turn.locked() and self.waiting >= self.num_waiting:
            self.counts["refused"] += 1
            raise refusal(429, f"{self.waiting} requests are waiting; try again later", headers={"Retry-After": "2"})
        self.waiting += 1
        try:
            while True:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self.turn.acquire(), POLL_S)
                    return
                if await request.is_disconnected():
                    self.counts["cancelled"] += 1
                    raise refusal(499, "the client has left")
        finally:
            self.waiting -= 1

    async def _next(self, parts: Generator[bytes, None, None]) -> bytes | None:
        """The next part, made in a thread, so that the server answers others meanwhile; None when there is none."""
        try:
            return await anyio.to_thread.run_sync(next, parts, None)
        except GenerationError as error:
            self.counts["failed"] += 1
            raise refusal(500, str(error)) from None

    async def _send(
        self, first: bytes, parts: Generator[bytes, None, None], as_events: bool
    ) -> AsyncGenerator[bytes, None]:
        """The parts; cancelled when the client has left."""
        try:
            yield first
            while (part := await anyio.to_thread.run_sync(next, parts, None)) is not None:
                yield part
        except GenerationError as error:
            self.counts["failed"] += 1
            if not as_events:
                raise  # after the headers only a broken connection can say it
            yield b"data: " + refusal(500, str(error)).detail.encode() + b"\n\n"


async def close(parts: Generator[bytes, None, None]) -> None:
    """Close in a thread, since the engine may be at work, and also when this task is being cancelled."""
    with anyio.CancelScope(shield=True):
        await anyio.to_thread.run_sync(parts.close)


async def body_of(request: Request, max_bytes: int) -> dict[str, Any]:
    """The JSON object in a request of bounded size."""
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > max_bytes:
            raise refusal(413, f"the request has more than {max_bytes} bytes")
    try:
        asked = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise refusal(400, f"the request is no JSON: {error}") from None
    if not isinstance(asked, dict):
        raise refusal(400, "the request is no JSON object")
    return asked


def refusal(
    status: int, message: str, param: str | None = None, headers: dict[str, str] | None = None
) -> HTTPException:
    """An error in OpenAI's form."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    detail = {"message": message, "type": kind, "param": param, "code": None}
    return HTTPException(status, json.dumps({"error": detail}), headers)


async def refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    body = error.detail if error.detail.startswith("{") else json.dumps({"error": {"message": error.detail}})
    return Response(body, error.status_code, error.headers, "application/json")
