"""bench/cases.py and bench/goals.py: names, useful work, rows."""
import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "bench"))

from cases import MODES, Attention, AttentionTraining, Module, ModuleTraining, fields  # noqa: E402
from goals import ROWS  # noqa: E402


class Work(unittest.TestCase):
    def test_causal_counts_what_each_query_sees(self):
        for T_q, T_k in ((5, 5), (1, 7), (3, 9), (9, 3)):
            seen = sum(j <= t for t in range(T_q) for j in range(T_k))
            self.assertEqual(Attention(2, 3, T_q, T_k, 8, "causal").flops, 4 * 2 * 3 * 8 * seen, (T_q, T_k))

    def test_other_modes_count_all(self):
        for mode in set(MODES) - {"causal"}:
            self.assertEqual(Attention(1, 2, 3, 5, 8, mode).flops, 4 * 2 * 3 * 5 * 8)

    def test_a_group_shares_its_keys(self):
        alone, shared = Attention(1, 32, 1, 8192, 128), Attention(1, 32, 1, 8192, 128, n_kv_heads=8)
        self.assertEqual(alone.flops, shared.flops)
        queries = 2 * 32 * 128 * 4
        self.assertEqual(alone.bytes - queries, 4 * (shared.bytes - queries))

    def test_training_makes_five_more_products(self):
        self.assertEqual(AttentionTraining(1, 2, 3, 5, 8).flops, 7 * 2 * 2 * 3 * 5 * 8)

    def test_the_module_projects_four_times(self):
        self.assertEqual(Module(2, 16, 512, 8).flops, 2 * (2 * 16) * 4 * 512 * 512 + 2 * 4 * 16 * 16 * 512)

    def test_training_the_module_makes_three_times_the_products_of_projections(self):
        case, module = ModuleTraining(2, 16, 512, 8), Module(2, 16, 512, 8)
        attention = 2 * 4 * 16 * 16 * 512
        self.assertEqual(case.flops, 3 * (module.flops - attention) + attention * 7 // 2)


class Names(unittest.TestCase):
    def test_say_what_is_computed(self):
        self.assertEqual(Attention(1, 8, 16, 32, 64, "causal").name, "attention 1,8,16,32,64 causal")
        self.assertEqual(Attention(1, 32, 1, 8192, 128, n_kv_heads=8).name, "decode 1,32,1,8192,128 on 8")
        self.assertEqual(AttentionTraining(1, 8, 16, 32, 64).name, "training 1,8,16,32,64")
        self.assertEqual(Module(1, 4, 8, 2, weights=True).name, "module 1,4,8,2 weights")
        self.assertEqual(ModuleTraining(1, 4, 8, 2).name, "training module 1,4,8,2")

    def test_of_the_goals_are_different(self):
        names = [(row.case.name, row.case.dtype) for row in ROWS]
        self.assertEqual(len(set(names)), len(names))

    def test_fields_are_json(self):
        for row in ROWS:
            line = json.loads(json.dumps(fields(row.case)))
            self.assertEqual((line["name"], line["dtype"]), (row.case.name, row.case.dtype))


class Goals(unittest.TestCase):
    def test_bf16_has_another_where_there_is_no_amx(self):
        row = next(row for row in ROWS if row.case.dtype == "bf16" and row.case.label == "attention")
        self.assertGreater(row.goal_on(True), row.goal_on(False))

    def test_decoding_has_the_same(self):
        for row in ROWS:
            if row.case.label == "decode" or row.case.dtype != "bf16":
                self.assertEqual(row.goal_on(True), row.goal_on(False))


if __name__ == "__main__":
    unittest.main()
