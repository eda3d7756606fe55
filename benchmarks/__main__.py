"""Run every benchmark: python -m benchmarks [name …]."""

import sys

from . import clustering, fusion, rounding, runtime, scale, solvers, sweeps, threads, view_norm

BENCHMARKS = {
    "solvers": solvers.main,
    "clustering": clustering.main,
    "fusion": fusion.main,
    "sweeps": sweeps.main,
    "runtime": runtime.main,
    "engines": runtime.engines,
    "rounding": rounding.main,
    "view_norm": view_norm.main,
    "scale": scale.main,
    "threads": threads.main,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or BENCHMARKS:
        print(f"\n## {name}\n", flush=True)
        BENCHMARKS[name]()
