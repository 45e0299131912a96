"""Statistics, JSON lines and totals of the benchmarks, on made-up times."""
import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "bench"))

import compare  # noqa: E402
import grid  # noqa: E402
from cases import Attention  # noqa: E402
from entries import Entry, merged, print_reasons, ratios  # noqa: E402
from goals import ROWS  # noqa: E402
from timing import Times, calls_per_block, quantile, show_seconds  # noqa: E402

MACHINE = {"cpu": "a CPU", "isa": "avx2", "threads": 2, "date": "2026-12-01", "peers": {"torch": "2.13.0"},
           "limits": {"fma_flops": 4e11, "bf16_dot_flops": 0.0, "amx_bf16_flops": 0.0, "read_bytes": 4e10}}


def made_up(ours=2e-3, torch=3e-3):
    return {"headwise": Entry(times=Times((ours, ours * 1.1, ours * 1.2)), error=1e-7),
            "torch": Entry(times=Times((torch, torch * 2))),
            "onnx": Entry(reason="not installed (onnxruntime)")}


def printed(function, *arguments):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        function(*arguments)
    return out.getvalue()


class Statistics(unittest.TestCase):
    def test_of_samples(self):
        times = Times((5.0, 1.0, 2.0, 3.0, 4.0))
        self.assertEqual((times.best, times.median), (1.0, 3.0))
        self.assertAlmostEqual(times.spread, 2.0 / 3.0)
        self.assertEqual(Times((1.0,)).spread, 0.0)

    def test_quantiles(self):
        self.assertEqual([quantile([3, 1, 2], q) for q in (0, 0.25, 0.5, 1)], [1, 1.5, 2, 3])
        self.assertEqual(quantile([7], 0.3), 7)

    def test_blocks_have_a_call_at_least(self):
        self.assertEqual([calls_per_block(s, 0.05) for s in (1.0, 0.01, 0.0)], [1, 5, 50_000_000])

    def test_times_as_people_read_them(self):
        self.assertEqual([show_seconds(s) for s in (2.5, 0.0123, 4.5678e-5, 3e-8)],
                         ["2.5 s", "12.3 ms", "45.7 µs", "30 ns"])

    def test_two_measurements_are_one(self):
        again = {**made_up(ours=1e-3, torch=9e-3), "onnx": Entry("MultiHeadAttention", times=Times((5e-3,)))}
        found = merged(made_up(), again)
        self.assertEqual(len(found["headwise"].times.samples), 6)
        self.assertEqual({key: round(ratio, 9) for key, ratio in ratios(found).items()}, {"torch": 3.0, "onnx": 5.0})
        self.assertEqual(merged(again, made_up())["onnx"].variant, "MultiHeadAttention")

    def test_ratios_are_of_best_times(self):
        self.assertEqual(ratios(made_up()), {"torch": 1.5})


class Run(unittest.TestCase):
    def setUp(self):
        self.line = json.loads(json.dumps(compare.line_of(ROWS[0], MACHINE, made_up(), 4e11)))

    def test_rows_are_chosen_by_name_and_dtype(self):
        self.assertEqual(len(compare.chosen_rows()), len(ROWS))
        self.assertTrue(all(row.case.label == "decode" for row in compare.chosen_rows("decode")))
        self.assertEqual({row.case.dtype for row in compare.chosen_rows(dtype="f16")}, {"f16"})
        self.assertEqual(compare.chosen_rows("nothing of this name"), [])

    def test_a_line_has_rate_share_ratio_and_reason(self):
        case = ROWS[0].case
        self.assertAlmostEqual(self.line["rate"], case.flops / 2e-3 / 1e9)
        self.assertAlmostEqual(self.line["share"], case.flops / 2e-3 / 4e11)
        self.assertEqual(self.line["goal"], ROWS[0].goal)
        found = self.line["contenders"]
        self.assertAlmostEqual(found["torch"]["ratio"], 1.5)
        self.assertNotIn("ratio", found["headwise"])
        self.assertEqual(found["onnx"], {"reason": "not installed (onnxruntime)"})

    def test_what_a_row_misses(self):
        self.assertEqual(compare.missed({**self.line, "share": 0.8}), [])
        slow = compare.line_of(ROWS[0], MACHINE, made_up(ours=4e-3), 4e11)
        self.assertEqual(compare.missed(slow), ["0.75 of PyTorch's speed", "0.75 of 1.5 times PyTorch's"])
        self.assertEqual(compare.missed({**self.line, "share": 0.5}), ["50% of the limit, not 75%"])
        self.assertIn("1 of 2 rows reach", printed(compare.show_missed, [{**self.line, "share": 0.8}, slow]))

    def test_a_missing_peer_is_a_dash_with_a_reason(self):
        self.assertRegex(printed(compare.show_row, self.line), r"1\.50 ≥ 1\.5 +- +-\n")
        self.assertRegex(printed(print_reasons, [self.line]), r"^No time for ONNX Runtime on 1 rows \(.*\): not inst")

    def test_files_can_be_shown_again(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "lines"
            path.write_text(json.dumps(MACHINE) + "\n" + json.dumps(self.line) + "\n")
            self.assertIn(self.line["name"], printed(compare.read, [path]))

    def test_the_limit_is_of_the_fastest_instruction(self):
        limits = {**MACHINE["limits"], "bf16_dot_flops": 8e11}
        self.assertEqual(compare.limit_of(Attention(1, 1, 8, 8, 8), limits), 4e11)
        self.assertEqual(compare.limit_of(Attention(1, 1, 8, 8, 8, dtype="bf16"), limits), 8e11)


class Grid(unittest.TestCase):
    def test_a_row_loses_to_any_peer(self):
        case = Attention(1, 2, 7, 33, 64, "bias", bias_heads=2)
        slow = json.loads(json.dumps(grid.line_of(case, made_up(ours=4e-3))))
        fast = grid.line_of(case, made_up(ours=1e-3))
        self.assertTrue(grid.loses(slow))
        self.assertFalse(grid.loses(fast))
        self.assertIn("bias of each head", grid.show_row(slow))
        totals = printed(grid.print_totals, [slow, fast])
        self.assertIn("2 rows; slower than a peer on 1.", totals)
        self.assertRegex(totals, r"PyTorch +slower on +1 of +2 +worst +0\.75")
        self.assertRegex(totals, r"\n +7 +0\.75\n")  # of T_q = 7, at T_k = 33
        self.assertIn("No time for ONNX Runtime on 2 rows", totals)
        self.assertIn("0 rows", printed(grid.print_totals, []))

    def test_close_rows_are_measured_again_but_not_for_ever(self):
        again = grid.more_rounds()
        self.assertEqual(again(made_up(ours=1e-3)), 0)
        rounds = [again(made_up(ours=2.9e-3)) for _ in range(grid.MAX_MORE + 1)]
        self.assertEqual(rounds, [grid.MORE_ROUNDS] * grid.MAX_MORE + [0])


if __name__ == "__main__":
    unittest.main()
