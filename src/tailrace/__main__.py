"""The command `tailrace`, also as `python -m tailrace`.

What it takes to run it is imported when somebody minds Ctrl-C already. Python would show where it
was interrupted, and have those errors ignored with many words that come up inside of an import.
"""

from __future__ import annotations

import os

__all__ = ["main"]

_INTERRUPTED = 130  # as shells do: 128 + SIGINT


def main() -> None:
    try:
        import signal

        # Not where somebody has it ignored, as a shell does for what runs in the background.
        is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if is_usual:  # nothing has begun, so there is nothing to bring to an end
            signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))
    except KeyboardInterrupt:
        os._exit(_INTERRUPTED)
    from tailrace.cli import main as run

    if is_usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
