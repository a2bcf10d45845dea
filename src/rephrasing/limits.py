"""How fast a server may be asked, and how long to wait after it refused."""

from __future__ import annotations

import asyncio
import email.utils
import random
import time
from collections.abc import Awaitable, Callable, Mapping


def retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Seconds that a server asks to wait: `retry-after-ms`, or `Retry-After` in seconds or as a date.

    None where it asks for nothing that can be read. Header names in lower case.

    >>> [retry_after({"retry-after": value}) for value in ("2.5", "soon")], retry_after({"retry-after-ms": "300"})
    ([2.5, None], 0.3)
    >>> retry_after({"retry-after": "Thu, 01 Jan 1970 00:01:00 GMT"}, now=50.0)
    10.0
    """
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            return max(float(headers[name]) / unit, 0.0)
        except (KeyError, ValueError):
            continue
    date = email.utils.parsedate_tz(headers.get("retry-after", ""))
    if date is None:
        return None
    return max(email.utils.mktime_tz(date) - (time.time() if now is None else now), 0.0)


def backoff(tries: int, first: float, longest: float, rng: random.Random) -> float:
    """Seconds to wait after failure number `tries`: first · 2^(tries−1), at most `longest`, up to a half less.

    >>> backoff(3, first=1.0, longest=60.0, rng=random.Random(0)) <= 4.0
    True
    """
    return min(first * 2.0 ** (tries - 1), longest) * (1 - rng.random() / 2)


class RateLimiter:
    """Lets requests go so that no minute sees more than so many requests or tokens; pauses for all at once.

    Requests are spaced evenly, by the dearer of their two shares of a minute. After an idle time there is no burst:
    servers count seconds too.

    Args:
        requests_per_minute: None for no limit.
        tokens_per_minute: Prompt and completion tokens, as estimated; None for no limit.
        clock: Seconds.
        sleep: Waits so many seconds.

    Raises:
        ValueError: a limit is not positive.
    """

    def __init__(
        self,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        for name, value in (("requests_per_minute", requests_per_minute), ("tokens_per_minute", tokens_per_minute)):
            if value is not None and value <= 0:
                raise ValueError(f"Expected `{name}` to be positive or null, but got {value}.")
        self._per_request = 60 / requests_per_minute if requests_per_minute else 0.0
        self._per_token = 60 / tokens_per_minute if tokens_per_minute else 0.0
        self._clock, self._sleep = clock, sleep
        self._next = -float("inf")
        self._paused_until = -float("inf")

    async def wait(self, tokens: int) -> None:
        """Return when a request of so many tokens may go."""
        while True:
            start = max(self._next, self._paused_until, self._clock())
            self._next = start + max(self._per_request, tokens * self._per_token)
            while (delay := start - self._clock()) > 0:
                await self._sleep(delay)
            if self._clock() >= self._paused_until:  # else a pause began while we slept: line up again behind it
                return

    def pause(self, seconds: float) -> None:
        """Let nobody go for so long, because the server said so."""
        self._paused_until = max(self._paused_until, self._clock() + seconds)
