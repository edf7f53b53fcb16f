"""Reads a file by Python's json or csv, and prints it as read.mjs does: python3 read.py READER FILE"""

import csv
import json
import math
import struct
import sys


def number(f):
    if f == 0 and math.copysign(1, f) < 0:
        return "n:-0"
    if f.is_integer():
        return f"n:{int(f)}"
    return "f:" + struct.pack(">d", f).hex()


def canonical(v):
    if v is None or isinstance(v, bool):
        return v
    if isinstance(v, int):
        return f"n:{v}"
    if isinstance(v, float):
        return number(v)
    if isinstance(v, str):
        return "t:" + v
    if isinstance(v, list) and v[:1] == [pairs]:
        return [[name, canonical(e)] for name, e in v[1:]]
    return [canonical(e) for e in v]


def pairs(all):
    return [pairs] + all


def whole(text):
    return -0.0 if text == "-0" else int(text)


reader, path = sys.argv[1:]
with open(path, encoding="utf-8", newline="") as f:
    if reader == "python-csv":
        lines = list(csv.reader(f, strict=True))
        rows = [[[n, "t:" + c] for n, c in zip(lines[0], line, strict=True)] for line in lines[1:]]
    else:
        rows = [canonical(json.loads(line, object_pairs_hook=pairs, parse_int=whole)) for line in f if line]
json.dump(rows, sys.stdout)
