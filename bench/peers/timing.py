"""Times an operation by the clock of its device, in the way of linattn's DeviceTimer.

The calls take several sets of tensors in turn, which together exceed the cache of any GPU. Samples are queued without
waiting between them; a sample of a short operation is the mean of many calls. What takes over a second is sampled once.
"""

import time

WARM_UP = 3
SAMPLES = 11
LONG_MILLIS = 2.0
MOST_MILLIS = 1000.0
SAMPLE_MILLIS = 1.0
MOST_CALLS = 1024
BEYOND_CACHE = 180_000_000
MOST_SETS = 64


def wanted_sets(footprint):
    """So many sets of so many bytes that together they exceed the cache, at least two."""
    return max(2, min(MOST_SETS, -(-BEYOND_CACHE // footprint)))


class Gpu:
    """The clock and the memory of the GPU that torch uses."""

    def __init__(self, torch):
        self.torch = torch
        self.name = "cuda"

    def mark(self):
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def millis(self, before, after):
        after.synchronize()
        return before.elapsed_time(after)

    def synchronize(self):
        self.torch.cuda.synchronize()

    def allocated(self):
        return self.torch.cuda.memory_allocated()

    def forget_peak(self):
        self.torch.cuda.reset_peak_memory_stats()

    def peak(self):
        return self.torch.cuda.max_memory_allocated()

    def release(self):
        self.torch.cuda.empty_cache()


class Cpu:
    """The clock of the host. Nobody counts the memory of torch there."""

    name = "cpu"

    def mark(self):
        return time.perf_counter()

    def millis(self, before, after):
        return (after - before) * 1e3

    def synchronize(self):
        pass

    def allocated(self):
        return None

    def forget_peak(self):
        pass

    def peak(self):
        return None

    def release(self):
        pass


def sample(device, calls, footprint):
    """The samples of an operation, as a point has them.

    calls: one for each set of tensors; queues the operation on it
    footprint: bytes that one call touches
    """
    start = time.perf_counter()
    calls[0]()
    device.synchronize()
    first = (time.perf_counter() - start) * 1e3

    second = _marked(device, calls[1 % len(calls)], 1, ahead=False)[0]
    if second > MOST_MILLIS:
        return _samples(device, 1, len(calls), footprint, first, [second])
    for i in range(max(WARM_UP, len(calls))):
        calls[i % len(calls)]()
    device.synchronize()

    repeat = 1
    if min(_marked(device, calls[0], WARM_UP)) < LONG_MILLIS:
        repeat = _repeats(device, calls)
    turn = _Turn(calls)
    millis = _marked(device, lambda: turn.run(repeat), SAMPLES)
    return _samples(device, repeat, len(calls), footprint, first, [each / repeat for each in millis])


def _repeats(device, calls):
    """Calls of one sample: each set as often as the others, for long enough."""
    repeat = len(calls)
    while True:
        least = min(_marked(device, lambda: _Turn(calls).run(repeat), WARM_UP))
        wanted = MOST_CALLS if least <= 0 else min(MOST_CALLS, SAMPLE_MILLIS / least * repeat)
        if wanted <= repeat:
            return repeat
        repeat = -(-int(wanted + 1) // len(calls)) * len(calls)


class _Turn:
    """Takes the sets in turn."""

    def __init__(self, calls):
        self.calls = calls
        self.next = 0

    def run(self, count):
        for _ in range(count):
            self.calls[self.next % len(self.calls)]()
            self.next += 1


def _marked(device, work, count, ahead=True):
    """Milliseconds between marks; one run before the first keeps the device busy."""
    if ahead:
        work()
    marks = [device.mark()]
    for _ in range(count):
        work()
        marks.append(device.mark())
    return [device.millis(marks[i], marks[i + 1]) for i in range(count)]


def _samples(device, calls, sets, footprint, first, millis):
    ordered = sorted(millis)
    return {
        "clock": "DEVICE",
        "calls": calls,
        "graph": False,
        "sets": sets,
        "exceedsCache": sets * footprint >= BEYOND_CACHE,
        "firstMillis": first,
        "heapBytes": None,
        "millis": millis,
        "median": ordered[len(ordered) // 2],
        "least": ordered[0],
        "most": ordered[-1],
    }
