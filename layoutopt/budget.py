"""The time there is, asked by everything that loops."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Budget:
    """Time left, and a way to stop early from another thread."""

    def __init__(self, seconds: float | None = None) -> None:
        self._total = seconds
        self._end = None if seconds is None else time.monotonic() + seconds
        self._stopped = False
        self._lock = threading.Lock()
        self._running: Any = None
        self._part: Budget | None = None

    def part(self, share: float) -> Budget:
        """A budget of `share` of the time left, which stops when this one is stopped."""
        part = Budget(None if self.seconds is None else self.seconds * share)
        with self._lock:
            self._part = part
            stopped = self._stopped
        if stopped:
            part.stop()
        return part

    def stop(self) -> None:
        """Make the running solve return, and every later one too."""
        with self._lock:
            self._stopped = True
            if self._running is not None:
                self._running.stop_search()
            if self._part is not None:
                self._part.stop()

    @property
    def spent(self) -> bool:
        """Whether no time is left."""
        return self._stopped or (self._end is not None and time.monotonic() >= self._end)

    @property
    def share_left(self) -> float:
        """Share of the time that is left; 1 without a limit."""
        if self._stopped:
            return 0.0
        return 1.0 if not self._total or self.seconds is None else self.seconds / self._total

    @property
    def seconds(self) -> float | None:
        """Seconds left; None without a limit."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    @contextmanager
    def shortened(self, share: float) -> Iterator[None]:
        """Inside, only this share of what is left may be used; without a limit, nothing changes."""
        end = self._end
        if end is not None:
            now = time.monotonic()
            self._end = now + share * max(0.0, end - now)
        try:
            yield
        finally:
            self._end = end

    def watch(self, running: Any) -> bool:
        """Note the solve that `stop` should reach; False when already stopped."""
        with self._lock:
            self._running = running
            return not self._stopped
