#!/usr/bin/env python3
"""Counts the tests of one ctest run and prints "N passed, N failed, N skipped".

    count_tests.py RESULTS_DIR

RESULTS_DIR holds ctest.xml (ctest --output-junit) and, for each GoogleTest program, NAME.json. A
program counts by its test cases, or by a line like this one's in what it printed; any other entry,
and a program that died, counts as one test.
"""
import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path


def count_program(report):
    """Outcomes of one GoogleTest program."""
    outcomes = Counter()
    for suite in report["testsuites"]:
        for case in suite["testsuite"]:
            if case["status"] != "RUN":
                continue  # disabled
            if case.get("failures"):
                outcomes["failed"] += 1
            else:
                outcomes["skipped" if case["result"] == "SKIPPED" else "passed"] += 1
    return outcomes


TOTALS = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", re.MULTILINE)


def count_output(text):
    """Outcomes that a program of another kind tells itself."""
    outcomes = Counter()
    for passed, failed, skipped in TOTALS.findall(text):
        outcomes += Counter(passed=int(passed), failed=int(failed), skipped=int(skipped or 0))
    return outcomes


def count(folder):
    outcomes = Counter()
    for entry in ElementTree.parse(folder / "ctest.xml").getroot().iter("testcase"):
        result = {"run": "passed", "fail": "failed"}.get(entry.get("status"), "skipped")
        report = folder / f"{entry.get('name')}.json"
        if report.exists():
            counted = count_program(json.loads(report.read_text()))
        else:
            counted = count_output(entry.findtext("system-out") or "")
        if not counted or (result == "failed" and not counted["failed"]):
            counted[result] += 1
        outcomes += counted
    return outcomes


def main():
    outcomes = count(Path(sys.argv[1]))
    print(", ".join(f"{outcomes[word]} {word}" for word in ("passed", "failed", "skipped")))


if __name__ == "__main__":
    main()
