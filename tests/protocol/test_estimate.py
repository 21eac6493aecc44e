"""Estimates of time, against loops that count and clocks that are made up."""

import itertools
import random

import pytest

from dspreg.protocol.estimate import (
    Announcer,
    Prices,
    Work,
    count_evaluations,
    describe_time_left,
    finish_time,
    format_seconds,
    prices_of,
    seconds_of,
)


def record(step, stepping, evaluating):
    return {"step": step, "seconds": {"step_seconds": stepping, "evaluate_seconds": evaluating}}


def test_a_record_stands_for_all_steps_since_the_one_before():
    records = [record(0, 5.0, 1.0), record(10, 0.5, 2.0), record(14, 0.25, 4.0)]
    assert seconds_of(records) == (1 * 5.0 + 1.0) + (10 * 0.5 + 2.0) + (4 * 0.25 + 4.0)
    assert seconds_of([]) == 0


def test_evaluations_are_counted_as_a_loop_would():
    for steps, every, done in itertools.product(range(1, 14), range(1, 16), range(14)):
        loop = sum(t % every == 0 or t == steps - 1 for t in range(done, steps))
        assert count_evaluations(steps, every, min(done, steps)) == loop, (steps, every, done)


def test_prices_leave_out_the_first_step():
    records = [record(0, 50.0, 3.0), record(10, 0.5, 2.0), record(14, 0.25, 4.0)]
    assert prices_of(records) == Prices(pytest.approx((10 * 0.5 + 4 * 0.25) / 14), 3.0)
    assert prices_of(records[:1]) is None
    assert prices_of([]) is None


def test_words_say_where_an_estimate_comes_from():
    prices = Prices(0.46, 21.0, 8.0)
    assert describe_time_left(Work(5_001, 18, 12), prices) == (
        "about 46 min left: 5,001 steps at 0.46 s, 18 evaluations at 21 s, 12 measurements of c at 8 s"
    )
    assert prices.of(Work(5_001, 18, 12)) == pytest.approx(5_001 * 0.46 + 18 * 21 + 12 * 8)
    assert describe_time_left(Work(1, 1, 2), Prices(20.0, 1.0)) == (
        "about 21 s left: 1 step at 20 s, 1 evaluation at 1 s; and 2 measurements of c, of which none was seen yet"
    )


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0461, "46 ms"), (0.461, "0.46 s"), (4.61, "4.6 s"), (46.1, "46 s"), (481, "8 min")]
)
def test_small_times_have_two_digits(seconds, text):
    assert format_seconds(seconds) == text


def second_by_second(running, waiting, jobs):
    """The same by playing it: the next run takes a place as soon as one is free."""
    places, queue, clock = list(running), list(waiting), 0
    while True:
        places = [left for left in places if left > 0]
        while len(places) < jobs and queue:
            places.append(queue.pop(0))
            places = [left for left in places if left > 0]
        if not places:
            return clock
        clock, places = clock + 1, [left - 1 for left in places]


def test_the_end_of_a_sweep_is_that_of_playing_it():
    r = random.Random(0)
    for _ in range(200):
        jobs = r.randint(1, 4)
        running = [r.randint(1, 9) for _ in range(r.randint(0, jobs))]
        waiting = [r.randint(1, 9) for _ in range(r.randint(0, 7))]
        assert finish_time(running, waiting, jobs) == second_by_second(running, waiting, jobs)


def test_of_very_many_runs_the_sum_counts():
    assert finish_time([30_000.0], [1.0] * 20_000, 2) == 30_000
    assert finish_time([4.0], [1.0] * 20_000, 2) == 10_002


def test_a_line_is_said_first_when_it_moved_and_every_half_hour():
    now = [0.0]
    announcer = Announcer(lambda: now[0])
    said = []
    course = [(0, 3600), (30, 7000), (70, 3530), (100, 7000), (130, 7000), (1000, 6130), (1899, 5200), (1901, 5199)]
    for at, left in course:
        now[0] = at
        if announcer.is_due(left):
            said.append(at)
    assert said == [0, 100, 1901]  # not at 30, too soon to correct; at 1901 half an hour has passed
