from dspreg.protocol.estimate import seconds_of


def test_a_record_stands_for_all_steps_since_the_one_before():
    steps = [(0, 5.0, 1.0), (10, 0.5, 2.0), (14, 0.25, 4.0)]
    records = [{"step": t, "seconds": {"step_seconds": s, "evaluate_seconds": e}} for t, s, e in steps]
    assert seconds_of(records) == (1 * 5.0 + 1.0) + (10 * 0.5 + 2.0) + (4 * 0.25 + 4.0)
    assert seconds_of([]) == 0
