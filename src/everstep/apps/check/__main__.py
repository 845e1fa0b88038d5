"""``python -m everstep.apps.check``: the check with nothing but light imports, for images, prologs and scripts."""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from everstep.apps.agent.local_sources import add_source_flags, source_options
from everstep.apps.check.performing import EXAMPLES, Report, from_environment, perform
from everstep.apps.gpu_settings import add_gpu_arguments, gpu_settings
from everstep.core.errors import EverstepError
from everstep.core.node_check import EXIT_CODES, Fitness


def main(argv: Sequence[str]) -> int:
    """Prints the report; the exit code is 0 fit, 1 unfit, 3 unknown, and 2 for wrong usage."""
    parser = argparse.ArgumentParser(
        prog="everstep check",
        description="Asks every local source of this node once, and says whether the node is fit for work.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    given = from_environment()
    parser.add_argument("--json", action="store_true", help="the report as one JSON object")
    parser.add_argument(
        "--source", action="append", default=[], metavar="NAME", help="only this source; may be repeated"
    )
    parser.add_argument("--deadline", type=float, default=given.deadline, help="seconds in all (default: %(default)g)")
    parser.add_argument("--window", type=float, help="seconds of the kernel log that count (default: the whole boot)")
    parser.add_argument(
        "--kmsg",
        default=given.node.kernel_log,
        help="kernel log: a device, a file, or journal (default: /dev/kmsg where it can be read, else the journal)",
    )
    add_source_flags(parser)
    add_gpu_arguments(parser)
    parser.add_argument("--site-faults", type=Path, default=given.site_faults, help="the site's own fault table")
    parser.add_argument("--allow-injected", action="store_true", default=given.allow_injected)
    options = parser.parse_args(argv)
    request = replace(
        given,
        node=source_options(options, options.kmsg),
        gpus=gpu_settings(options),
        site_faults=options.site_faults,
        allow_injected=options.allow_injected,
        sources=tuple(options.source),
        window=options.window,
        deadline=options.deadline,
    )
    show = _print_json if options.json else _print_table
    return outcome(lambda: perform(request), show)


def outcome(work: Callable[[], Report], show: Callable[[Report], None]) -> int:
    """The exit code of a check. One that could not be made is unknown: neither fit, nor a word against the node.

    What was found stands in the exit code though it cannot be printed.
    """
    try:
        report = work()
    except EverstepError as why:
        print(f"everstep: {why}", file=sys.stderr)  # noqa: T201
        return EXIT_CODES[Fitness.UNKNOWN]
    except Exception:
        traceback.print_exc()
        return EXIT_CODES[Fitness.UNKNOWN]
    try:
        show(report)
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError) as why:  # a full disk, a reader that has left, an alphabet without the character
        print(f"everstep: the report cannot be printed: {why}", file=sys.stderr)  # noqa: T201
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # or Python fails at its end, with an exit code of its own
    return report.exit_code


def _print_json(report: Report) -> None:
    print(json.dumps(report.as_json(), ensure_ascii=False))  # noqa: T201


def _print_table(report: Report) -> None:
    width = max((len(item.source) for item in report.sources), default=0)
    for item in report.sources:
        print(f"{item.source:{width}}  {item.fitness:7}  {item.reason}")  # noqa: T201
    print(f"{report.node.fitness}: {report.node.reason}")  # noqa: T201


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
