"""What the peers share: a result line for the process that asked, and quantiles."""

import json
import time

now = time.perf_counter_ns


def quantile(values, q=0.5):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * q))]


def result(value):
    print(json.dumps({"value": value}))
