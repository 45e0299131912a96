"""Contenders beside each other on one case: checked, then timed in turns."""
import time

import contenders
from entries import Entry
from inputs import right_answer
from timing import Times, calls_per_block
from worker import PREPARE_TIMEOUT, Failed, Worker

SETTLE_SECONDS = 0.02  # for the spinning threads of the one before to go to sleep


class Race:
    """Between workers, by key; answer(case) is what error_of compares their results with."""

    def __init__(self, workers, answer, rounds=9, block_seconds=0.05):
        self.workers, self.answer, self.rounds, self.block_seconds = workers, answer, rounds, block_seconds

    def _prepare(self, case):
        answer = self.answer(case)
        entries = {}
        for key, worker in self.workers.items():
            try:
                found = worker.ask("prepare", case, answer, timeout=PREPARE_TIMEOUT)
                entries[key] = Entry(found["variant"], found["error"],
                                     calls=calls_per_block(found["seconds"], self.block_seconds))
            except Failed as e:
                entries[key] = Entry(reason=str(e))
        return entries

    def measure(self, case, again=None):
        """An entry for each contender. `again(entries)` may return more rounds to add, as long as it gives any."""
        entries = self._prepare(case)
        self._time(entries, self.rounds)
        while again and (more := again(entries)):
            self._time(entries, more)
        for worker in self.workers.values():
            try:
                worker.ask("release")
            except Failed:
                pass
        return entries

    def _time(self, entries, rounds):
        samples = {key: list(e.times.samples) if e.times else [] for key, e in entries.items() if not e.reason}
        for _ in range(rounds):
            for key in list(samples):
                time.sleep(SETTLE_SECONDS)
                try:
                    samples[key].append(self.workers[key].ask("time", entries[key].calls))
                except Failed as e:
                    entries[key].reason = str(e)
                    del samples[key]
        for key, found in samples.items():
            entries[key].times = Times(tuple(found))


class PeerRace(Race):
    """Between headwise, which may not fail, and other libraries."""

    def __init__(self, n_threads, peers=contenders.PEERS, rounds=9, block_seconds=0.05):
        workers = {key: Worker(key, n_threads) for key in (contenders.OURS, *peers)}
        super().__init__(workers, right_answer, rounds, block_seconds)
        self.n_threads = n_threads

    def versions(self):
        found = {}
        for key, worker in self.workers.items():
            try:
                found[key] = worker.ask("version")
            except Failed as e:
                found[key] = f"- ({e})"
        return found

    def limits(self):
        return self.workers[contenders.OURS].ask("limits", self.n_threads)

    def read_bytes(self):
        """The bandwidth of memory now: on a shared machine it changes from minute to minute."""
        return self.workers[contenders.OURS].ask("read_bytes", self.n_threads)

    def _prepare(self, case):
        entries = super()._prepare(case)
        if entries[contenders.OURS].reason:
            raise RuntimeError(f"{case.name} {case.dtype}: headwise: {entries[contenders.OURS].reason}")
        return entries
