#!/usr/bin/env python3
"""Times headwise beside PyTorch, ONNX Runtime and OpenVINO, after checking everybody's answer.

    bench/run [--only TEXT] [--dtype NAME] [--threads N] [--rounds N] [--json FILE] [--plot FILE]
    bench/run --read FILE... [--plot FILE]     shows what earlier runs wrote

A ratio is a peer's best time over ours. The share is of what the machine can do in the same minute: multiply-adds, or
for one query reads from memory. Run it while nothing else computes.
"""
import argparse
import json
import platform
import signal
from datetime import date
from pathlib import Path

from cases import fields
from contenders import NAMES, OURS, PEERS
from entries import entries_json, print_reasons
from goals import ROWS
from timing import show_seconds


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--dtype", choices=("f32", "bf16", "f16"), help="rows of this dtype only")
    parser.add_argument("--peers", nargs="+", default=PEERS, choices=PEERS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9, help="blocks of each contender (9)")
    parser.add_argument("--json", type=Path, help="write one JSON object a line to this file, the machine first")
    parser.add_argument("--plot", type=Path, help="draw the ratios into this .svg or .png file")
    parser.add_argument("--read", type=Path, nargs="+", help="show such files and measure nothing")
    return parser.parse_args()


def chosen_rows(only="", dtype=None):
    return [row for row in ROWS if only in row.case.name and dtype in (None, row.case.dtype)]


def cpu_name():
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def describe_machine(race):
    versions = race.versions()
    return {"cpu": cpu_name(), "isa": versions.pop(OURS), "threads": race.n_threads, "date": date.today().isoformat(),
            "peers": versions, "limits": race.limits()}


def limit_of(case, limits):
    """Operations a second that this machine can do for a case; 0 where that is unknown."""
    fastest = [limits["fma_flops"]]
    if case.dtype == "bf16":
        fastest += [limits["bf16_dot_flops"], limits["amx_bf16_flops"]]
    return max(fastest)


def line_of(row, machine, entries, limit):
    case, limits = row.case, machine["limits"]
    best = entries[OURS].times.best
    amount = case.bytes if case.limited_by_reads else case.flops
    return {**fields(case), "unit": "GB/s" if case.limited_by_reads else "GFLOP/s", "rate": amount / best / 1e9,
            "limit": limit / 1e9, "share": amount / best / limit if limit else None, "goal_share": row.share,
            "goal": row.goal_on(limits["amx_bf16_flops"] > 0), "contenders": entries_json(entries)}


def show_machine(machine):
    limits = machine["limits"]
    words = [f"{limits['fma_flops'] / 1e9:.0f} GFLOP/s multiply-adds (f32)"]
    for key, name in (("bf16_dot_flops", "bf16 dot products"), ("amx_bf16_flops", "AMX (bf16)")):
        words.append(f"{limits[key] / 1e9:.0f} GFLOP/s {name}" if limits[key] else f"no {name}")
    words.append(f"{limits['read_bytes'] / 1e9:.1f} GB/s reads")
    peers = ", ".join(f"{NAMES[key]} {version}" for key, version in machine["peers"].items())
    print(f"{machine['cpu']}, {machine['isa']}, {machine['threads']} threads, {machine['date']}\n"
          f"at most {', '.join(words)}\n{peers}\n")


def _against_goal(value, goal, text):
    if goal is None:
        return ""
    return f"{'≥' if value >= goal else '<'} {goal:{text}}"


def header():
    peers = "".join(f"{NAMES[key]:>14}" for key in PEERS[1:])
    return (f"{'':38}{'':5}{'best':>9}{'median':>9} spread {'':15} of limit      {NAMES[PEERS[0]]:>9} goal  {peers}")


def show_row(line):
    ours, others = line["contenders"][OURS], line["contenders"]
    share = "   -" if line["share"] is None else f"{line['share']:4.0%}"
    goal_share = _against_goal(line["share"] or 0, line["goal_share"], ".0%")
    ratio = others.get(PEERS[0], {}).get("ratio")
    peers = "".join(f"{others[key]['ratio']:14.2f}" if "ratio" in others.get(key, {}) else f"{'-':>14}"
                    for key in PEERS[1:])
    print(f"{line['name']:38}{line['dtype']:5}{show_seconds(ours['best_us'] / 1e6):>9}"
          f"{show_seconds(ours['median_us'] / 1e6):>9}{ours['spread']:6.1%}  {line['rate']:6.1f} {line['unit']:7}"
          f"{share} {goal_share:6} {f'{ratio:9.2f}' if ratio else '        -'} "
          f"{_against_goal(ratio or 0, line['goal'], 'g'):6}{peers}", flush=True)


def missed(line):
    """What a row does not reach, in words."""
    found = {key: e["ratio"] for key, e in line["contenders"].items() if "ratio" in e}
    words = [f"{ratio:.2f} of {NAMES[key]}'s speed" for key, ratio in found.items() if ratio < 1]
    if line["goal"] and PEERS[0] in found and found[PEERS[0]] < line["goal"]:
        words.append(f"{found[PEERS[0]]:.2f} of {line['goal']:g} times {NAMES[PEERS[0]]}'s")
    if line["goal_share"] and line["share"] is not None and line["share"] < line["goal_share"]:
        words.append(f"{line['share']:.0%} of the limit, not {line['goal_share']:.0%}")
    return words


def show_missed(lines):
    found = {f"{line['name']} {line['dtype']}": words for line in lines if (words := missed(line))}
    print(f"{len(lines) - len(found)} of {len(lines)} rows reach their goals and are slower than nobody.")
    for name, words in found.items():
        print(f"  {name}: {', '.join(words)}")


def show_narrow_speed(lines):
    """How fast the 16-bit rows are beside the same work in f32."""
    f32 = {line["name"]: line for line in lines if line["dtype"] == "f32"}
    for line in lines:
        if line["dtype"] != "f32" and line["kind"] != "decode" and line["name"] in f32:
            speed = f32[line["name"]]["contenders"][OURS]["best_us"] / line["contenders"][OURS]["best_us"]
            print(f"{line['name']}: {line['dtype']} at {speed:.2f} of our f32 speed")


def measure(arguments):
    from race import PeerRace  # here: showing what is in files needs no NumPy
    race = PeerRace(arguments.threads, arguments.peers, arguments.rounds)
    machine = describe_machine(race)
    show_machine(machine)
    print(header())
    lines = []
    for row in chosen_rows(arguments.only, arguments.dtype):
        reads = row.case.limited_by_reads
        before = race.read_bytes() if reads else limit_of(row.case, machine["limits"])
        entries = race.measure(row.case)
        lines.append(line_of(row, machine, entries, max(before, race.read_bytes()) if reads else before))
        show_row(lines[-1])
    return machine, lines


def read(paths):
    """The lines of several runs, and the machine of the last."""
    lines = [json.loads(text) for path in paths for text in path.read_text().splitlines()]
    machine = [line for line in lines if "limits" in line][-1]
    rows = [line for line in lines if "contenders" in line]
    show_machine(machine)
    print(header())
    for line in rows:
        show_row(line)
    return machine, rows


def main():
    arguments = parse_arguments()
    if arguments.read:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that leaves, as `head` does
    machine, lines = read(arguments.read) if arguments.read else measure(arguments)
    print()
    show_missed(lines)
    show_narrow_speed(lines)
    print_reasons(lines)
    if arguments.json:
        arguments.json.write_text("".join(json.dumps(line) + "\n" for line in (machine, *lines)))
    if arguments.plot:
        from plot import draw
        draw(arguments.plot, machine, lines)


if __name__ == "__main__":
    main()
