from __future__ import annotations

import asyncio

import pytest

from tagrpo.rephrasing.costs import Prices, account, estimate, total
from tagrpo.rephrasing.limits import RateLimiter
from tagrpo.rephrasing.requests import Answer, Request, Usage


def request(user="x" * 70, **facts):
    known = {"purpose": "rephrase", "question": "q", "model": "m", "system": "", "parameters": {"max_tokens": 100}}
    return Request(**{**known, "user": user, "expected_tokens": 40, **facts})


def answer(key, prompt=10, completion=4, **facts):
    usage = Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=facts.pop("cached", 0))
    known = {"purpose": "rephrase", "question": "q", "texts": ("t",), "truncated": False, "model": "m", "time": ""}
    return Answer(key=key, request_id="", usage=usage, **{**known, **facts})


PRICES = {"m": Prices(prompt=10.0, completion=30.0, cached=5.0)}


def test_an_estimate_counts_characters_expected_tokens_and_the_limit():
    (line,) = estimate([request(), request(), request(user="y" * 35, samples=2)], PRICES, {}, characters_per_token=3.5)
    assert line.requests == 2, "equal requests are asked once"
    assert line.usage == Usage(prompt_tokens=20 + 10, completion_tokens=40 + 2 * 40)
    assert line.cost == pytest.approx((30 * 10 + 120 * 30) / 1e6)
    assert line.most == pytest.approx((30 * 10 + 300 * 30) / 1e6)
    (cheap,) = estimate([request()], PRICES, {}, batch=True)
    assert cheap.cost == pytest.approx(estimate([request()], PRICES, {})[0].cost / 2)


def test_an_estimate_learns_from_the_answers_that_are_there_and_leaves_them_out():
    requests = [request(user="x" * 70 + str(i)) for i in range(25)]
    answered = {r.key: answer(r.key, prompt=len(r.user)) for r in requests[:20]}  # one token per character
    (line,) = estimate(requests, PRICES, answered)
    assert line.requests == 5
    assert line.usage.prompt_tokens == sum(len(r.user) for r in requests[20:])
    assert estimate(requests[:20], PRICES, answered) == []


def test_an_account_adds_up_what_servers_said_and_halves_batches():
    lines = account(
        [("m", answer("a", 1000, 100)), ("m", answer("b", 1000, 100, batch=True, cached=400)), ("n", answer("c"))],
        PRICES,
    )
    by_model = {line.model: line for line in lines}
    assert by_model["m"].usage == Usage(prompt_tokens=2000, completion_tokens=200, cached_tokens=400)
    assert by_model["m"].cost == pytest.approx((1000 * 10 + 100 * 30 + (600 * 10 + 400 * 5 + 100 * 30) / 2) / 1e6)
    assert by_model["n"].cost is None
    assert total(lines) is None
    assert total([by_model["m"]]) == by_model["m"].cost


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self):
        self.now = 0.0

    async def sleep(self, seconds):
        self.now += seconds

    def times(self, limiter, tokens):
        async def go():
            found = []
            for count in tokens:
                await limiter.wait(count)
                found.append(round(self.now, 6))
            return found

        return asyncio.run(go())


def test_requests_are_spaced_by_the_dearer_of_two_limits():
    clock = Clock()
    limiter = RateLimiter(60, 6000, clock=lambda: clock.now, sleep=clock.sleep)  # 1 s a request, 0.01 s a token
    assert clock.times(limiter, [50, 300, 50, 50]) == [0, 1, 4, 5]


def test_a_pause_holds_for_everybody_and_idle_time_gives_no_burst():
    clock = Clock()
    limiter = RateLimiter(60, clock=lambda: clock.now, sleep=clock.sleep)
    limiter.pause(7)
    assert clock.times(limiter, [1, 1]) == [7, 8]
    clock.now = 100.0
    assert clock.times(limiter, [1, 1, 1]) == [100, 101, 102]
    with pytest.raises(ValueError, match="requests_per_minute"):
        RateLimiter(0)


def test_a_pause_that_begins_while_others_wait_lines_them_up_behind_it():
    clock = Clock()

    async def sleep(seconds):
        if clock.now == 0:
            limiter.pause(30)  # the first answer is a refusal
        await clock.sleep(seconds)

    limiter = RateLimiter(60, clock=lambda: clock.now, sleep=sleep)
    assert clock.times(limiter, [1, 1, 1]) == [0, 30, 31]
