"""The rows that `bench/run` measures, each with how many times PyTorch's speed it aims at.

The goals were set on a machine with AMX; bf16 has another one where there is none.
"""
from dataclasses import dataclass
from typing import Optional

from cases import Attention, AttentionTraining, Module, ModuleTraining


@dataclass(frozen=True)
class Row:
    case: object
    goal: Optional[float] = None           # PyTorch's time / ours
    goal_without_amx: Optional[float] = None  # where it differs
    share: Optional[float] = None          # of the machine's limit: multiply-adds or reads

    def goal_on(self, has_amx):
        if self.case.dtype == "bf16" and self.case.label != "decode" and not has_amx:
            return self.goal_without_amx
        return self.goal


ROWS = (
    Row(Attention(1, 8, 1024, 1024, 64), 1.5, share=0.75),
    Row(Attention(1, 8, 1024, 1024, 64, "causal"), 2.2, share=0.73),
    Row(Attention(1, 8, 4096, 4096, 64, "causal"), 1.65, share=0.74),
    Row(Attention(1, 8, 1024, 1024, 128, "causal"), 1.9, share=0.75),
    Row(Attention(4, 12, 128, 128, 64), 2.0, share=0.65),
    Row(Attention(4, 12, 128, 128, 32), 2.0, share=0.65),
    Row(Attention(2, 8, 16, 16, 64), 3.0),
    Row(Attention(1, 8, 1024, 1024, 64, dtype="bf16"), 2.5, 1.3),
    Row(Attention(1, 8, 4096, 4096, 64, "causal", dtype="bf16"), 2.6, 1.3),
    Row(Attention(1, 8, 1024, 1024, 64, dtype="f16"), 1.4),
    Row(Attention(1, 32, 1, 8192, 128), 1.25, share=0.9),
    Row(Attention(1, 32, 1, 8192, 128, dtype="bf16"), 1.7, share=0.9),
    Row(Attention(1, 32, 1, 8192, 128, dtype="f16"), 2.4, share=0.9),
    Row(Attention(1, 32, 1, 8192, 128, dtype="bf16", n_kv_heads=8), 4.0, share=0.85),
    Row(AttentionTraining(1, 8, 1024, 1024, 64, "causal"), 1.9),
    Row(AttentionTraining(1, 8, 1024, 1024, 64, "causal", dtype="bf16"), 1.8),
    Row(Module(1, 4, 8, 2), 50.0),
    Row(Module(2, 16, 512, 8), 2.5),
    Row(Module(1, 1, 768, 12), 1.5),
    Row(Module(8, 128, 384, 12), 1.5),
    Row(Module(1, 1024, 768, 12), 1.9),
    Row(Module(1, 4096, 512, 8), 2.4),
    Row(Module(1, 4096, 512, 8, weights=True), 2.4),
    Row(Module(8, 128, 384, 12, dtype="bf16"), 2.0),
    Row(Module(1, 1024, 768, 12, dtype="bf16"), 2.5),
    Row(ModuleTraining(8, 128, 384, 12), 1.4),
    Row(ModuleTraining(1, 1024, 768, 12), 1.35),
)
