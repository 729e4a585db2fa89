"""Tests of the peers with a torch that has no device: python3 -m unittest discover -s bench/peers"""

import json
import os
import subprocess
import sys
import types
import unittest
from pathlib import Path
from unittest import mock

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "fake")]

import methods
import peers
import timing
import torch

CLOCK = torch.Clock


def problem(method, **changes):
    asked = {
        "sweep": "tokens", "method": method, "plan": "", "pass": "forward", "batch": 2, "heads": 4, "keyValueHeads": 4,
        "tokens": 100, "keyDim": 64, "valueDim": 64, "context": 0, "dtype": "bf16", "mode": "default", "causal": True,
        "normalize": False, "data": "normal",
    }
    return {**asked, **changes}


def measure(method, **changes):
    return peers.Bench(torch, timing.Gpu(torch)).measure(problem(method, **changes))


class Timing(unittest.TestCase):
    def setUp(self):
        CLOCK.millis_per_operation = 1.0
        self.counts = [0, 0, 0]

    def calls(self, millis):
        def call(index):
            def work():
                self.counts[index] += 1
                CLOCK.millis += millis

            return work

        return [call(i) for i in range(3)]

    def sample(self, millis, footprint=10**8):
        return timing.sample(timing.Gpu(torch), self.calls(millis), footprint)

    def test_long_calls_are_samples_of_their_own(self):
        samples = self.sample(5)
        self.assertEqual([5.0] * 11, samples["millis"])
        self.assertEqual((1, 3, False, True), tuple(samples[x] for x in ("calls", "sets", "graph", "exceedsCache")))
        self.assertEqual((5, 5, 5), tuple(samples[x] for x in ("median", "least", "most")))

    def test_short_calls_are_repeated_and_take_the_sets_in_turn(self):
        samples = self.sample(0.01)
        self.assertGreaterEqual(samples["calls"], 100)
        self.assertEqual(0, samples["calls"] % 3)
        self.assertAlmostEqual(0.01, samples["median"])
        self.assertLess(max(self.counts) - min(self.counts), 10)

    def test_what_takes_over_a_second_is_sampled_once(self):
        self.assertEqual([1001.0], self.sample(1001)["millis"])
        self.assertEqual(2, sum(self.counts))

    def test_small_sets_stay_in_the_cache(self):
        self.assertFalse(self.sample(5, footprint=1000)["exceedsCache"])

    def test_sets_exceed_the_cache(self):
        self.assertEqual([64, 18, 2], [timing.wanted_sets(x) for x in (1, 10**7, 10**9)])


class Peers(unittest.TestCase):
    def test_every_method_is_timed(self):
        for method in (*methods.METHODS, methods.COPY):
            for direction in ("forward", "backward"):
                with self.subTest(method=method, direction=direction), fla():
                    result = measure(method, **{"pass": direction})
                    self.assertEqual(("OK", ""), (result["status"], result["why"]))
                    self.assertGreater(result["samples"]["median"], 0)
                    self.assertGreater(result["samples"]["sets"], 1)

    def test_bytes_are_those_of_linattn(self):
        self.assertEqual(800 * (4 * 64 * 2 + 4), peers.traffic(problem("x")))
        self.assertEqual(800 * (8 * 64 * 4 + 4) + 8 * 8, peers.traffic(problem("x", dtype="f32", **{"pass": "backward"})))

    def test_memory_is_what_comes_to_the_inputs(self):
        tensor = 800 * 64 * 2
        flash = measure("softmax flash")
        self.assertEqual(tensor, flash["memoryBytes"])
        backward = measure("softmax flash", **{"pass": "backward"})
        self.assertEqual(4 * tensor, backward["memoryBytes"], "o, dq, dk and dv")
        self.assertGreater(measure("softmax naive")["memoryBytes"], 2 * 8 * 100 * 100)

    def test_what_needs_too_much_memory_says_so(self):
        with mock.patch.object(torch, "_LIMIT", CLOCK.allocated + 10**7):
            naive = measure("softmax naive", tokens=2000)
            self.assertEqual("OUT_OF_MEMORY", naive["status"])
            self.assertIn("Tried to allocate", naive["why"])
            self.assertIsNone(naive["samples"])

    def test_a_host_without_memory_says_so(self):
        told = "[enforce fail at alloc_cpu.cpp:118] . DefaultCPUAllocator: can't allocate memory"
        with mock.patch.object(methods.PlainLinear, "causal", side_effect=RuntimeError(told)):
            plain = measure("linear plain")
            self.assertEqual(("OUT_OF_MEMORY", None), (plain["status"], plain["samples"]))

    def test_fewer_sets_where_all_do_not_fit(self):
        with mock.patch.object(torch, "_LIMIT", CLOCK.allocated + 2 * 10**6):
            naive = measure("softmax naive")
            self.assertEqual(("OK", 1), (naive["status"], naive["samples"]["sets"]))

    def test_a_method_that_does_not_do_it_is_missing(self):
        self.assertIn("no FLASH_ATTENTION kernel", measure("softmax flash", dtype="f32")["why"])
        gated = measure("fla gla")
        self.assertEqual("MISSING", gated["status"])
        self.assertIn("fla", gated["why"])
        self.assertEqual("MISSING", measure("linear plain", tokens=1, context=100)["status"])

    def test_a_step_reads_the_cache(self):
        step = measure("softmax naive", tokens=1, context=1000)
        self.assertEqual("OK", step["status"])
        self.assertGreater(step["bytes"], 8 * 1000 * 128 * 2)

    def test_an_error_is_a_point(self):
        with mock.patch.object(methods.PlainLinear, "causal", side_effect=ValueError("no\nsense")):
            self.assertEqual(("FAILED", "ValueError: no"), tuple(measure("linear plain")[x] for x in ("status", "why")))

    def test_tf32_is_for_its_mode_alone(self):
        measure("linear plain", dtype="f32", mode="tf32")
        self.assertTrue(torch.backends.cuda.matmul.allow_tf32)
        measure("linear plain", dtype="f32")
        self.assertFalse(torch.backends.cuda.matmul.allow_tf32)


