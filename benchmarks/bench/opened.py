"""Opens a model once in a fresh process, sends a request at once, and prints where the time went, as JSON. Imports nothing before
the clock runs."""

import json
import sys
import time

SINCE = time.monotonic()


def main() -> None:
    """Arguments of the command: JSON of the keyword arguments of `Omni`, and the moment at which the process was started."""
    given, started = json.loads(sys.argv[1]), float(sys.argv[2])
    from omni import Omni, SamplingParams
    from omni.errors import ConfigError

    imported = time.monotonic()
    try:
        opened = Omni(**given)
    except ConfigError as error:
        raise SystemExit(f"error: {error}") from None
    with opened as omni:
        ready = time.monotonic()
        first: dict[str, float] = {}
        # To the first output of each kind. It captures its steps on the way.
        sampling = SamplingParams(max_tokens=64, ignore_eos=True)
        for output in omni.generate("Tell me about rivers and towns.", sampling=sampling):
            first.setdefault("audio" if output.audio is not None else "text", time.monotonic() - ready)
        reports = omni.start_reports
    found = {
        "python": SINCE - started,
        "imports": imported - SINCE,
        "open": ready - imported,
        "total": ready - started,
        "first": first,
        "engines": {
            place: {name: getattr(report, name) for name in report.__struct_fields__}
            for place, report in reports.items()
        },
    }
    # What a plugin prints comes before the last line.
    print(f"\n{json.dumps(found)}", flush=True)
