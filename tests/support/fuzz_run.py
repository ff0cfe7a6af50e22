"""Runs `support.checkpoint_fuzz` over many faults, in forked processes with bounds of time and memory."""

import argparse
import faulthandler
import json
import os
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import IO

import torch

from support.checkpoint_fuzz import FAMILIES, Fault, faults, spoil, verdict

SECONDS = 60
"""Of one checkpoint, start and requests together, on a busy machine."""
BYTES = 12 << 30
"""Of address space of one process."""


def _late(signum: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"not done after {SECONDS} s")


def work(folder: Path, family: str, mine: list[Fault], log: IO[str]) -> None:
    """Tries each fault, and writes a line of JSON about it."""
    signal.signal(signal.SIGALRM, _late)
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    with TemporaryDirectory(dir=folder.parent) as scratch:
        for fault in mine:
            log.write(json.dumps({"begun": str(fault)}) + "\n")
            log.flush()
            begin = time.monotonic()
            signal.alarm(SECONDS)
            faulthandler.dump_traceback_later(2 * SECONDS, exit=True)
            try:
                result = verdict(spoil(folder, Path(scratch) / "model", fault), family)
            except BaseException as error:
                where = "".join(traceback.format_tb(error.__traceback__)[-2:])
                result = f"RAW {type(error).__name__}: {error}\n{where}"
            finally:
                signal.alarm(0)
                faulthandler.cancel_dump_traceback_later()
            line = {"fault": str(fault), "seconds": round(time.monotonic() - begin, 2), "result": result[:1200]}
            log.write(json.dumps(line) + "\n")
            log.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--log", default="/dev/stdout")
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = FAMILIES[options.family]()
    chosen = [fault for fault in faults(folder) if options.only in str(fault)][options.first :: options.every]
    print(options.family, len(chosen), "faults", file=sys.stderr)
    jobs = []
    for job in range(options.jobs):
        pid = os.fork()
        if pid == 0:
            with open(f"{options.log}.{job}" if options.jobs > 1 else options.log, "w") as log:
                work(folder, options.family, chosen[job :: options.jobs], log)
            os._exit(0)
        jobs.append(pid)
    for pid in jobs:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