def fla():
    """A flash-linear-attention whose operators check that tokens come before heads."""

    def operator(q, k, v, *further, normalize=None):
        assert q.shape == (2, 100, 4, 64), q.shape
        return q * 1, None

    names = {name: types.ModuleType(name) for name in ("fla", "fla.ops", "fla.ops.gla", "fla.ops.linear_attn")}
    names["fla.ops.gla"].chunk_gla = names["fla.ops.linear_attn"].chunk_linear_attn = operator
    return mock.patch.dict(sys.modules, names)


class Program(unittest.TestCase):
    def run_with(self, problems, fake=True, options=(), **variables):
        environment = {**os.environ, **variables, "PYTHONPATH": str(HERE / "fake") if fake else ""}
        ended = subprocess.run(
            [sys.executable, str(HERE / "peers.py"), *options],
            input="".join(json.dumps(each) + "\n" for each in problems), env=environment, capture_output=True, text=True)
        return ended, [json.loads(line) for line in ended.stdout.splitlines()]

    def test_one_line_for_each_problem(self):
        asked = [problem("linear plain"), problem("fla gla"), problem(methods.COPY)]
        ended, (found, *points) = self.run_with(asked)
        self.assertEqual(0, ended.returncode, ended.stderr)
        self.assertEqual("0.fake", found["torch"])
        self.assertNotIn("fla", found)
        self.assertEqual(asked, [each["problem"] for each in points])
        self.assertEqual(["OK", "MISSING", "OK"], [each["status"] for each in points])

    def test_without_torch_every_peer_is_missing(self):
        ended, (found, *points) = self.run_with([problem("linear plain"), problem(methods.COPY)], fake=False)
        if "torch" in found:
            self.skipTest("torch is installed")
        self.assertEqual(0, ended.returncode, ended.stderr)
        self.assertEqual({"MISSING"}, {each["status"] for each in points})
        self.assertIn("torch is not importable", points[0]["why"])

    def test_a_gpu_that_does_not_answer_ends_the_process(self):
        asked = [problem(methods.COPY), problem(methods.COPY)]
        ended, lines = self.run_with(asked, FAKE_TORCH_SILENT="1")
        self.assertEqual((75, 2), (ended.returncode, len(lines)))

    def test_a_process_that_dies_leaves_the_points_before(self):
        ended, lines = self.run_with([problem(methods.COPY), problem("linear plain")], FAKE_TORCH_KILLS="9")
        self.assertEqual((-9, 2), (ended.returncode, len(lines)))


if __name__ == "__main__":
    unittest.main()
