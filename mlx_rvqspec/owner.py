"""The one thread that runs MLX, whose streams belong to a thread. Anything may be called through it from anywhere."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class Owner:
    """The one thread that touches MLX, which keeps its streams per thread. Calls run in the order they come.

    One for the process and a daemon that never ends: a thread with MLX streams that is joined or ends while the
    interpreter exits aborts the process (MLX 0.32.4, CPU), which rules out a ThreadPoolExecutor.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Future, Callable, tuple]] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="mlx-rvqspec", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            future, function, args = self._calls.get()
            try:
                future.set_result(function(*args))
            except BaseException as error:  # belongs to the caller, whatever it is
                future.set_exception(error)
            del future, function, args  # the next wait may be long: hold nothing

    def run(self, function: Callable[..., T], *args: Any) -> T:
        """function(*args) on the owner thread; its result or its exception."""
        if threading.current_thread() is self._thread:  # it may collect a stream that was dropped, which closes it here
            return function(*args)
        future: Future = Future()
        self._calls.put((future, function, args))
        return future.result()


@cache
def owner() -> Owner:
    """The process's owner thread, started by the first ``load``."""
    return Owner()
