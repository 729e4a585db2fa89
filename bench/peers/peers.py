#!/usr/bin/env python3
"""Times other implementations of attention for `linattn bench paper`.

Reads problems, a line of JSON each, as points.json has them. Writes lines of JSON: the versions of what is importable,
then a point for each problem in their order. A peer that is not here is a point with the status MISSING. Everything
else goes to stderr. Ends with 75 behind a point after which the GPU does not answer; who called starts it again with
the rest. A problem that takes longer than the limit ends the process by SIGALRM.
"""

import argparse
import gc
import importlib
import json
import os
import signal
import sys

import timing
from methods import COPY, METHODS, Missing

PACKAGES = ("torch", "triton", "fla")
SEED = 20251
NO_ANSWER = 75


def versions():
    """Versions of the packages that are importable, and why the others are not."""
    found, missing = {"python": sys.version.split()[0]}, {}
    for package in PACKAGES:
        try:
            found[package] = getattr(importlib.import_module(package), "__version__", "of unknown version")
        except Exception as refused:  # a broken installation is as good as none
            missing[package] = f"{package} is not importable: {refused}"
    return found, missing


def traffic(problem):
    """Bytes that have to be read and written once, as linattn counts them: q, k, v, o, g; and their gradients."""
    size = 4 if problem["dtype"] == "f32" else 2
    queries = problem["batch"] * problem["heads"] * problem["tokens"]
    rows = queries * (problem["keyDim"] + problem["valueDim"])
    keys = problem["batch"] * problem["keyValueHeads"] * max(problem["tokens"], problem["context"])
    rows += keys * (problem["keyDim"] + problem["valueDim"])
    if problem["pass"] == "backward":
        return 2 * rows * size + 4 * queries + 8 * problem["batch"] * problem["heads"]
    return rows * size + 4 * queries


def point(problem, status, why="", samples=None, memory=None):
    return {
        "problem": problem,
        "run": 0,
        "status": status,
        "why": why,
        "samples": samples,
        "bytes": traffic(problem),
        "memoryBytes": memory,
        "errors": {},
        "bound": None,
        "choice": None,
    }


class Bench:
    """Times problems on one device."""

    def __init__(self, torch, device):
        self.torch = torch
        self.device = device
        self.no_room = (getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError), MemoryError)

    def measure(self, problem):
        """The point of a problem; never raises."""
        try:
            return self._with_fewer_sets(problem)
        except Missing as why:
            return point(problem, "MISSING", str(why))
        except ImportError as why:
            return point(problem, "MISSING", f"not importable: {why}")
        except Exception as why:
            status = "OUT_OF_MEMORY" if self._is_no_room(why) else "FAILED"
            return point(problem, status, _sentence(why))
        finally:
            gc.collect()
            self.device.release()

    def _is_no_room(self, why):
        """On the host torch raises a plain RuntimeError, of its allocator."""
        return isinstance(why, self.no_room) or "DefaultCPUAllocator" in str(why)

    def _with_fewer_sets(self, problem):
        """With as many sets as the cache asks for; with one where these do not fit."""
        wanted = timing.wanted_sets(traffic(problem))
        try:
            return self._measure(problem, wanted)
        except Exception as why:
            if not self._is_no_room(why):
                raise
            # the frames of the failed attempt hold its tensors until here
        gc.collect()
        self.device.release()
        return self._measure(problem, 1)

    def _measure(self, problem, sets):
        self.torch.manual_seed(SEED)
        self.torch.backends.cuda.matmul.allow_tf32 = problem["mode"] == "tf32"
        name = problem["method"].removesuffix(" cpu")
        if name == COPY:
            calls, memory = [self._copy(problem) for _ in range(sets)], None
        else:
            method = METHODS[name](self.torch)
            calls, memory = [], None
            for _ in range(sets):
                call, peak = self._set(problem, method)
                calls.append(call)
                memory = peak if memory is None else memory
        samples = timing.sample(self.device, calls, traffic(problem))
        if memory is not None:
            memory = memory()
        return point(problem, "OK", samples=samples, memory=memory)

    def _copy(self, problem):
        half = traffic(problem) // 2
        source = self.torch.zeros(half, dtype=self.torch.uint8, device=self.device.name)
        target = self.torch.empty_like(source)
        return lambda: target.copy_(source)

    def _tensor(self, problem, method, tokens, heads, width):
        extents = (tokens, heads) if method.tokens_first else (heads, tokens)
        dtype = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}[problem["dtype"]]
        return self.torch.randn(
            problem["batch"], *extents, width, dtype=getattr(self.torch, dtype), device=self.device.name)

    def _set(self, problem, method):
        """A call on tensors of its own, and what tells the memory that a call takes above q, k, v and dO."""
        tokens, cached = problem["tokens"], max(problem["tokens"], problem["context"])
        inputs = [
            self._tensor(problem, method, tokens, problem["heads"], problem["keyDim"]),
            self._tensor(problem, method, cached, problem["keyValueHeads"], problem["keyDim"]) * problem["keyDim"] ** -0.5,
            self._tensor(problem, method, cached, problem["keyValueHeads"], problem["valueDim"]),
        ]
        inputs += method.further_inputs(inputs[0])
        if problem["pass"] == "backward":
            return self._backward(problem, method, inputs)
        attend = method.step if problem["context"] else method.causal

        def forward():
            with self.torch.no_grad():
                attend(*inputs)

        return forward, lambda: self._above(self.device.allocated(), forward)

    def _backward(self, problem, method, inputs):
        for each in inputs:
            each.requires_grad_()
        gradient = self._tensor(problem, method, problem["tokens"], problem["heads"], problem["valueDim"])
        before = self.device.allocated()
        output = method.causal(*inputs)

        def backward():
            self.torch.autograd.grad(output, inputs, gradient, retain_graph=True)

        # what the forward of this set saved is held since, beside that of the sets made later
        saved = None if before is None else self.device.allocated() - before
        return backward, lambda: self._above(self.device.allocated(), backward, saved)

    def _above(self, before, call, saved=0):
        """Peak of a call above what was allocated before it, and what a forward saved for it."""
        if before is None:
            return None
        self.device.forget_peak()
        call()
        self.device.synchronize()
        return self.device.peak() - before + saved

    def answers(self):
        """Whether the device still does; after some errors it does no more in this process."""
        try:
            self.device.synchronize()
            return True
        except Exception:
            return False


def _sentence(error):
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--limit", type=int, default=300, help="seconds for one problem")
    options = parser.parse_args()

    # libraries may print; the lines that are read go past them
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    found, missing = versions()
    lines.write(json.dumps(found) + "\n")
    bench, why = None, missing.get("torch")
    if why is None:
        import torch

        if options.device == "cpu":
            bench = Bench(torch, timing.Cpu())
        elif torch.cuda.is_available():
            bench = Bench(torch, timing.Gpu(torch))
        else:
            why = "torch sees no GPU"

    for line in sys.stdin:
        problem = json.loads(line)
        if bench is None:
            result = point(problem, "MISSING", why)
        else:
            signal.alarm(options.limit)
            result = bench.measure(problem)
            signal.alarm(0)
        lines.write(json.dumps(result) + "\n")
        if bench is not None and not bench.answers():
            return NO_ANSWER
    return 0


if __name__ == "__main__":
    sys.exit(main())
