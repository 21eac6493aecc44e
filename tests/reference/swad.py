"""SWAD's window by segment numbers alone, from the whole series of losses at once; shares no code with the package."""


def averaged_segments(losses, n_converge, n_tolerance, ratio):
    """Numbers of the segments that are averaged if training ends after the last loss, as often as each counts."""
    n = len(losses)
    lowest = next(
        (
            i
            for i in range(n - n_converge + 1)
            if all(losses[i] <= losses[j] for j in range(i, i + n_converge))  # nothing after it goes below
        ),
        None,
    )
    if lowest is None:
        return [n - 1]
    known = lowest + n_converge - 1  # the evaluation at which that is known
    threshold = sum(losses[lowest : known + 1]) / n_converge * (1 + ratio)

    def waiting(evaluation):
        return list(range(max(0, evaluation - n_tolerance + 1), evaluation + 1))

    if n_tolerance < n_converge:
        chosen = list(range(lowest + 1, lowest + 1 + n_converge - n_tolerance))
    else:
        back = waiting(known)[: n_tolerance - n_converge + 1] if n_tolerance > n_converge else []
        starts = [i + 1 for i in back if losses[i] > threshold]
        start = starts[-1] if starts else (back[0] if back else 0)
        chosen = [i for i in back if i > start]
    for evaluation in range(known + 1, n):
        queue = waiting(evaluation)
        if queue[0] < lowest:
            continue
        if all(losses[i] > threshold for i in queue):
            return chosen or [lowest]
        chosen.append(queue[0])
    rest = waiting(n - 1)[1:]
    while rest and any(losses[i] <= threshold for i in rest):
        chosen.append(rest.pop(0))
    return chosen or [lowest]
